// A = Uᵀ D⁻¹ U without interchanges, by panels of rows, with tests on every pivot and on what is left.
#pragma once
#include "gemm.hpp"
#include "pivots.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

constexpr int64_t kPanel = 16, kBlock = 8;  // rows whose update of the rest is put off; rows that registers hold

// Whether a diagonal entry kept its size.
template <class T>
GNEWT_INLINE
bool kept(T value, T size) { return abs(value) >= T(kDoubtful) * size; }

// Whether entry (i, j) kept its size, in units in which what was summed into the diagonal is one.
template <class T>
GNEWT_INLINE
bool kept(T value, T size_i, T size_j) { return abs(value) >= T(kDoubtful) * std::sqrt(size_i) * std::sqrt(size_j); }

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

// Whether a row that is not zero has nothing on its diagonal, in a whole symmetric matrix: nothing would betray noise in it.
template <class T>
inline bool bare_row(int64_t n, const T* a, int64_t ld) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; a[i * (ld + 1)] == 0 && j < n; ++j)
            if (a[i * ld + j] != 0) return true;
    return false;
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
            if (!(abs(l[j]) <= T(1 / kThreshold)) &&
                !(abs(l[j] * (l[j] * d)) * T(kThreshold) <= rows.size[j < q ? j : j + rows.gap]))
                return false;
    }
    return true;
}

// The pivots of a few rows and what they multiply each other by: l[i][k] is L[k, i], and `squares` sums the squares of these.
template <class T>
struct Pivots {
    T d[kBlock], inverse[kBlock], l[kBlock][kBlock], squares;
    bool little() const { return squares <= T(1 / (kThreshold * kThreshold)); }
};

// The elimination of the block on the diagonal of the M rows from `first` on, number by number. Pivots wait for each other: between(k as a constant) is called
// behind the k-th, and may do what need not wait. LOWER: the lower triangle is given.
template <class T, int M, bool LOWER, class Between>
GNEWT_INLINE
void find_pivots(const Rows<T>& rows, int64_t first, Pivots<T>& out, Between between) {
    const T* r = rows.r + first * (rows.ld + 1);
    T a[M][M], squares = 0;
#pragma GCC unroll 8
    for (int k = 0; k < M; ++k)
#pragma GCC unroll 8
        for (int i = k; i < M; ++i) a[k][i] = LOWER ? r[i * rows.ld + k] : r[k * rows.ld + i];
    for_constants<M>([&](const auto number) GNEWT_LAMBDA {
        constexpr int k = int(decltype(number)::value);
        out.d[k] = a[k][k];
        const T inverse = out.inverse[k] = 1 / a[k][k];
#pragma GCC unroll 8
        for (int i = k + 1; i < M; ++i) {
            out.l[i][k] = a[i][k] = a[k][i] * inverse;
            squares += a[i][k] * a[i][k];
#pragma GCC unroll 8
            for (int j = k + 1; j <= i; ++j) a[j][i] -= a[j][k] * a[k][i];
        }
        between(number);
    });
    out.squares = squares;
}
template <class T, int M>
GNEWT_INLINE
void find_pivots(const Rows<T>& rows, int64_t first, Pivots<T>& out) {
    find_pivots<T, M, false>(rows, first, out, [](auto) GNEWT_LAMBDA {});
}

// Whether these pivots are good; and the right-hand sides as rows of L.
template <class T, int M>
GNEWT_INLINE
bool test_pivots(const Rows<T>& rows, int64_t first, const Pivots<T>& pivots) {
    const int64_t ld = rows.ld, columns = rows.columns;
    const T *d = pivots.d, *size = rows.size + first;
    bool good = true;
#pragma GCC unroll 2
    for (int k = 0; k + 4 <= M; k += 4) {
        const Quad<T> magnitude = abs4<T>(load4(d + k));
        good &= all4((magnitude >= T(kDoubtful) * load4(size + k)) & (magnitude > Precision<T>::tiny));
    }
#pragma GCC unroll 4
    for (int k = M / 4 * 4; k < M; ++k) good &= kept(d[k], size[k]) & (abs(d[k]) > Precision<T>::tiny);
    for (int64_t c = 0; c < columns; ++c) {
        T x[M], *y = rows.y + first * columns + c;
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) x[k] = rows.rho[c * ld + first + k];
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) {
            y[k * columns] = x[k] * pivots.inverse[k];
#pragma GCC unroll 8
            for (int i = k + 1; i < M; ++i) x[i] -= pivots.l[i][k] * x[k];
        }
    }
    return good;
}

