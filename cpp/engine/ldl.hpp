// A = Uᵀ D⁻¹ U without interchanges, by panels of rows, with tests on every pivot and on what is left.
#pragma once
#include "gemm.hpp"
#include "pivots.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

constexpr int64_t kPanel = 16;
constexpr double kDoubtful = 1e-4;  // the share of what was summed into a diagonal entry below which it is in doubt

// Whether a diagonal entry kept its size.
template <class T>
GNEWT_INLINE bool kept(T value, T size) {
    return abs(value) >= T(kDoubtful) * size;
}

// Whether entry (i, j) kept its size, in units in which what was summed into the diagonal is one.
template <class T>
GNEWT_INLINE bool kept(T value, T size_i, T size_j) {
    return abs(value) >= T(kDoubtful) * std::sqrt(size_i) * std::sqrt(size_j);
}

// Whether the first row k with a pivot in doubt has lost all of its entries, not only the pivot, as it may where a matrix is indefinite.
template <class T>
inline bool lost_row(const T* r, int64_t ld, int64_t q, int64_t n, const T* size) {
    int64_t k = 0;
    while (k < q && kept(r[k * (ld + 1)], size[k])) ++k;
    for (int64_t j = k + 1; k < q && j < n; ++j)
        if (kept(r[k * ld + j], size[k], size[j])) return false;
    return k < q;
}

// ... and whether any row of a whole matrix has.
template <class T>
inline bool lost_any_row(int64_t n, const T* a, int64_t ld, const T* size) {
    for (int64_t i = 0; i < n; ++i) {
        bool any = kept(a[i * ld + i], size[i]);
        for (int64_t j = 0; j < n && !any; ++j) any = j != i && kept(a[i * ld + j], size[i], size[j]);
        if (!any) return true;
    }
    return false;
}

// Whether large numbers in the rows [first, last) of L are harmless: as they are where the diagonal they are subtracted from is as large (H ≻ 0: always).
template <class T>
inline bool grows_little(const T* r, int64_t ld, int64_t first, int64_t last, int64_t n, const T* panel, const T* size) {
    for (int64_t k = first; k < last; ++k) {
        const T *u = r + k * ld, *l = panel + (k - first) * ld;
        for (int64_t j = k + 1; j < n; ++j)
            if (!(abs(l[j]) <= T(1 / kThreshold)) && !(abs(l[j] * u[j]) * T(kThreshold) <= size[j])) return false;
    }
    return true;
}

// What pivots of one sign subtract from a diagonal entry shows in what is left of it; of both signs, it may cancel: size[j] += Σ_k |L[k, j]² d_k|.
template <class T>
inline void add_subtracted(const T* rows, int64_t q, int64_t n, T* size) {
    for (int64_t k = 0; k < q; ++k, rows += n) {
        const T d = abs(rows[k]);
        for (int64_t j = q; j < n; ++j) size[j] += d * rows[j] * rows[j];
    }
}

// Eliminate the first q rows of the row-major upper matrix r[n, ld], with the right-hand sides rho[columns, ld].
//
// size[j] holds what was summed into the diagonal entry j. On return `out` [q, n] holds D on its diagonal and L = D⁻¹U above it;
// `y` [q, columns] the right-hand sides as rows of L; `schur`, of leading dimension `lds`, the Schur complement, and rho[:, q..] what belongs
// to it. `panel` is scratch of kPanel rows. False where a test failed: then `schur` and `tally` are as they were.
template <class T, bool FIXED>
GNEWT_INLINE bool eliminate_rows(T* __restrict r, int64_t ld, int64_t q, int64_t n, T* __restrict rho, int64_t columns, T* size,
                                 T* __restrict panel, T* __restrict out, T* __restrict y, T* __restrict schur, int64_t lds, Tally& tally) {
    constexpr int64_t w = kWidth<T>;
    const T* const rows = out;
    for (int64_t first = 0; first < q; first += kPanel) {
        const int64_t last = min(first + kPanel, q);
        bool good = true;
        Vec<T> largest{};
        for (int64_t k = first; k < last; ++k) {
            T *u = r + k * ld, *l = panel + (k - first) * ld;
            const int64_t start = floor_to_vector<T>(k);
            const T d = u[k], inverse = 1 / d;
            good &= kept(d, size[k]) & (abs(d) > Precision<T>::tiny);
            for (int64_t j = start; j < ld; j += w) {
                const Vec<T> v = load(u + j) * inverse, a = vabs<T>(v);
                largest = a > largest ? a : largest;
                store(l + j, v);
            }
            for (int64_t i = k + 1; i < last; ++i) {
                T* row = r + i * ld;
                const T x = l[i];
                for (int64_t j = floor_to_vector<T>(i); j < ld; j += w) store(row + j, load(row + j) - x * load(u + j));
            }
            for (int64_t c = 0; c < columns; ++c) {
                T* to = rho + c * ld;
                const T x = to[k];
                y[k * columns + c] = x * inverse;
                for (int64_t j = start; j < ld; j += w) store(to + j, load(to + j) - x * load(l + j));
            }
            std::memcpy(out + k, l + k, size_t(n - k) * sizeof(T));
            out[k] = d;
            out += n;
        }
        if (!good) return false;
        T top = 0;
        for (int64_t j = 0; j < w; ++j) top = max(top, largest[j]);
        if (!(top <= T(1 / kThreshold)) && !grows_little(r, ld, first, last, n, panel, size)) return false;
        if (last < q)
            multiply<T, kSubtract, FIXED>(last - first, last, n, true, n, panel, ld, r + first * ld, ld, r, ld, r, ld);
        else  // the last panel: what is left goes straight to the stack
            multiply<T, kSubtract, FIXED>(q - first, 0, n - q, true, n - q, panel + q, ld, r + first * ld + q, ld, r + q * ld + q, ld,
                                          schur, lds);
    }
    if (q == 0)
        for (int64_t i = 0; i < n; ++i) std::memcpy(schur + i * lds + i, r + i * ld + i, size_t(n - i) * sizeof(T));
    bool positive = false, negative = false;
    for (int64_t k = 0; k < q; ++k) {
        const T d = rows[k * (n + 1)];
        (d > 0 ? positive : negative) = true;
        tally.add(double(d));
    }
    if (positive && negative) add_subtracted(rows, q, n, size);
    return true;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
