// A = Uᵀ D⁻¹ U without interchanges, by panels of rows, with tests on every pivot and on what is left of the rows.
//
// The elimination of rows in the quick form: eliminate_rows is called by quick.hpp and chain.hpp, its steps also by
// stage_ldl.hpp. Where a test fails the front is in doubt, and nothing of it is passed on.
#pragma once
#include "gemm.hpp"
#include "pivots.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

constexpr int64_t kPanel = 16;  // rows of a panel: their update of the rest is put off, for one product with k = 16
constexpr int64_t kBlock = 8;   // rows of a block: their numbers on the diagonal fit into registers

// Whether a diagonal entry kept its size: no more than four digits of what was summed into it are gone.
template <class T>
GNEWT_INLINE bool kept(T value, T size) {
    return abs(value) >= T(kDoubtful) * size;
}

// Whether entry (i, j) kept its size, in units in which the sizes on the diagonal are one.
template <class T>
GNEWT_INLINE bool kept(T value, T size_i, T size_j) {
    return abs(value) >= T(kDoubtful) * std::sqrt(size_i) * std::sqrt(size_j);
}

// Whether a row of a whole matrix is lost: none of its entries kept its size.
template <class T>
inline bool any_lost_row(int64_t n, const T* a, int64_t ld, const T* size) {
    for (int64_t i = 0; i < n; ++i) {
        bool any = kept(a[i * ld + i], size[i]);
        for (int64_t j = 0; j < n && !any; ++j) any = j != i && kept(a[i * ld + j], size[i], size[j]);
        if (!any) return true;
    }
    return false;
}

// Set the weights of pairs, whose matrix is whole, where a diagonal entry did not keep its size: such an entry stands
// for more noise from here on. False where a row is lost.
template <class T>
inline bool renew_weights(int64_t n, const T* a, int64_t ld, T* weight) {
    if (any_lost_row(n, a, ld, weight)) return false;
    for (int64_t i = 0; i < n; ++i) {
        const T d = abs(a[i * (ld + 1)]);
        weight[i] = kept(d, weight[i]) ? d : renewed(d, weight[i]);
    }
    return true;
}

// Whether a whole symmetric matrix has a bare row: a row that is not zero, with nothing on its diagonal that would
// betray noise in the row.
template <class T>
inline bool bare_row(int64_t n, const T* a, int64_t ld) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; a[i * (ld + 1)] == 0 && j < n; ++j)
            if (a[i * ld + j] != 0) return true;
    return false;
}

// size[j] += Σ_k |L[k, j]² d_k|, for pivots of both signs: what they subtract from a diagonal entry may cancel. What
// pivots of one sign subtract shows in what is left of the entry.
template <class T>
inline void add_subtracted(const T* rows, int64_t q, int64_t n, T* size) {
    for (int64_t k = 0; k < q; ++k, rows += n) {
        const T d = abs(rows[k]);
        for (int64_t j = q; j < n; ++j) size[j] += d * rows[j] * rows[j];
    }
}

// What the elimination of the first q rows of a matrix works on. In `r`, `rho` and `size` the columns that stay, from q
// on, are moved to the right by `gap`.
template <class T>
struct Rows {
    T* __restrict r;  // [n, ld] row-major
    int64_t ld, n;
    T* __restrict rho;  // [columns, ld] right-hand sides
    int64_t columns;
    T* size;            // [ld] what was summed into each diagonal entry
    T* __restrict out;  // [q, n] on return: D on its diagonal, L = D⁻¹U above it
    T* __restrict y;    // [q, columns] on return: right-hand sides as rows of L
    int64_t gap = 0;
};

// Whether the first row with a pivot in doubt is lost: all of the row is below `share` of what was summed into it. In
// an indefinite matrix a row may lose its pivot alone.
template <class T>
inline bool lost_row(const Rows<T>& rows, int64_t q, T share = T(kDoubtful)) {
    int64_t k = 0;
    while (k < q && kept(rows.r[k * (rows.ld + 1)], rows.size[k])) ++k;
    if (k == q || abs(rows.r[k * (rows.ld + 1)]) >= share * rows.size[k]) return false;
    for (int64_t j = k + 1; j < rows.n; ++j) {
        const int64_t at = j < q ? j : j + rows.gap;
        if (abs(rows.r[k * rows.ld + at]) >= share * std::sqrt(rows.size[k]) * std::sqrt(rows.size[at])) return false;
    }
    return true;
}

