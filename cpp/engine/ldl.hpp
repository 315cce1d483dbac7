// A = Uᵀ D⁻¹ U without interchanges, by panels of rows, with a test on every pivot. Where the test fails the careful
// elimination goes on from there: so nothing here needs to move.
#pragma once
#include "gemm.hpp"
#include "pivots.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

constexpr int64_t kPanel = 16;

// Eliminate the first q rows of the row-major upper matrix r[n, ld], whose columns n.. are right-hand sides.
//
// bound[j] holds the sum of magnitudes that went into the diagonal entry j, and is updated.
// On return `out` [q, n] holds D on its diagonal and L = D⁻¹U above it; `y` the right-hand sides as rows of L; `schur`, of leading
// dimension `lds`, the Schur complement of [b | right-hand sides]. `panel` is scratch of kPanel rows. Returns how many rows were eliminated:
// where that is less than q, the next pivot fails its test, and all rows of r are up to date.
template <class T, bool FIXED>
GNEWT_INLINE int64_t eliminate_rows(T* r, int64_t ld, int64_t q, int64_t n, int64_t columns, T* bound, T* panel, T* out, T* y,
                                    T* schur, int64_t lds, Tally& tally) {
    constexpr int64_t w = kWidth<T>;
    const int64_t end = padded<T>(n + columns);
    const auto stop = [&](int64_t first, int64_t k, int64_t last) {
        if (k > first)
            multiply<T, kSubtract, false>(k - first, last, n, true, end, panel, ld, r + first * ld, ld, r, ld, r, ld);
        return k;
    };
    for (int64_t first = 0; first < q; first += kPanel) {
        const int64_t last = min(first + kPanel, q);
        for (int64_t k = first; k < last; ++k) {
            T* u = r + k * ld;
            T* l = panel + (k - first) * ld;
            const T d = u[k];
            if (!(abs(d) > T(kNoise) * Precision<T>::eps * bound[k]) || !(abs(d) > Precision<T>::tiny)) return stop(first, k, last);
            const T inverse = 1 / d;
            Vec<T> largest{};
            for (int64_t j = floor_to_vector<T>(k); j < end; j += w) {
                const Vec<T> v = load(u + j) * inverse, m = vabs<T>(v);
                largest = m > largest ? m : largest;
                store(l + j, v);
            }
            T top = 0;
            for (int64_t j = 0; j < w; ++j) top = max(top, largest[j]);
            if (!(top <= T(1 / kThreshold))) {
                // A large row of L is harmless where the diagonal it is subtracted from is as large (H ≻ 0: always).
                for (int64_t j = k + 1; j < n; ++j)
                    if (!(abs(l[j]) <= T(1 / kThreshold)) &&
                        !(abs(l[j] * u[j]) * T(kThreshold) <= max(abs(r[j * ld + j]), bound[j])))
                        return stop(first, k, last);
            }
            for (int64_t j = k + 1; j < n; ++j) bound[j] += abs(l[j] * u[j]);
            for (int64_t i = k + 1; i < last; ++i) {
                T* row = r + i * ld;
                const T c = l[i];
                for (int64_t j = floor_to_vector<T>(i); j < end; j += w) store(row + j, load(row + j) - c * load(u + j));
            }
            tally.add(double(d));
            out[k] = d;
            for (int64_t j = k + 1; j < n; ++j) out[j] = l[j];
            out += n;
            for (int64_t c = 0; c < columns; ++c) *y++ = l[n + c];
        }
        if (last < q)
            multiply<T, kSubtract, FIXED>(last - first, last, n, true, end, panel, ld, r + first * ld, ld, r, ld, r, ld);
        else  // the last panel: what is left goes straight to the stack
            multiply<T, kSubtract, FIXED>(q - first, 0, n - q, true, n - q + columns, panel + q, ld, r + first * ld + q, ld,
                                          r + q * ld + q, ld, schur, lds);
    }
    if (q == 0)
        for (int64_t i = 0; i < n; ++i) std::memcpy(schur + i * lds + i, r + i * ld + i, size_t(n + columns - i) * sizeof(T));
    return q;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
