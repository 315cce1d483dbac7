// Functions of vectors in double precision: exp, expm1, log, sin, cos, tanh, logistic, to about two roundings.
//
// Arguments are reduced to an interval around zero, where a Taylor polynomial is good to rounding. A block of numbers
// with arguments for which the reduction is not exact (huge, not finite, not positive) is left to the C library.
#pragma once
#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {
namespace scalar_math {

using V = Vec<double>;
using I = Lanes<double>;

GNEWT_INLINE V all(double x) { return V{} + x; }

// Adding this number rounds to an integer, which is then found in the last bits.
constexpr double kRounder = 6755399441055744.0;  // 1.5 · 2⁵²
constexpr int64_t kRounderBits = 0x4338000000000000;
constexpr double kLog2e = 1.4426950408889634;
constexpr double kLn2High = 0.6931471803691238, kLn2Low = 1.9082149292705877e-10;

// c[0] + x (c[1] + x (c[2] + ...))
template <int N>
GNEWT_INLINE V polynomial(V x, const double (&c)[N]) {
    V sum = all(c[N - 1]);
    for_constants<N - 1>([&](auto k) GNEWT_LAMBDA { sum = sum * x + c[N - 2 - k]; });
    return sum;
}

GNEWT_INLINE V power_of_two(I k) { return (V)((k + 1023) << 52); }

// x = k ln 2 + r: returns r, sets k.
GNEWT_INLINE V reduce_exp(V x, I& k) {
    const V shifted = x * kLog2e + kRounder;
    const V whole = shifted - kRounder;
    k = (I)shifted - kRounderBits;
    return (x - whole * kLn2High) - whole * kLn2Low;
}

// (eʳ - 1 - r) / r² for |r| ≤ ln(2) / 2
GNEWT_INLINE V exp_rest(V r) {
    constexpr double c[] = {1.0 / 2,       1.0 / 6,        1.0 / 24,        1.0 / 120,
                            1.0 / 720,     1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
                            1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};
    return polynomial(r, c);
}

GNEWT_INLINE V vexp(V x) {
    x = x < -750.0 ? all(-750.0) : x;
    x = x > 750.0 ? all(750.0) : x;
    I k;
    const V r = reduce_exp(x, k);
    const V e = 1.0 + (r + r * r * exp_rest(r));
    const I half = k >> 1;  // in two steps, since 2ᵏ itself may overflow or vanish
    return e * power_of_two(half) * power_of_two(k - half);
}

GNEWT_INLINE V vexpm1(V x) {
    const V low = x > 40.0 ? all(40.0) : x < -40.0 ? all(-40.0) : x;
    I k;
    const V r = reduce_exp(low, k);
    const V scale = power_of_two(k);
    const V found = scale * (r + r * r * exp_rest(r)) + (scale - 1.0);
    return x > 40.0 ? vexp(x) : found;
}

GNEWT_INLINE V vtanh(V x) {
    const V size = vabs<double>(x);
    const V e = vexpm1(2.0 * (size > 20.0 ? all(20.0) : size));
    const V t = e / (e + 2.0);
    return x < 0 ? -t : t;
}

GNEWT_INLINE V vlogistic(V x) { return 1.0 / (1.0 + vexp(-x)); }

// For normal positive numbers.
GNEWT_INLINE V vlog(V x) {
    constexpr int64_t root = 0x3fe6a09e667f3bcd;  // √½: the mantissa is taken between √½ and √2
    const I k = ((I)x - root) >> 52;
    const V f = (V)((I)x - (k << 52)) - 1.0;
    const V s = f / (2.0 + f), z = s * s;
    constexpr double c[] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11, 2.0 / 13,
                            2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21, 2.0 / 23};
    const V rest = z * polynomial(z, c);
    const V whole = (V)(k + kRounderBits) - kRounder;
    return whole * kLn2High - ((s * (f - rest) - whole * kLn2Low) - f);
}

// sin(x + quarter · π/2) for |x| ≤ kMostTurned
constexpr double kMostTurned = 1e5;
GNEWT_INLINE V vsin(V x, int64_t quarter) {
    // π/2 in three parts: products of the first two with whole numbers are exact.
    constexpr double first = 1.5707963267341256, second = 6.077100506303966e-11, third = 2.0222662487959506e-21;
    const V shifted = x * 0.6366197723675814 + kRounder;
    const V whole = shifted - kRounder;
    const V r = ((x - whole * first) - whole * second) - whole * third;
    const I turn = (I)shifted - kRounderBits + quarter;
    const V z = r * r;
    constexpr double odd[] = {-1.0 / 6,
                              1.0 / 120,
                              -1.0 / 5040,
                              1.0 / 362880,
                              -1.0 / 39916800,
                              1.0 / 6227020800.0,
                              -1.0 / 1307674368000.0,
                              1.0 / 355687428096000.0};
    constexpr double even[] = {1.0 / 24,        -1.0 / 720,           1.0 / 40320,           -1.0 / 3628800,
                               1.0 / 479001600, -1.0 / 87178291200.0, 1.0 / 20922789888000.0};
    const V sine = r + r * z * polynomial(z, odd);
    const V half = 0.5 * z, head = 1.0 - half;
    const V cosine = head + (((1.0 - head) - half) + z * z * polynomial(z, even));
    const V found = (turn & 1) != 0 ? cosine : sine;
    return (turn & 2) != 0 ? -found : found;
}

}  // namespace scalar_math
}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
