// A = Uᵀ D⁻¹ U without interchanges, by panels of rows, with tests on every pivot and on what is left.
#pragma once
#include "gemm.hpp"
#include "pivots.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

constexpr int64_t kPanel = 16, kBlock = 8;  // rows whose update of the rest is put off; rows that registers hold
constexpr double kDoubtful = 1e-4;         // the share of what was summed into a diagonal entry below which it is in doubt

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

// Set the weights of pairs, whose matrix is whole, where a diagonal entry lost digits: it stands for more noise from here on. False where a whole row did.
template <class T>
inline bool renew_weights(int64_t n, const T* a, int64_t ld, T* weight) {
    if (lost_any_row(n, a, ld, weight)) return false;
    for (int64_t i = 0; i < n; ++i) {
        const T d = abs(a[i * (ld + 1)]);
        weight[i] = kept(d, weight[i]) ? d : renewed(d, weight[i]);
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

// What eliminating some rows works on; see eliminate_rows. In `r`, `rho` and `size` the columns that stay are moved to the right by `gap`.
template <class T>
struct Rows {
    T* __restrict r;
    int64_t ld, n;
    T* __restrict rho;
    int64_t columns;
    T* size;
    T* __restrict out;
    T* __restrict y;
    int64_t gap = 0;
};

// Whether the first row k with a pivot in doubt has lost all of its entries, not only the pivot, as it may where a matrix is indefinite.
template <class T>
inline bool lost_row(const Rows<T>& rows, int64_t q) {
    int64_t k = 0;
    while (k < q && kept(rows.r[k * (rows.ld + 1)], rows.size[k])) ++k;
    for (int64_t j = k + 1; k < q && j < rows.n; ++j) {
        const int64_t at = j < q ? j : j + rows.gap;
        if (kept(rows.r[k * rows.ld + at], rows.size[k], rows.size[at])) return false;
    }
    return k < q;
}

// Whether large numbers in the rows [first, last) of L are harmless: as they are where the diagonal they are subtracted from is as large (H ≻ 0: always).
template <class T>
inline bool grows_little(const Rows<T>& rows, int64_t q, int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
        const T *l = rows.out + k * rows.n, d = l[k];
        for (int64_t j = k + 1; j < rows.n; ++j)
            if (!(abs(l[j]) <= T(1 / kThreshold)) && !(abs(l[j] * (l[j] * d)) * T(kThreshold) <= rows.size[j < q ? j : j + rows.gap])) return false;
    }
    return true;
}

// The pivots of a few rows and what they multiply each other by: l[i][k] is L[k, i], and `squares` sums the squares of these.
template <class T>
struct Pivots {
    T d[kBlock], inverse[kBlock], l[kBlock][kBlock], squares;
};

// Eliminate the block on the diagonal of the M rows from `first` on, number by number, as its pivots wait for each other.
template <class T, int M>
GNEWT_INLINE bool find_pivots(const Rows<T>& rows, int64_t first, Pivots<T>& out) {
    const int64_t ld = rows.ld, columns = rows.columns;
    const T* r = rows.r + first * (ld + 1);
    T a[M][M], inverse[M];
    T squares = 0;
    bool good = true;
#pragma GCC unroll 8
    for (int k = 0; k < M; ++k)
#pragma GCC unroll 8
        for (int i = k; i < M; ++i) a[k][i] = r[k * ld + i];
#pragma GCC unroll 8
    for (int k = 0; k < M; ++k) {
        const T d = a[k][k];
        out.d[k] = d;
        out.inverse[k] = inverse[k] = 1 / d;
        good &= kept(d, rows.size[first + k]) & (abs(d) > Precision<T>::tiny);
#pragma GCC unroll 8
        for (int i = k + 1; i < M; ++i) {
            out.l[i][k] = a[i][k] = a[k][i] * inverse[k];
            squares += a[i][k] * a[i][k];
#pragma GCC unroll 8
            for (int j = k + 1; j <= i; ++j) a[j][i] -= a[j][k] * a[k][i];
        }
    }
    out.squares = squares;
    for (int64_t c = 0; c < columns; ++c) {
        T x[M], *y = rows.y + first * columns + c;
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) x[k] = rows.rho[c * ld + first + k];
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) {
            y[k * columns] = x[k] * inverse[k];
#pragma GCC unroll 8
            for (int i = k + 1; i < M; ++i) x[i] -= a[i][k] * x[k];
        }
    }
    return good;
}

