// The elimination of a stage's inputs, with the rows of the matrix computed where they are eliminated: products go from
// registers into the elimination. Called by chain.hpp.
#pragma once
#include "ldl.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// Rows of C + AB, with k rows of B, computed when they are read; columns are counted from `first` on.
template <class T>
struct Product {
    static constexpr bool ready = false;
    int64_t k;
    ConstView<T> a;
    Strided<T> b, c;
    int64_t first = 0;
    template <int M, int VECTORS>
    GNEWT_INLINE void get(int64_t j, Vec<T> (&u)[M][VECTORS]) const {
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) u[i][v] = load(c.row(i) + j - first + v * kWidth<T>);
        accumulate<T, M, VECTORS, false, true>(u, k, a, b.view().from(0, j - first));
    }
    // Write M rows and `cols` columns.
    template <int M>
    GNEWT_INLINE void put(int64_t cols, View<T> out) const {
        constexpr int most = M * 2 <= kTileRows * kTileVectors ? 2 : 1;
        for (int64_t j = 0; j < cols;) {
            if (most > 1 && j + 2 * kWidth<T> <= cols) {
                put_tile<M, most>(j, out);
                j += most * kWidth<T>;
            } else {
                put_tile<M, 1>(j, out);
                j += kWidth<T>;
            }
        }
    }

private:
    template <int M, int VECTORS>
    GNEWT_INLINE void put_tile(int64_t j, View<T> out) const {
        Vec<T> u[M][VECTORS];
        get(j, u);
        store_tile<T>(u, out.from(0, j));
    }
};

// The rows of a stage before its inputs are eliminated.
template <class T>
struct StageProducts {
    Product<T> block;   // on the diagonal of the inputs
    T shift;            // added to the diagonal of `block`
    Product<T> beside;  // rows of the inputs, columns of the states
    Term<T> rest;       // the block on the diagonal of the states
};

// The pivots of a stage, whose block on the diagonal is computed here.
template <class T, int M, class Between>
GNEWT_INLINE void find_stage_pivots(const Rows<T>& rows, const StageProducts<T>& stage, Pivots<T>& pivots,
                                    Between between) {
    stage.block.template put<M>(M + rows.gap, {rows.r, rows.ld});
    if (stage.shift != 0)
        for (int k = 0; k < M; ++k) rows.r[k * (rows.ld + 1)] += stage.shift;
    find_pivots<T, M, true>(rows, 0, pivots, between);
}
template <class T, int M>
__attribute__((noinline)) inline void find_stage_pivots_call(const Rows<T>& rows, const StageProducts<T>& stage,
                                                             Pivots<T>& pivots) {
    find_stage_pivots<T, M>(rows, stage, pivots, [](auto) GNEWT_LAMBDA {});
}

// As eliminate_rows, for a stage with no more than kBlock rows to eliminate. stage.block must be there when this is
// called; stage.beside and stage.rest are read after `meanwhile` was called. `between` is called as in find_pivots,
// where Q is not 0. The lower triangle of the Schur complement is computed.
template <class T, int Q, bool FIXED, class Between, class Meanwhile>
GNEWT_INLINE bool eliminate_stage(const Rows<T>& rows, int64_t q, const StageProducts<T>& stage, View<T> schur,
                                  Tally& tally, Between between, Meanwhile meanwhile) {
    const int64_t n = rows.n, ld = rows.ld, at = q + rows.gap;
    Pivots<T> pivots;
    PanelTests<T> tests;
    if constexpr (Q > 0) {
        find_stage_pivots<T, Q>(rows, stage, pivots, between);
        meanwhile();
        tests.good = use_pivots<T, Q>(rows, 0, at, q, pivots, stage.beside, tests.largest);
    } else {
        with_rows<kBlock>(
            q, [&](const auto m) { find_stage_pivots_call<T, int(decltype(m)::value)>(rows, stage, pivots); });
        meanwhile();
        with_rows<kBlock>(q, [&](const auto m) {
            tests.good =
                use_pivots_call<T, int(decltype(m)::value)>(rows, 0, at, q, pivots, stage.beside, tests.largest);
        });
    }
    tests.small = pivots.little();
    if (!tests.good) {
        for (int64_t i = 0; i < q; ++i)
            for (int64_t j = 0; j < i; ++j) rows.r[j * ld + i] = rows.r[i * ld + j];
        use_pivots_before(rows, 0, q, at, pivots);
    }
    if (!passes(rows, q, 0, q, tests)) return false;
    multiply_less<T, FIXED>(n - q, stage.rest, {q, {rows.out + q, n}, {rows.r + at, ld}}, schur);
    if (count_pivots<T, Q>(rows.out, q, n, tally)) add_subtracted(rows.out, q, n, rows.size + rows.gap);
    return true;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
