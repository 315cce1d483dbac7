// Eight numbers side by side, in every instruction set, and functions that serve single numbers and vectors alike.
#pragma once
#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// Eight numbers in every instruction set.
template <class T>
struct EightOf {
    typedef T type __attribute__((vector_size(8 * sizeof(T))));
};
template <class T>
using Eight = typename EightOf<T>::type;

// What holds in every lane: bool for single numbers, a vector of integers otherwise.
template <class V>
using Holds = decltype(V{} < V{});

inline double magnitude(double x) { return __builtin_fabs(x); }
inline float magnitude(float x) { return __builtin_fabsf(x); }
template <class V>
GNEWT_INLINE V magnitude(V x) {
    return x < 0 ? -x : x;
}
template <class V>
GNEWT_INLINE V larger(V x, V y) {
    return x < y ? y : x;
}
template <class V>
GNEWT_INLINE V smaller(V x, V y) {
    return y < x ? y : x;
}
GNEWT_INLINE bool holds(bool all, int) { return all; }
template <class Mask>
GNEWT_INLINE bool holds(const Mask& all, int lane) {
    return all[lane] != 0;
}
// Whether a number is zero in every lane.
GNEWT_INLINE bool vanishes(double x) { return x == 0; }
GNEWT_INLINE bool vanishes(float x) { return x == 0; }
template <class V>
GNEWT_INLINE bool vanishes(V x) {
    typedef decltype((x != 0)[0] + 0) Half __attribute__((vector_size(sizeof(V) / 2)));
    const auto any = x != 0;
    Half halves[2];
    __builtin_memcpy(halves, &any, sizeof halves);
    const Half half = halves[0] | halves[1];
    return ((half[0] | half[1]) | (half[2] | half[3])) == 0;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