// Whether large numbers in the rows [first, last) of L are harmless: what they subtract from a diagonal entry is no
// larger than the entry, up to 1 / kThreshold. In a definite matrix they always are.
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

// The pivots of a block of rows, and its part of L: l[i][k] is L[k, i], and `squares` is the sum of the squares of l.
template <class T>
struct Pivots {
    T d[kBlock], inverse[kBlock], l[kBlock][kBlock], squares;
    bool little() const { return squares <= T(1 / (kThreshold * kThreshold)); }
};

// Eliminate the block on the diagonal of the M rows from `first` on, number by number. Pivots wait for each other:
// between(k as a constant) is called behind the k-th pivot, for work that need not wait. LOWER: the lower triangle is
// given.
template <class T, int M, bool LOWER, class Between>
GNEWT_INLINE void find_pivots(const Rows<T>& rows, int64_t first, Pivots<T>& out, Between between) {
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
GNEWT_INLINE void find_pivots(const Rows<T>& rows, int64_t first, Pivots<T>& out) {
    find_pivots<T, M, false>(rows, first, out, [](auto) GNEWT_LAMBDA {});
}

// Whether these pivots pass their tests; and the right-hand sides as rows of L.
template <class T, int M>
GNEWT_INLINE bool test_pivots(const Rows<T>& rows, int64_t first, const Pivots<T>& pivots) {
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

// Rows that stand in a matrix. Product in stage_ldl.hpp is another kind: its rows are computed when they are read.
template <class T>
struct Standing {
    static constexpr bool ready = true;
    const T* r;
    int64_t ld;
    template <int M, int VECTORS>
    GNEWT_INLINE void get(int64_t j, Vec<T> (&u)[M][VECTORS]) const {
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) u[k][v] = load(r + k * ld + j + v * kWidth<T>);
    }
};

// Eliminate in VECTORS vectors of the M rows from `first` on, from column j on; the vectors stay in registers.
// `largest`: the largest magnitudes in L, in every lane.
template <class T, int M, int VECTORS, class Given>
GNEWT_INLINE void use_pivots_strip(const Rows<T>& rows, int64_t first, int64_t j, int64_t q, const Pivots<T>& pivots,
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
    // From the last vector to the first, and down the rows: numbers that land behind a row of `out` are written over.
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
            } else {  // no number is written behind the last row, nor over columns that stay
                T numbers[w];
                store(numbers, l);
                for (int64_t i = 0; i < end - here; ++i) out[k * n + here + i] = numbers[i];
            }
        }
}