// ... and in the rest of these rows, from the column `begin` on: strips of columns, whose rows stay in registers. `largest`: of the magnitudes in L.
template <class T, int M>
GNEWT_INLINE void use_pivots(const Rows<T>& rows, int64_t first, int64_t begin, int64_t q, const Pivots<T>& pivots, Vec<T>& largest) {
    constexpr int64_t w = kWidth<T>;
    const int64_t ld = rows.ld, n = rows.n, columns = rows.columns, gap = rows.gap;
    T *r = rows.r + first * ld, *out = rows.out + first * n, *rho = rows.rho;
    const T* y = rows.y + first * columns;
    Vec<T> top = largest;
    // From the last strip to the first, and down the rows: what a vector writes behind its row of `out` is written over.
    for (int64_t j = ld - w; j >= begin; j -= w) {
        const bool stays = gap == 0 || j >= q;
        const int64_t to = stays ? j - gap : j, end = stays ? n : q;
        Vec<T> u[M];
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) u[k] = load(r + k * ld + j);
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k)
#pragma GCC unroll 8
            for (int i = k + 1; i < M; ++i) u[i] -= pivots.l[i][k] * u[k];
        for (int64_t c = 0; c < columns; ++c) {
            Vec<T> x = load(rho + c * ld + j), other{};
#pragma GCC unroll 8
            for (int k = 0; k < M; ++k) (k % 2 ? other : x) -= y[k * columns + c] * u[k];
            store(rho + c * ld + j, x + other);
        }
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) {
            store(r + k * ld + j, u[k]);
            u[k] *= pivots.inverse[k];
            const Vec<T> magnitude = vabs<T>(u[k]);
            top = magnitude > top ? magnitude : top;
        }
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) {
            if (stays ? k * n + to + w <= M * n : to + w <= q) {
                store(out + k * n + to, u[k]);
            } else {  // nothing is written behind the last row, nor over columns that stay
                T numbers[w];
                store(numbers, u[k]);
                for (int64_t i = 0; i < end - to; ++i) out[k * n + to + i] = numbers[i];
            }
        }
    }
#pragma GCC unroll 8
    for (int k = 0; k < M; ++k) {
        out[k * n + first + k] = pivots.d[k];
#pragma GCC unroll 8
        for (int i = k + 1; i < M; ++i) out[k * n + first + i] = pivots.l[i][k];
    }
    largest = top;
}

// ... and in the columns before `begin`, where a test failed: it is asked what is left of these rows.
template <class T>
inline void use_pivots_before(const Rows<T>& rows, int64_t first, int64_t last, int64_t begin, const Pivots<T>& pivots) {
    for (int64_t k = first; k < last; ++k)
        for (int64_t i = k + 1; i < last; ++i)
            for (int64_t j = i; j < begin; ++j) rows.r[i * rows.ld + j] -= pivots.l[i - first][k - first] * rows.r[k * rows.ld + j];
}

// Call run(m as a constant) for m in [1, kBlock].
template <int M = kBlock, class Run>
GNEWT_INLINE void with_rows(int64_t m, Run run) {
    if (m == M)
        run(Length<M>{});
    else if constexpr (M > 1)
        with_rows<M - 1>(m, run);
}
template <class T, int M>
__attribute__((noinline)) inline bool find_pivots_call(const Rows<T>& rows, int64_t first, Pivots<T>& out) {
    return find_pivots<T, M>(rows, first, out);
}
template <class T, int M>
__attribute__((noinline)) inline void use_pivots_call(const Rows<T>& rows, int64_t first, int64_t begin, int64_t q, const Pivots<T>& pivots,
                                                     Vec<T>& largest) {
    use_pivots<T, M>(rows, first, begin, q, pivots, largest);
}

