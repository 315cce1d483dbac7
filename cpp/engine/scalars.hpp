// Scalar programs over many instances: one operation at a time on blocks of instances, which stay in the cache.
// kkt/derivatives/machine.py writes the programs; nothing is compiled for them.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace gnewt::scalars {

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

// A program: header, operations (operation, place, a, b, c), then the places of the outputs.
// Places are numbered: constants, inputs, then registers.
enum Header : int32_t { kNumConstants, kNumInputs, kNumRegisters, kNumSteps, kNumOutputs, kHeaderSize };
constexpr int32_t kStepSize = 5;
constexpr int64_t kBlock = 64;

struct Program {
    const int32_t* data;
    int64_t size;

    int64_t at(Header field) const { return data[field]; }
    const int32_t* step(int64_t i) const { return data + kHeaderSize + i * kStepSize; }
    const int32_t* outputs() const { return step(at(kNumSteps)); }

    // Whether all places exist, and registers alone are written to.
    bool valid() const {
        if (size < kHeaderSize) return false;
        for (int32_t i = 0; i < kHeaderSize; ++i)
            if (data[i] < 0) return false;
        if (size != kHeaderSize + kStepSize * at(kNumSteps) + at(kNumOutputs)) return false;
        const int64_t first = at(kNumConstants) + at(kNumInputs), end = first + at(kNumRegisters);
        for (int64_t i = 0; i < at(kNumSteps); ++i) {
            const int32_t* s = step(i);
            if (s[0] < 0 || s[0] >= kNumOperations || s[1] < first || s[1] >= end) return false;
            for (int j = 2; j < kStepSize; ++j)
                if ((s[j] < 0 || s[j] >= end) && !(s[0] == kPower && j == 3)) return false;
        }
        return std::all_of(outputs(), outputs() + at(kNumOutputs), [&](int32_t p) { return p >= 0 && p < end; });
    }
};

template <class T>
T power(T x, int32_t exponent) {
    T result = 1;
    for (int64_t left = exponent < 0 ? -int64_t(exponent) : exponent; left > 0; left >>= 1) {
        if (left & 1) result *= x;
        x *= x;
    }
    return exponent < 0 ? T(1) / result : result;
}

template <class T, class F>
void each(int64_t n, T* out, const T* a, F f) {
    for (int64_t i = 0; i < n; ++i) out[i] = f(a[i]);
}

template <class T, class F>
void each(int64_t n, T* out, const T* a, const T* b, F f) {
    for (int64_t i = 0; i < n; ++i) out[i] = f(a[i], b[i]);
}

template <class T>
void arithmetic(int32_t operation, int64_t n, T* out, const T* a, const T* b, const T* c, int32_t exponent) {
    switch (operation) {
        case kCopy: return each(n, out, a, [](T x) { return x; });
        case kAdd: return each(n, out, a, b, [](T x, T y) { return x + y; });
        case kSub: return each(n, out, a, b, [](T x, T y) { return x - y; });
        case kMul: return each(n, out, a, b, [](T x, T y) { return x * y; });
        case kDiv: return each(n, out, a, b, [](T x, T y) { return x / y; });
        case kNeg: return each(n, out, a, [](T x) { return -x; });
        case kMax: return each(n, out, a, b, [](T x, T y) { return x > y || x != x ? x : y; });
        case kMin: return each(n, out, a, b, [](T x, T y) { return x < y || x != x ? x : y; });
        case kAbs: return each(n, out, a, [](T x) { return std::abs(x); });
        case kSign: return each(n, out, a, [](T x) { return x > 0 ? T(1) : x < 0 ? T(-1) : x; });
        case kFloor: return each(n, out, a, [](T x) { return std::floor(x); });
        case kCeil: return each(n, out, a, [](T x) { return std::ceil(x); });
        case kTruncate: return each(n, out, a, [](T x) { return std::trunc(x); });
        case kSelect:
            for (int64_t i = 0; i < n; ++i) out[i] = a[i] != 0 ? c[i] : b[i];
            return;
        case kClamp:
            for (int64_t i = 0; i < n; ++i) {
                const T x = b[i] < a[i] ? a[i] : b[i];
                out[i] = c[i] < x ? c[i] : x;
            }
            return;
        case kEq: return each(n, out, a, b, [](T x, T y) { return T(x == y); });
        case kNe: return each(n, out, a, b, [](T x, T y) { return T(x != y); });
        case kLt: return each(n, out, a, b, [](T x, T y) { return T(x < y); });
        case kLe: return each(n, out, a, b, [](T x, T y) { return T(x <= y); });
        case kGt: return each(n, out, a, b, [](T x, T y) { return T(x > y); });
        case kGe: return each(n, out, a, b, [](T x, T y) { return T(x >= y); });
        case kAnd: return each(n, out, a, b, [](T x, T y) { return x * y; });
        case kOr: return each(n, out, a, b, [](T x, T y) { return x > y ? x : y; });
        case kNot: return each(n, out, a, [](T x) { return T(1) - x; });
        case kIsFinite: return each(n, out, a, [](T x) { return T(std::isfinite(x)); });
        case kIsNonzero: return each(n, out, a, [](T x) { return T(x != 0); });
        case kPower: return each(n, out, a, [exponent](T x) { return power(x, exponent); });
        default: return;
    }
}