// Rows as they stand in a matrix; another kind computes them as they are asked for (stage_ldl.hpp).
template <class T>
struct Standing {
    static constexpr bool ready = true;
    const T* r;
    int64_t ld;
    template <int M, int VECTORS>
    GNEWT_INLINE
    void get(int64_t j, Vec<T> (&u)[M][VECTORS]) const {
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) u[k][v] = load(r + k * ld + j + v * kWidth<T>);
    }
};

// Eliminate in VECTORS vectors of the rest of these rows, from column j on: they stay in registers. `largest`: of the magnitudes in L.
template <class T, int M, int VECTORS, class Given>
GNEWT_INLINE
void use_pivots_strip(const Rows<T>& rows, int64_t first, int64_t j, int64_t q, const Pivots<T>& pivots,
                      const Given& given, Vec<T>& largest) {
    constexpr int64_t w = kWidth<T>;
    const int64_t ld = rows.ld, n = rows.n, columns = rows.columns, gap = rows.gap;
    const bool stays = gap == 0 || j >= q;
    const int64_t to = stays ? j - gap : j, end = stays ? n : q;
    T *r = rows.r + first * ld + j, *out = rows.out + first * n, *rho = rows.rho + j;
    const T* y = rows.y + first * columns;
    Vec<T> u[M][VECTORS];
    given.get(j, u);
#pragma GCC unroll 8
    for (int k = 0; k < M; ++k)
#pragma GCC unroll 8
        for (int i = k + 1; i < M; ++i)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) u[i][v] -= pivots.l[i][k] * u[k][v];
    for (int64_t c = 0; c < columns; ++c)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) {
            Vec<T> x = load(rho + c * ld + v * w), other{};
#pragma GCC unroll 8
            for (int k = 0; k < M; ++k) (k % 2 ? other : x) -= y[k * columns + c] * u[k][v];
            store(rho + c * ld + v * w, x + other);
        }
    // From the last vector to the first, and down the rows: what is written behind a row of `out` is written over.
#pragma GCC unroll 8
    for (int v = VECTORS - 1; v >= 0; --v)
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) {
            store(r + k * ld + v * w, u[k][v]);
            const Vec<T> l = u[k][v] * pivots.inverse[k], magnitude = vabs<T>(l);
            const int64_t here = to + v * w;
            largest = magnitude > largest ? magnitude : largest;
            if (stays ? k * n + here + w <= M * n : here + w <= q) {
                store(out + k * n + here, l);
            } else {  // nothing is written behind the last row, nor over columns that stay
                T numbers[w];
                store(numbers, l);
                for (int64_t i = 0; i < end - here; ++i) out[k * n + here + i] = numbers[i];
            }
        }
}

// ... and in all of it, from the column `begin` on. Whether the pivots are good.
template <class T, int M, class Given>
GNEWT_INLINE
bool use_pivots(const Rows<T>& rows, int64_t first, int64_t begin, int64_t q, const Pivots<T>& pivots,
                const Given& given, Vec<T>& largest) {
    constexpr int sums = kTileRows * kTileVectors, most = Given::ready || sums < 2 * M ? 1
                                                          : sums < 4 * M               ? sums / M
                                                                                       : 4;
    constexpr int64_t w = kWidth<T>;
    const bool good = test_pivots<T, M>(rows, first, pivots);
    T* out = rows.out + first * (rows.n + 1);
    Vec<T> top = largest;
    int64_t j = rows.ld;
    if constexpr (most > 1)
        for (; j - begin >= most * w;) use_pivots_strip<T, M, most>(rows, first, j -= most * w, q, pivots, given, top);
    for (; j > begin;) use_pivots_strip<T, M, 1>(rows, first, j -= w, q, pivots, given, top);
#pragma GCC unroll 8
    for (int k = 0; k < M; ++k) {
        out[k * rows.n + k] = pivots.d[k];
#pragma GCC unroll 8
        for (int i = k + 1; i < M; ++i) out[k * rows.n + i] = pivots.l[i][k];
    }
    largest = top;
    return good;
}