// Count the pivots, which are on the diagonal of out[q, n]; whether there are some of both signs.
template <class T, int Q>
GNEWT_INLINE bool count_pivots(const T* out, int64_t q, int64_t n, Tally& tally) {
    const int64_t above = tally.positive, below = tally.negative;
    if constexpr (Q > 0) {
        T d[Q];
#pragma GCC unroll 8
        for (int k = 0; k < Q; ++k) d[k] = out[k * (n + 1)];
        tally.template add_all<T, Q>(d);
    } else {
        for (int64_t k = 0; k < q; ++k) tally.add(double(out[k * (n + 1)]));
    }
    return tally.positive > above && tally.negative > below;
}

// Eliminate the first q rows of the row-major matrix r[n, ld], with the right-hand sides rho[columns, ld]. These rows hold the upper triangle;
// of the others one triangle is there, and of the Schur complement that one is computed: `part`.
//
// size[j] holds what was summed into the diagonal entry j. On return `out` [q, n] holds D on its diagonal and L = D⁻¹U above it;
// `y` [q, columns] the right-hand sides as rows of L; `schur`, of leading dimension `lds`, the Schur complement, and rho[:, q..] what belongs
// to it. Q: the rows, at most kBlock, where they and all sizes are constants, else 0; FIXED: products are to be unrolled as well. False where a test failed: then
// `schur` and `tally` are as they were. `meanwhile` is called while the first pivots are waited for: it may compute the other rows.
template <class T, int Q, bool FIXED, class Meanwhile>
GNEWT_INLINE bool eliminate_rows(const Rows<T>& rows, int64_t q, int part, T* __restrict schur, int64_t lds, Tally& tally, Meanwhile meanwhile) {
    static_assert(Q <= kBlock);
    const int64_t n = rows.n, ld = rows.ld, at = q + rows.gap;
    T *r = rows.r, *out = rows.out;
    for (int64_t first = 0; first < q; first += kPanel) {
        const int64_t last = min(first + kPanel, q);
        bool good = true, small = true;
        Vec<T> largest{};
        for (int64_t k = first; k < last; k += kBlock) {
            const int64_t end = min(k + kBlock, last), begin = floor_to_vector<T>(end < q ? end : at);
            Pivots<T> pivots;
            if constexpr (Q > 0) {
                good &= find_pivots<T, Q>(rows, k, pivots);
                meanwhile();
                use_pivots<T, Q>(rows, k, begin, q, pivots, largest);
            } else {
                with_rows(end - k, [&](const auto m) { good &= find_pivots_call<T, int(decltype(m)::value)>(rows, k, pivots); });
                if (k == 0) meanwhile();
                with_rows(end - k, [&](const auto m) { use_pivots_call<T, int(decltype(m)::value)>(rows, k, begin, q, pivots, largest); });
            }
            small &= pivots.squares <= T(1 / (kThreshold * kThreshold));
            if (!good) use_pivots_before(rows, k, end, begin, pivots);
            if (end < last) multiply<T, kSubtract, FIXED>(end - k, end, last, kUpper, at + n - q, out + k * n, n, r + k * ld, ld, r, ld, r, ld);
        }
        T top = 0;
        for (int64_t j = 0; j < kWidth<T>; ++j) top = max(top, largest[j]);
        small &= top <= T(1 / kThreshold);
        if (!good || (!small && !grows_little(rows, q, first, last))) {
            for (int64_t k = 0; k < last; ++k) r[k * (ld + 1)] = out[k * (n + 1)];
            return false;
        }
        const T *l = out + first * n, *u = r + first * ld;
        T* rest = r + q * ld + at;
        if (last < q) {
            multiply<T, kSubtract, FIXED>(last - first, last, q, kUpper, at + n - q, l, n, u, ld, r, ld, r, ld);
            multiply<T, kSubtract, FIXED>(last - first, 0, n - q, part, n - q, l + q, n, u + at, ld, rest, ld, rest, ld);
        } else {  // the last panel: what is left goes straight to the stack
            multiply<T, kSubtract, FIXED>(last - first, 0, n - q, part, n - q, l + q, n, u + at, ld, rest, ld, schur, lds);
        }
    }
    if (q == 0)
        for (int64_t i = 0; i < n; ++i) std::memcpy(schur + i * lds + i, r + i * ld + i, size_t(n - i) * sizeof(T));
    if (count_pivots<T, Q>(out, q, n, tally)) add_subtracted(out, q, n, rows.size + rows.gap);
    return true;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