template <class T>
void function(int32_t operation, int64_t n, T* out, const T* a, const T* b) {
    switch (operation) {
        case kSqrt: return each(n, out, a, [](T x) { return std::sqrt(x); });
        case kRsqrt: return each(n, out, a, [](T x) { return T(1) / std::sqrt(x); });
        case kCbrt: return each(n, out, a, [](T x) { return std::cbrt(x); });
        case kExp: return each(n, out, a, [](T x) { return std::exp(x); });
        case kExp2: return each(n, out, a, [](T x) { return std::exp2(x); });
        case kExpm1: return each(n, out, a, [](T x) { return std::expm1(x); });
        case kLog: return each(n, out, a, [](T x) { return std::log(x); });
        case kLog1p: return each(n, out, a, [](T x) { return std::log1p(x); });
        case kSin: return each(n, out, a, [](T x) { return std::sin(x); });
        case kCos: return each(n, out, a, [](T x) { return std::cos(x); });
        case kTan: return each(n, out, a, [](T x) { return std::tan(x); });
        case kAsin: return each(n, out, a, [](T x) { return std::asin(x); });
        case kAcos: return each(n, out, a, [](T x) { return std::acos(x); });
        case kAtan: return each(n, out, a, [](T x) { return std::atan(x); });
        case kAtan2: return each(n, out, a, b, [](T x, T y) { return std::atan2(x, y); });
        case kSinh: return each(n, out, a, [](T x) { return std::sinh(x); });
        case kCosh: return each(n, out, a, [](T x) { return std::cosh(x); });
        case kTanh: return each(n, out, a, [](T x) { return std::tanh(x); });
        case kLogistic: return each(n, out, a, [](T x) { return T(1) / (T(1) + std::exp(-x)); });
        case kPow: return each(n, out, a, b, [](T x, T y) { return std::pow(x, y); });
        case kErf: return each(n, out, a, [](T x) { return std::erf(x); });
        case kErfc: return each(n, out, a, [](T x) { return std::erfc(x); });
        default: return;
    }
}

// Inputs [num_inputs, n] row by row, outputs [num_outputs, n].
template <class T>
void run(const Program& program, const T* constants, const T* inputs, int64_t n, T* outputs) {
    const int64_t num_constants = program.at(kNumConstants), num_inputs = program.at(kNumInputs);
    const int64_t first = num_constants + num_inputs, steps = program.at(kNumSteps);
    std::vector<T> memory(size_t((num_constants + program.at(kNumRegisters)) * kBlock));
    std::vector<T*> places(size_t(first + program.at(kNumRegisters)));
    for (int64_t c = 0; c < num_constants; ++c) {
        places[size_t(c)] = memory.data() + c * kBlock;
        std::fill_n(places[size_t(c)], kBlock, constants[c]);
    }
    for (int64_t r = 0; r < program.at(kNumRegisters); ++r)
        places[size_t(first + r)] = memory.data() + (num_constants + r) * kBlock;
    for (int64_t start = 0; start < n; start += kBlock) {
        const int64_t count = std::min(kBlock, n - start);
        // Inputs are only read: no step writes to their places.
        for (int64_t i = 0; i < num_inputs; ++i)
            places[size_t(num_constants + i)] = const_cast<T*>(inputs) + i * n + start;
        for (int64_t i = 0; i < steps; ++i) {
            const int32_t* s = program.step(i);
            T* out = places[size_t(s[1])];
            const T* a = places[size_t(s[2])];
            const T* b = s[0] == kPower ? a : places[size_t(s[3])];
            if (s[0] < kSqrt)
                arithmetic(s[0], count, out, a, b, places[size_t(s[4])], s[3]);
            else
                function(s[0], count, out, a, b);
        }
        for (int64_t o = 0; o < program.at(kNumOutputs); ++o)
            std::copy_n(places[size_t(program.outputs()[o])], count, outputs + o * n + start);
    }
}

}  // namespace gnewt::scalars