// ... and in the columns before `begin`, where a test failed: it is asked what is left of these rows.
template <class T>
inline void use_pivots_before(const Rows<T>& rows, int64_t first, int64_t last, int64_t begin,
                              const Pivots<T>& pivots) {
    for (int64_t k = first; k < last; ++k)
        for (int64_t i = k + 1; i < last; ++i)
            for (int64_t j = i; j < begin; ++j)
                rows.r[i * rows.ld + j] -= pivots.l[i - first][k - first] * rows.r[k * rows.ld + j];
}

template <class T, int M>
__attribute__((noinline)) inline void find_pivots_call(const Rows<T>& rows, int64_t first, Pivots<T>& out) {
    find_pivots<T, M>(rows, first, out);
}
template <class T, int M, class Given>
__attribute__((noinline)) inline bool use_pivots_call(const Rows<T>& rows, int64_t first, int64_t begin, int64_t q,
                                                      const Pivots<T>& pivots, const Given& given, Vec<T>& largest) {
    return use_pivots<T, M>(rows, first, begin, q, pivots, given, largest);
}

// The last tests on the rows [first, last). Where one fails, their pivots are put on the diagonal of `r`: it is asked what is left of these rows.
template <class T>
GNEWT_INLINE
bool passes(const Rows<T>& rows, int64_t q, int64_t first, int64_t last, bool good, bool small, Vec<T> largest) {
    T top = 0;
    for (int64_t j = 0; j < kWidth<T>; ++j) top = max(top, largest[j]);
    small &= top <= T(1 / kThreshold);
    if (good && (small || grows_little(rows, q, first, last))) return true;
    for (int64_t k = 0; k < last; ++k) rows.r[k * (rows.ld + 1)] = rows.out[k * (rows.n + 1)];
    return false;
}

// Count the pivots, which are on the diagonal of out[q, n]; whether there are some of both signs.
template <class T, int Q>
GNEWT_INLINE
bool count_pivots(const T* out, int64_t q, int64_t n, Tally& tally) {
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
GNEWT_INLINE
bool eliminate_rows(const Rows<T>& rows, int64_t q, int part, T* __restrict schur, int64_t lds, Tally& tally,
                    Meanwhile meanwhile) {
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
            const Standing<T> given{r + k * ld, ld};
            if constexpr (Q > 0) {
                find_pivots<T, Q>(rows, k, pivots);
                meanwhile();
                good &= use_pivots<T, Q>(rows, k, begin, q, pivots, given, largest);
            } else {
                with_rows<kBlock>(end - k,
                                  [&](const auto m) { find_pivots_call<T, int(decltype(m)::value)>(rows, k, pivots); });
                if (k == 0) meanwhile();
                with_rows<kBlock>(end - k, [&](const auto m) {
                    good &= use_pivots_call<T, int(decltype(m)::value)>(rows, k, begin, q, pivots, given, largest);
                });
            }
            small &= pivots.little();
            if (!good) use_pivots_before(rows, k, end, begin, pivots);
            if (end < last)
                multiply<T, kSubtract, FIXED>(end - k, end, last, kUpper, at + n - q, out + k * n, n, r + k * ld, ld, r,
                                              ld, r, ld);
        }
        if (!passes(rows, q, first, last, good, small, largest)) return false;
        const T *l = out + first * n, *u = r + first * ld;
        T* rest = r + q * ld + at;
        if (last < q) {
            multiply<T, kSubtract, FIXED>(last - first, last, q, kUpper, at + n - q, l, n, u, ld, r, ld, r, ld);
            multiply<T, kSubtract, FIXED>(last - first, 0, n - q, part, n - q, l + q, n, u + at, ld, rest, ld, rest,
                                          ld);
        } else {  // the last panel: what is left goes straight to the stack
            multiply<T, kSubtract, FIXED>(last - first, 0, n - q, part, n - q, l + q, n, u + at, ld, rest, ld, schur,
                                          lds);
        }
    }
    if (q == 0)
        for (int64_t i = 0; i < n; ++i) std::memcpy(schur + i * lds + i, r + i * ld + i, size_t(n - i) * sizeof(T));
    if (count_pivots<T, Q>(out, q, n, tally)) add_subtracted(out, q, n, rows.size + rows.gap);
    return true;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
