// The elimination of a stage's inputs, with the rows of the matrix computed where they are eliminated.
#pragma once
#include "ldl.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// Rows of C + AB, with k rows of B, column by column as they are asked for; columns are counted from `first` on.
template <class T>
struct Product {
    static constexpr bool ready = false;
    int64_t k;
    const T* a;
    int64_t lda;
    Strided<T> b, c;
    int64_t first = 0;
    template <int M, int VECTORS>
    GNEWT_INLINE
    void get(int64_t j, Vec<T> (&u)[M][VECTORS]) const {
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) u[i][v] = load(c.row(i) + j - first + v * kWidth<T>);
        accumulate<T, M, VECTORS, false, true>(u, k, a, lda, b.at + j - first, b.step);
    }
    // M rows and `cols` columns of it.
    template <int M>
    GNEWT_INLINE
    void put(int64_t cols, T* out, int64_t ldo) const {
        constexpr int most = M * 2 <= kTileRows * kTileVectors ? 2 : 1;
        for (int64_t j = 0; j < cols;) {
            if (most > 1 && j + 2 * kWidth<T> <= cols) {
                put_tile<M, most>(j, out, ldo);
                j += most * kWidth<T>;
            } else {
                put_tile<M, 1>(j, out, ldo);
                j += kWidth<T>;
            }
        }
    }

private:
    template <int M, int VECTORS>
    GNEWT_INLINE
    void put_tile(int64_t j, T* out, int64_t ldo) const {
        Vec<T> u[M][VECTORS];
        get(j, u);
        store_tile<T>(u, out + j, ldo);
    }
};

// The pivots of a stage, whose block on the diagonal is computed here.
template <class T, int M, class Between>
GNEWT_INLINE
void find_stage_pivots(const Rows<T>& rows, const Product<T>& block, T shift, Pivots<T>& pivots, Between between) {
    block.template put<M>(M + rows.gap, rows.r, rows.ld);
    if (shift != 0)
        for (int k = 0; k < M; ++k) rows.r[k * (rows.ld + 1)] += shift;
    find_pivots<T, M, true>(rows, 0, pivots, between);
}
template <class T, int M>
__attribute__((noinline)) inline void find_stage_pivots_call(const Rows<T>& rows, const Product<T>& block, T shift,
                                                             Pivots<T>& pivots) {
    find_stage_pivots<T, M>(rows, block, shift, pivots, [](auto) GNEWT_LAMBDA {});
}

// As eliminate_rows, for a stage: no more than kBlock rows to eliminate, whose block on the diagonal can be computed before `meanwhile` is called, and the columns
// `beside` it after that; what stays is AᵀB with k rows of both, and B [k, ldb] is there after `meanwhile`. `between` as in find_pivots, where Q is not 0.
// The Schur complement's lower triangle is computed.
template <class T, int Q, bool FIXED, class Between, class Meanwhile>
GNEWT_INLINE
bool eliminate_stage(const Rows<T>& rows, int64_t q, const Product<T>& block, T shift, const Product<T>& beside,
                     const Strided<T>& a, const T* b, int64_t ldb, T* __restrict schur, int64_t lds, Tally& tally,
                     Between between, Meanwhile meanwhile) {
    const int64_t n = rows.n, ld = rows.ld, at = q + rows.gap;
    bool good = false;
    Pivots<T> pivots;
    Vec<T> largest{};
    if constexpr (Q > 0) {
        find_stage_pivots<T, Q>(rows, block, shift, pivots, between);
        meanwhile();
        good = use_pivots<T, Q>(rows, 0, at, q, pivots, beside, largest);
    } else {
        with_rows<kBlock>(
            q, [&](const auto m) { find_stage_pivots_call<T, int(decltype(m)::value)>(rows, block, shift, pivots); });
        meanwhile();
        with_rows<kBlock>(q, [&](const auto m) {
            good = use_pivots_call<T, int(decltype(m)::value)>(rows, 0, at, q, pivots, beside, largest);
        });
    }
    if (!good) {
        for (int64_t i = 0; i < q; ++i)
            for (int64_t j = 0; j < i; ++j) rows.r[j * ld + i] = rows.r[i * ld + j];
        use_pivots_before(rows, 0, q, at, pivots);
    }
    if (!passes(rows, q, 0, q, good, pivots.little(), largest)) return false;
    multiply_less<T, FIXED>(beside.k, a.at, a.step, b, ldb, q, rows.out + q, n, rows.r + at, ld, n - q, schur, lds);
    if (count_pivots<T, Q>(rows.out, q, n, tally)) add_subtracted(rows.out, q, n, rows.size + rows.gap);
    return true;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
