// Scalar programs over many instances: one operation at a time on blocks of instances, which stay in the cache.
// kkt/derivatives/machine.py writes the programs; nothing is compiled for them.
#pragma once
#include "scalar_math.hpp"

namespace gnewt::engine {

// The order is that of OPERATIONS in machine.py.
enum Operation : int32_t {
    kCopy,
    kAdd,
    kSub,
    kMul,
    kDiv,
    kNeg,
    kMax,
    kMin,
    kAbs,
    kSign,
    kFloor,
    kCeil,
    kTruncate,
    kSelect,
    kClamp,
    kEq,
    kNe,
    kLt,
    kLe,
    kGt,
    kGe,
    kAnd,
    kOr,
    kNot,
    kIsFinite,
    kIsNonzero,
    kPower,
    kMulAdd,
    kMulSub,
    kSubMul,
    kSqrt,
    kRsqrt,
    kCbrt,
    kExp,
    kExp2,
    kExpm1,
    kLog,
    kLog1p,
    kSin,
    kCos,
    kTan,
    kAsin,
    kAcos,
    kAtan,
    kAtan2,
    kSinh,
    kCosh,
    kTanh,
    kLogistic,
    kPow,
    kErf,
    kErfc,
    kNumOperations
};

// A step: (operation, place of the result, places of a, b, c). The b of an integer power is its exponent.
constexpr int32_t kStepSize = 5;

namespace GNEWT_ISA {

// Numbers of a block at most. Programs with many places take shorter blocks, so that all places stay in the cache.
constexpr int64_t kBlock = 128;

// out := f(a, ...) for n numbers, n a multiple of the length of vectors.
template <class T, class F>
GNEWT_INLINE void each(int64_t n, T* out, const T* a, F f) {
    for (int64_t i = 0; i < n; i += kWidth<T>) store<T>(out + i, f(load<T>(a + i)));
}
template <class T, class F>
GNEWT_INLINE void each(int64_t n, T* out, const T* a, const T* b, F f) {
    for (int64_t i = 0; i < n; i += kWidth<T>) store<T>(out + i, f(load<T>(a + i), load<T>(b + i)));
}
template <class T, class F>
GNEWT_INLINE void each(int64_t n, T* out, const T* a, const T* b, const T* c, F f) {
    for (int64_t i = 0; i < n; i += kWidth<T>) store<T>(out + i, f(load<T>(a + i), load<T>(b + i), load<T>(c + i)));
}
// Number by number, for functions that know no vectors.
template <class T, class F>
GNEWT_INLINE void one_by_one(int64_t n, T* out, const T* a, F f) {
    for (int64_t i = 0; i < n; ++i) out[i] = f(a[i]);
}
template <class T, class F>
GNEWT_INLINE void one_by_one(int64_t n, T* out, const T* a, const T* b, F f) {
    for (int64_t i = 0; i < n; ++i) out[i] = f(a[i], b[i]);
}

template <class V>
GNEWT_INLINE V power(V x, int32_t exponent) {
    V result = V{} + 1;
    for (int64_t left = exponent < 0 ? -int64_t(exponent) : exponent; left > 0; left >>= 1) {
        if (left & 1) result *= x;
        x *= x;
    }
    return exponent < 0 ? 1 / result : result;
}

template <class T>
void arithmetic(int32_t operation, int64_t n, T* out, const T* a, const T* b, const T* c, int32_t exponent) {
    using V = Vec<T>;
    constexpr V zero = V{}, one = V{} + 1;
    switch (operation) {
        case kCopy: return each(n, out, a, [](V x) GNEWT_LAMBDA { return x; });
        case kAdd: return each(n, out, a, b, [](V x, V y) GNEWT_LAMBDA { return x + y; });
        case kSub: return each(n, out, a, b, [](V x, V y) GNEWT_LAMBDA { return x - y; });
        case kMul: return each(n, out, a, b, [](V x, V y) GNEWT_LAMBDA { return x * y; });
        case kDiv: return each(n, out, a, b, [](V x, V y) GNEWT_LAMBDA { return x / y; });
        case kNeg: return each(n, out, a, [](V x) GNEWT_LAMBDA { return -x; });
        case kMax: return each(n, out, a, b, [](V x, V y) GNEWT_LAMBDA { return (x > y) | (x != x) ? x : y; });
        case kMin: return each(n, out, a, b, [](V x, V y) GNEWT_LAMBDA { return (x < y) | (x != x) ? x : y; });
        case kAbs: return each(n, out, a, [](V x) GNEWT_LAMBDA { return vabs<T>(x); });
        case kSign: return each(n, out, a, [=](V x) GNEWT_LAMBDA { return x > 0 ? one : x < 0 ? -one : x; });
        case kSelect: return each(n, out, a, b, c, [](V w, V x, V y) GNEWT_LAMBDA { return w != 0 ? y : x; });
        case kClamp:
            return each(n, out, a, b, c, [](V low, V x, V high) GNEWT_LAMBDA {
                const V raised = x < low ? low : x;
                return high < raised ? high : raised;
            });
        case kEq: return each(n, out, a, b, [=](V x, V y) GNEWT_LAMBDA { return x == y ? one : zero; });
        case kNe: return each(n, out, a, b, [=](V x, V y) GNEWT_LAMBDA { return x != y ? one : zero; });
        case kLt: return each(n, out, a, b, [=](V x, V y) GNEWT_LAMBDA { return x < y ? one : zero; });
        case kLe: return each(n, out, a, b, [=](V x, V y) GNEWT_LAMBDA { return x <= y ? one : zero; });
        case kGt: return each(n, out, a, b, [=](V x, V y) GNEWT_LAMBDA { return x > y ? one : zero; });
        case kGe: return each(n, out, a, b, [=](V x, V y) GNEWT_LAMBDA { return x >= y ? one : zero; });
        case kAnd: return each(n, out, a, b, [](V x, V y) GNEWT_LAMBDA { return x * y; });
        case kOr: return each(n, out, a, b, [](V x, V y) GNEWT_LAMBDA { return x > y ? x : y; });
        case kNot: return each(n, out, a, [](V x) GNEWT_LAMBDA { return 1 - x; });
        case kIsFinite: return each(n, out, a, [=](V x) GNEWT_LAMBDA { return x - x == 0 ? one : zero; });
        case kIsNonzero: return each(n, out, a, [=](V x) GNEWT_LAMBDA { return x != 0 ? one : zero; });
        case kPower: return each(n, out, a, [exponent](V x) GNEWT_LAMBDA { return power(x, exponent); });
        case kMulAdd: return each(n, out, a, b, c, [](V x, V y, V z) GNEWT_LAMBDA { return x * y + z; });
        case kMulSub: return each(n, out, a, b, c, [](V x, V y, V z) GNEWT_LAMBDA { return x * y - z; });
        case kSubMul: return each(n, out, a, b, c, [](V x, V y, V z) GNEWT_LAMBDA { return z - x * y; });
        case kFloor: return one_by_one(n, out, a, [](T x) { return T(__builtin_floor(x)); });
        case kCeil: return one_by_one(n, out, a, [](T x) { return T(__builtin_ceil(x)); });
        case kTruncate: return one_by_one(n, out, a, [](T x) { return T(__builtin_trunc(x)); });
        default: return;
    }
}

// Functions by the C library: double serves for single precision, too.
template <class T>
void function(int32_t operation, int64_t n, T* out, const T* a, const T* b) {
    switch (operation) {
        case kSqrt: return one_by_one(n, out, a, [](T x) { return T(__builtin_sqrt(x)); });
        case kRsqrt: return one_by_one(n, out, a, [](T x) { return T(1 / __builtin_sqrt(x)); });
        case kCbrt: return one_by_one(n, out, a, [](T x) { return T(__builtin_cbrt(x)); });
        case kExp: return one_by_one(n, out, a, [](T x) { return T(__builtin_exp(x)); });
        case kExp2: return one_by_one(n, out, a, [](T x) { return T(__builtin_exp2(x)); });
        case kExpm1: return one_by_one(n, out, a, [](T x) { return T(__builtin_expm1(x)); });
        case kLog: return one_by_one(n, out, a, [](T x) { return T(__builtin_log(x)); });
        case kLog1p: return one_by_one(n, out, a, [](T x) { return T(__builtin_log1p(x)); });
        case kSin: return one_by_one(n, out, a, [](T x) { return T(__builtin_sin(x)); });
        case kCos: return one_by_one(n, out, a, [](T x) { return T(__builtin_cos(x)); });
        case kTan: return one_by_one(n, out, a, [](T x) { return T(__builtin_tan(x)); });
        case kAsin: return one_by_one(n, out, a, [](T x) { return T(__builtin_asin(x)); });
        case kAcos: return one_by_one(n, out, a, [](T x) { return T(__builtin_acos(x)); });
        case kAtan: return one_by_one(n, out, a, [](T x) { return T(__builtin_atan(x)); });
        case kAtan2: return one_by_one(n, out, a, b, [](T x, T y) { return T(__builtin_atan2(x, y)); });
        case kSinh: return one_by_one(n, out, a, [](T x) { return T(__builtin_sinh(x)); });
        case kCosh: return one_by_one(n, out, a, [](T x) { return T(__builtin_cosh(x)); });
        case kTanh: return one_by_one(n, out, a, [](T x) { return T(__builtin_tanh(x)); });
        case kLogistic: return one_by_one(n, out, a, [](T x) { return T(1 / (1 + __builtin_exp(-double(x)))); });
        case kPow: return one_by_one(n, out, a, b, [](T x, T y) { return T(__builtin_pow(x, y)); });
        case kErf: return one_by_one(n, out, a, [](T x) { return T(__builtin_erf(x)); });
        case kErfc: return one_by_one(n, out, a, [](T x) { return T(__builtin_erfc(x)); });
        default: return;
    }
}

// Whether a test holds for all numbers.
template <class F>
GNEWT_INLINE bool holds(int64_t n, const double* a, F test) {
    Lanes<double> good = Lanes<double>{} - 1;
    for (int64_t i = 0; i < n; i += kWidth<double>) good &= test(load<double>(a + i));
    bool found = true;
    for (int i = 0; i < kWidth<double>; ++i) found &= good[i] != 0;
    return found;
}

// Functions on vectors where there are some; false where the C library has to do it.
inline bool quick_function(int32_t operation, int64_t n, double* out, const double* a) {
    namespace m = scalar_math;
    using V = Vec<double>;
    constexpr double least = 2.2250738585072014e-308, most = 1.7976931348623157e308;
    auto turns = [](V x) GNEWT_LAMBDA { return vabs<double>(x) <= m::kMostTurned; };
    switch (operation) {
        case kExp: each(n, out, a, [](V x) GNEWT_LAMBDA { return m::vexp(x); }); return true;
        case kExpm1: each(n, out, a, [](V x) GNEWT_LAMBDA { return m::vexpm1(x); }); return true;
        case kTanh: each(n, out, a, [](V x) GNEWT_LAMBDA { return m::vtanh(x); }); return true;
        case kLogistic: each(n, out, a, [](V x) GNEWT_LAMBDA { return m::vlogistic(x); }); return true;
        case kLog:
            if (!holds(n, a, [](V x) GNEWT_LAMBDA { return (x >= least) & (x <= most); })) return false;
            each(n, out, a, [](V x) GNEWT_LAMBDA { return m::vlog(x); });
            return true;
        case kSin:
            if (!holds(n, a, turns)) return false;
            each(n, out, a, [](V x) GNEWT_LAMBDA { return m::vsin(x, 0); });
            return true;
        case kCos:
            if (!holds(n, a, turns)) return false;
            each(n, out, a, [](V x) GNEWT_LAMBDA { return m::vsin(x, 1); });
            return true;
        default: return false;
    }
}
inline bool quick_function(int32_t, int64_t, float*, const float*) { return false; }

// Run the steps of a program on `count` numbers in each place; places are `pitch` numbers apart.
template <class T>
void run_steps(const int32_t* steps, int64_t num_steps, T* places, int64_t pitch, int64_t count) {
    count = padded<T>(count);
    for (const int32_t *s = steps, *end = steps + num_steps * kStepSize; s != end; s += kStepSize) {
        T* out = places + s[1] * pitch;
        const T* a = places + s[2] * pitch;
        const T* b = s[0] == kPower ? a : places + s[3] * pitch;
        if (s[0] < kSqrt)
            arithmetic(s[0], count, out, a, b, places + s[4] * pitch, s[3]);
        else if (!quick_function(s[0], count, out, a))
            function(s[0], count, out, a, b);
    }
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