// Eliminate in all columns of the M rows from `begin` on. Whether the pivots pass their tests.
template <class T, int M, class Given>
GNEWT_INLINE bool use_pivots(const Rows<T>& rows, int64_t first, int64_t begin, int64_t q, const Pivots<T>& pivots,
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

// Eliminate in the columns before `begin` of the rows [first, last), where a test failed: lost_row looks at these rows.
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

// The results of the tests on a panel.
template <class T>
struct PanelTests {
    bool good = true;   // all pivots passed
    bool small = true;  // L is small within the blocks on the diagonal
    Vec<T> largest{};   // the largest magnitudes in the rest of L, in every lane
};

// The last tests on the rows [first, last). Where a test fails, the pivots are put on the diagonal of `r`: lost_row
// looks at these rows.
template <class T>
GNEWT_INLINE bool passes(const Rows<T>& rows, int64_t q, int64_t first, int64_t last, const PanelTests<T>& tests) {
    T top = 0;
    for (int64_t j = 0; j < kWidth<T>; ++j) top = max(top, tests.largest[j]);
    const bool small = tests.small & (top <= T(1 / kThreshold));
    if (tests.good && (small || grows_little(rows, q, first, last))) return true;
    for (int64_t k = 0; k < last; ++k) rows.r[k * (rows.ld + 1)] = rows.out[k * (rows.n + 1)];
    return false;
}

// Count the pivots, which are on the diagonal of out[q, n]; whether there are pivots of both signs.
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

// Eliminate the block of rows [k, end) in all columns: pivots, tests, rows of L. `meanwhile` is called while the pivots
// of the first block are waited for.
template <class T, int Q, class Meanwhile>
GNEWT_INLINE void eliminate_block(const Rows<T>& rows, int64_t q, int64_t k, int64_t end, PanelTests<T>& tests,
                                  Meanwhile meanwhile) {
    const int64_t begin = floor_to_vector<T>(end < q ? end : q + rows.gap);
    Pivots<T> pivots;
    const Standing<T> given{rows.r + k * rows.ld, rows.ld};
    if constexpr (Q > 0) {
        find_pivots<T, Q>(rows, k, pivots);
        meanwhile();
        tests.good &= use_pivots<T, Q>(rows, k, begin, q, pivots, given, tests.largest);
    } else {
        with_rows<kBlock>(end - k,
                          [&](const auto m) { find_pivots_call<T, int(decltype(m)::value)>(rows, k, pivots); });
        if (k == 0) meanwhile();
        with_rows<kBlock>(end - k, [&](const auto m) {
            tests.good &= use_pivots_call<T, int(decltype(m)::value)>(rows, k, begin, q, pivots, given, tests.largest);
        });
    }
    tests.small &= pivots.little();
    if (!tests.good) use_pivots_before(rows, k, end, begin, pivots);
}

// Subtract what the panel of rows [first, last) eliminates from the other rows. Behind the last panel, what is left
// goes straight to `schur`.
template <class T, bool FIXED>
GNEWT_INLINE void apply_panel(const Rows<T>& rows, int64_t q, int64_t first, int64_t last, Triangle triangle,
                              View<T> schur) {
    const int64_t n = rows.n, ld = rows.ld, at = q + rows.gap;
    const ConstView<T> l{rows.out + first * n, n}, u{rows.r + first * ld, ld};
    const View<T> r{rows.r, ld}, rest = r.from(q, at);
    const Extent stays{0, n - q, triangle, n - q};
    if (last < q) {
        multiply<T, kSubtract, FIXED>(last - first, {last, q, kUpper, at + n - q}, l, u, r);
        multiply<T, kSubtract, FIXED>(last - first, stays, l.from(0, q), u.from(0, at), rest);
    } else {
        multiply<T, kSubtract, FIXED>(last - first, stays, l.from(0, q), u.from(0, at), rest, schur);
    }
}

// Eliminate the first q rows. These rows hold the upper triangle; of the other rows `triangle` is given, and of the
// Schur complement the same triangle is computed.
//
// On return rows.out and rows.y are filled, `schur` is the Schur complement, and rho[:, q..] belongs to it. Q: the
// rows, at most kBlock, where they and all sizes are constants, else 0. FIXED: products are to be unrolled as well.
// False where a test failed: then `schur` and `tally` are as they were. `meanwhile` is called while the first pivots
// are waited for: it may compute the other rows.
template <class T, int Q, bool FIXED, class Meanwhile>
GNEWT_INLINE bool eliminate_rows(const Rows<T>& rows, int64_t q, Triangle triangle, View<T> schur, Tally& tally,
                                 Meanwhile meanwhile) {
    static_assert(Q <= kBlock);
    const int64_t n = rows.n, ld = rows.ld, at = q + rows.gap;
    T *r = rows.r, *out = rows.out;
    for (int64_t first = 0; first < q; first += kPanel) {
        const int64_t last = min(first + kPanel, q);
        PanelTests<T> tests;
        for (int64_t k = first; k < last; k += kBlock) {
            const int64_t end = min(k + kBlock, last);
            eliminate_block<T, Q>(rows, q, k, end, tests, meanwhile);
            if (end < last)
                multiply<T, kSubtract, FIXED>(end - k, {end, last, kUpper, at + n - q}, {out + k * n, n},
                                              {r + k * ld, ld}, {r, ld});
        }
        if (!passes(rows, q, first, last, tests)) return false;
        apply_panel<T, FIXED>(rows, q, first, last, triangle, schur);
    }
    if (q == 0)
        for (int64_t i = 0; i < n; ++i)
            std::memcpy(schur.at + i * (schur.ld + 1), r + i * (ld + 1), size_t(n - i) * sizeof(T));
    if (count_pivots<T, Q>(out, q, n, tally)) add_subtracted(out, q, n, rows.size + rows.gap);
    return true;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
