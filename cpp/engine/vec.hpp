// Short vectors by the compiler's extension: one source for SSE2, AVX2, AVX-512 and NEON.
//
// Vec<T> fills a register of the instruction set; Quad<T> holds four numbers in every instruction set.
// All kernels of the engine are written with these two types. Nothing here knows of fronts or plans.
#pragma once
#include "memory.hpp"

#define GNEWT_INLINE inline __attribute__((always_inline))
#define GNEWT_LAMBDA __attribute__((always_inline))

namespace gnewt::engine {
namespace GNEWT_ISA {

// A tile of kTileRows × kTileVectors vectors holds the sums of a matrix product. The sums, one row of the right factor
// and one number of the left factor must fit into the registers: 32 of them in AVX-512 and NEON, 16 elsewhere.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kTileRows = 8;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kTileRows = 4;
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16;
constexpr int kTileRows = 6;
#else
constexpr int kVectorBytes = 16;
constexpr int kTileRows = 4;
#endif
#if defined(__AVX2__) || defined(__aarch64__)
constexpr int kTileVectors = 3;
#else
constexpr int kTileVectors = 2;  // without fused multiply-add every product needs a register of its own
#endif

template <class T>
struct VecOf;
template <>
struct VecOf<double> {
    typedef double type __attribute__((vector_size(kVectorBytes)));
};
template <>
struct VecOf<float> {
    typedef float type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vec = typename VecOf<T>::type;

// Numbers in a vector.
template <class T>
constexpr int64_t kWidth = kVectorBytes / int64_t(sizeof(T));

// A length rounded up, or down, to whole vectors.
template <class T>
constexpr int64_t padded(int64_t n) {
    return (n + kWidth<T> - 1) / kWidth<T> * kWidth<T>;
}
template <class T>
constexpr int64_t floor_to_vector(int64_t n) {
    return n / kWidth<T> * kWidth<T>;
}

template <class V, class T>
GNEWT_INLINE V read(const T* p) {
    V v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
template <class T>
GNEWT_INLINE Vec<T> load(const T* p) {
    return read<Vec<T>>(p);
}
template <class T>
GNEWT_INLINE void store(T* p, Vec<T> v) {
    __builtin_memcpy(p, &v, sizeof v);
}
template <class T>
GNEWT_INLINE Vec<T> vabs(Vec<T> v) {
    constexpr decltype(v < 0) sign = ~(decltype(v < 0){} + (decltype((v < 0)[0] + 0)(1) << (8 * sizeof(T) - 1)));
    return (Vec<T>)((decltype(v < 0))v & sign);
}
// A vector of integers of the same width; first_lanes(n) has all bits set in its first n lanes.
template <class T>
using Lanes = decltype(Vec<T>{} < Vec<T>{});
constexpr int8_t kLanes[2 * kVectorBytes] = {
#if defined(__AVX512F__)
    -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
    -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
#endif
#if defined(__AVX2__)
    -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
#endif
    -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
template <class T>
GNEWT_INLINE Lanes<T> first_lanes(int64_t n) {
    return read<Lanes<T>>(kLanes + kVectorBytes - n * int64_t(sizeof(T)));
}
template <class T>
GNEWT_INLINE T sum(Vec<T> v) {
    T total = 0;
    for (int i = 0; i < kWidth<T>; ++i) total += v[i];
    return total;
}

// A number that the compiler knows.
template <int64_t N>
struct Length {
    static constexpr int64_t value = N;
    constexpr operator int64_t() const { return N; }
};

// Call run(k) for k in [K, M), one after the other, with k as a constant.
template <int M, int K = 0, class Run>
GNEWT_INLINE void for_constants(Run run) {
    if constexpr (K < M) {
        run(Length<K>{});
        for_constants<M, K + 1>(run);
    }
}

// Call run(m) with m, which is in [1, M], as a constant.
template <int M, class Run>
GNEWT_INLINE void with_rows(int64_t m, Run run) {
    if constexpr (M == 1)
        run(Length<1>{});
    else if (m == M)
        run(Length<M>{});
    else
        with_rows<M - 1>(m, run);
}

// Four numbers.
template <class T>
struct QuadOf {
    typedef T type __attribute__((vector_size(4 * sizeof(T))));
};
template <class T>
using Quad = typename QuadOf<T>::type;

template <class T>
GNEWT_INLINE Quad<T> load4(const T* p) {
    return read<Quad<T>>(p);
}
template <class T>
GNEWT_INLINE void store4(T* p, Quad<T> v) {
    __builtin_memcpy(p, &v, sizeof v);
}

#if defined(__clang__) || __GNUC__ >= 12
#define GNEWT_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define GNEWT_SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, Index4<T>{i, j, k, l})
template <class T>
using Index4 = decltype(Quad<T>{} < Quad<T>{});
#endif

// Four rows become four columns.
template <class T>
GNEWT_INLINE void transpose(Quad<T>& a, Quad<T>& b, Quad<T>& c, Quad<T>& d) {
    const Quad<T> e = GNEWT_SHUFFLE(a, b, 0, 4, 2, 6), f = GNEWT_SHUFFLE(a, b, 1, 5, 3, 7);
    const Quad<T> g = GNEWT_SHUFFLE(c, d, 0, 4, 2, 6), h = GNEWT_SHUFFLE(c, d, 1, 5, 3, 7);
    a = GNEWT_SHUFFLE(e, g, 0, 1, 4, 5);
    b = GNEWT_SHUFFLE(f, h, 0, 1, 4, 5);
    c = GNEWT_SHUFFLE(e, g, 2, 3, 6, 7);
    d = GNEWT_SHUFFLE(f, h, 2, 3, 6, 7);
}

// The diagonal of four rows.
template <class T>
GNEWT_INLINE Quad<T> diagonal(Quad<T> a, Quad<T> b, Quad<T> c, Quad<T> d) {
    const Quad<T> e = GNEWT_SHUFFLE(a, b, 0, 5, 2, 3), f = GNEWT_SHUFFLE(c, d, 0, 1, 2, 7);
    return GNEWT_SHUFFLE(e, f, 0, 1, 6, 7);
}
// Four rows of which the lower triangle is given become a symmetric matrix.
template <class T>
GNEWT_INLINE void symmetric(Quad<T>& a, Quad<T>& b, Quad<T>& c, Quad<T>& d) {
    Quad<T> e = a, f = b, g = c, h = d;
    transpose<T>(e, f, g, h);
    a = e;
    b = GNEWT_SHUFFLE(b, f, 0, 1, 6, 7);
    c = GNEWT_SHUFFLE(c, g, 0, 1, 2, 7);
}
template <class T>
GNEWT_INLINE Quad<T> abs4(Quad<T> x) {
    return x < 0 ? -x : x;
}
template <class T>
GNEWT_INLINE Quad<T> max4(Quad<T> x, Quad<T> y) {
    return x < y ? y : x;
}
// Whether a comparison holds for all four numbers.
template <class Mask>
GNEWT_INLINE bool all4(Mask m) {
    return (m[0] & m[1]) & (m[2] & m[3]);
}

// x · y
template <class T>
GNEWT_INLINE T dot(const T* x, const T* y, int64_t n) {
    constexpr int64_t w = kWidth<T>;
    T total = 0;
    int64_t i = 0;
    if (n >= w) {
        Vec<T> a{};
        for (; i + w <= n; i += w) a += load(x + i) * load(y + i);
        total = sum<T>(a);
    }
    for (; i < n; ++i) total += x[i] * y[i];
    return total;
}

// y += c * x
template <class T>
GNEWT_INLINE void axpy(T* y, T c, const T* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] += c * x[i];
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
