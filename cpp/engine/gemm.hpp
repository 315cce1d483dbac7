// The matrix kernel: OUT (=, C +, C -) AᵀB on row-major matrices, whole or one triangle. Matrices are not packed: most
// fronts are small and stay in the cache (packed.hpp is for the others).
//
// All products of the eliminations are computed here, tile by tile. FIXED functions are unrolled where they are called,
// for sizes that the compiler knows. The others (*_call) are compiled once; they take matrices by reference, since a
// matrix that was just put together would be copied to the stack by one load that waits for two stores.
#pragma once
#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

enum Update { kSet, kAdd, kSubtract };

// The columns that are computed of row i: all, those from i on, or those up to i.
enum Triangle { kWhole, kUpper, kLower };

// A row-major matrix in memory: its first number, and the distance from one row to the next.
template <class T>
struct ConstView {
    const T* at;
    int64_t ld;
    GNEWT_INLINE ConstView from(int64_t i, int64_t j) const { return {at + i * ld + j, ld}; }
};
template <class T>
struct View {
    T* at;
    int64_t ld;
    GNEWT_INLINE View from(int64_t i, int64_t j) const { return {at + i * ld + j, ld}; }
    GNEWT_INLINE operator ConstView<T>() const { return {at, ld}; }
};

// Rows that begin at ever larger distances, as those of a packed triangle do.
template <class T>
struct Strided {
    const T* at;
    int64_t step, dstep = 0;
    GNEWT_INLINE const T* row(int64_t i) const { return at + i * step + dstep * (i * (i - 1) / 2); }
    // The same rows as a matrix, where dstep is 0.
    GNEWT_INLINE ConstView<T> view() const { return {at, step}; }
};

// Memory that is prefetched while something is computed, a little with every step: prefetches take no time there.
struct Asking {
    const char* at;
    int64_t step;
    GNEWT_INLINE void next() {
        __builtin_prefetch(at, 0, 3);
        at += step;
    }
};
struct Silent {
    GNEWT_INLINE void next() {}
};

// acc (+, -)= AᵀB with k rows of A and B; TRANSPOSED: acc (+, -)= AB.
template <class T, int ROWS, int VECTORS, bool MINUS, bool TRANSPOSED, class Ask = Silent>
GNEWT_INLINE void accumulate(Vec<T> (&acc)[ROWS][VECTORS], int64_t k, ConstView<T> a, ConstView<T> b, Ask&& ask = {}) {
    const T *left_at = a.at, *right_at = b.at;
    for (int64_t l = 0; l < k; ++l, left_at += TRANSPOSED ? 1 : a.ld, right_at += b.ld) {
        ask.next();
        Vec<T> right[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) right[v] = load(right_at + v * kWidth<T>);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; ++i) {
            const T left = left_at[TRANSPOSED ? i * a.ld : i];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) {
                if (MINUS)
                    acc[i][v] -= left * right[v];
                else
                    acc[i][v] += left * right[v];
            }
        }
    }
}

template <class T, int ROWS, int VECTORS>
GNEWT_INLINE void store_tile(const Vec<T> (&acc)[ROWS][VECTORS], View<T> out) {
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) store(out.at + i * out.ld + v * kWidth<T>, acc[i][v]);
}

// OUT (=, C +, C -) AᵀB on one tile; `out` may be `c` itself.
template <class T, int ROWS, int VECTORS, int UPDATE>
GNEWT_INLINE void tile(int64_t k, ConstView<T> a, ConstView<T> b, ConstView<T> c, View<T> out) {
    Vec<T> acc[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) acc[i][v] = UPDATE == kSet ? Vec<T>{} : load(c.at + i * c.ld + v * kWidth<T>);
    accumulate<T, ROWS, VECTORS, UPDATE == kSubtract, false>(acc, k, a, b);
    store_tile<T>(acc, out);
}

// How many vectors a tile of so many rows has: enough sums to hide the time that each of them takes.
constexpr int widest(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : kTileVectors; }

// Call run(column, tile width as a constant) so that tiles cover `cols` columns and no tile is narrow without need.
template <class T, int MOST, class Run>
GNEWT_INLINE void over_columns(int64_t cols, Run run) {
    constexpr int64_t w = kWidth<T>;
    int64_t j = 0, left = cols / w;
    for (; left > MOST + 1 || left == MOST; left -= MOST, j += MOST * w) run(j, Length<MOST>{});
    if constexpr (MOST > 4)
        if (left > 4) {
            run(j, Length<4>{});
            left -= 4, j += 4 * w;
        }
    if constexpr (MOST > 3)
        if (left == 3) return run(j, Length<3>{});
    for (; left > 1; left -= 2, j += 2 * w) run(j, Length<2>{});
    if (left) run(j, Length<1>{});
}

// The product in ROWS rows and `cols` columns.
template <class T, int ROWS, int UPDATE>
GNEWT_INLINE void row_of_tiles(int64_t k, ConstView<T> a, ConstView<T> b, ConstView<T> c, View<T> out, int64_t cols) {
    over_columns<T, widest(ROWS)>(cols, [&](int64_t j, const auto width) GNEWT_LAMBDA {
        tile<T, ROWS, int(decltype(width)::value), UPDATE>(k, a, b.from(0, j), c.from(0, j), out.from(0, j));
    });
}

// Call run(first row, number of rows as a constant) for tiles that cover the rows [first, last).
template <int ROWS, class Run>
GNEWT_INLINE void last_rows(int64_t first, int64_t rows, Run run) {
    if (rows == ROWS)
        run(first, Length<ROWS>{});
    else if constexpr (ROWS > 1)
        last_rows<ROWS - 1>(first, rows, run);
}
template <class Run>
GNEWT_INLINE void over_rows(int64_t first, int64_t last, Run run) {
    for (; last - first >= kTileRows; first += kTileRows) run(first, Length<kTileRows>{});
    if (first < last) last_rows<kTileRows - 1>(first, last - first, run);
}

// The entries (i, j) of a product that are computed: i in [first, last), j in [0, cols) and in a triangle.
struct Extent {
    int64_t first, last;
    Triangle triangle;
    int64_t cols;
};

// OUT[i, j] (=, C[i, j] +, C[i, j] -) Σ_l A[l, i] B[l, j], l in [0, k), on an extent. Columns are rounded up to whole
// vectors and rows to tiles, so a little of the other triangle is written too: both must be scratch.
template <class T, int UPDATE>
GNEWT_INLINE void multiply_inline(int64_t k, const Extent extent, ConstView<T> a, ConstView<T> b, ConstView<T> c,
                                  View<T> out) {
    const int64_t cols = padded<T>(extent.cols);
    over_rows(extent.first, extent.last, [&](int64_t i, const auto rows) GNEWT_LAMBDA {
        const int64_t j = extent.triangle == kUpper ? floor_to_vector<T>(i) : 0,
                      end = extent.triangle == kLower ? padded<T>(min(i + rows, extent.last)) : cols;
        row_of_tiles<T, int(decltype(rows)::value), UPDATE>(k, a.from(0, i), b.from(0, j), c.from(i, j), out.from(i, j),
                                                            end - j);
    });
}

template <class T, int UPDATE>
__attribute__((noinline)) inline void multiply_call(int64_t k, const Extent& extent, const ConstView<T>& a,
                                                    const ConstView<T>& b, const ConstView<T>& c, const View<T>& out) {
    multiply_inline<T, UPDATE>(k, extent, a, b, c, out);
}

// FIXED: the sizes are constants where this is called, and every loop is to be unrolled there.
template <class T, int UPDATE, bool FIXED>
GNEWT_INLINE void multiply(int64_t k, const Extent& extent, ConstView<T> a, ConstView<T> b, ConstView<T> c,
                           View<T> out) {
    if constexpr (FIXED)
        multiply_inline<T, UPDATE>(k, extent, a, b, c, out);
    else
        multiply_call<T, UPDATE>(k, extent, a, b, c, out);
}
// The same with C = OUT.
template <class T, int UPDATE, bool FIXED>
GNEWT_INLINE void multiply(int64_t k, const Extent& extent, ConstView<T> a, ConstView<T> b, View<T> out) {
    multiply<T, UPDATE, FIXED>(k, extent, a, b, out, out);
}

// OUT = AᵀB, whole, while memory is prefetched.
template <class T, class Ask>
GNEWT_INLINE void multiply_asking_inline(int64_t k, int64_t rows, int64_t cols, ConstView<T> a, ConstView<T> b,
                                         View<T> out, Ask ask) {
    over_rows(0, rows, [&](int64_t i, const auto height) GNEWT_LAMBDA {
        constexpr int r = int(decltype(height)::value);
        over_columns<T, widest(r)>(padded<T>(cols), [&](int64_t j, const auto width) GNEWT_LAMBDA {
            Vec<T> acc[r][int(decltype(width)::value)] = {};
            accumulate<T, r, int(decltype(width)::value), false, false>(acc, k, a.from(0, i), b.from(0, j), ask);
            store_tile<T>(acc, out.from(i, j));
        });
    });
}
template <class T>
__attribute__((noinline)) inline void multiply_asking_call(int64_t k, int64_t rows, int64_t cols, const ConstView<T>& a,
                                                           const ConstView<T>& b, const View<T>& out,
                                                           const Asking& ask) {
    multiply_asking_inline<T>(k, rows, cols, a, b, out, ask);
}
template <class T, bool FIXED>
GNEWT_INLINE void multiply_asking(int64_t k, int64_t rows, int64_t cols, ConstView<T> a, ConstView<T> b, View<T> out,
                                  Asking ask = {nullptr, 0}) {
    if constexpr (FIXED)
        multiply_asking_inline<T>(k, rows, cols, a, b, out, Silent{});
    else
        multiply_asking_call<T>(k, rows, cols, a, b, out, ask);
}
// How many steps multiply_asking takes, or a few more.
template <class T>
inline int64_t steps_of_multiply(int64_t k, int64_t rows, int64_t cols) {
    return (rows + kTileRows - 1) / kTileRows * k * ((padded<T>(cols) / kWidth<T> + kTileVectors - 1) / kTileVectors);
}

// A product AᵀB of matrices with k rows.
template <class T>
struct Term {
    int64_t k;
    ConstView<T> a, b;
};

// OUT = plus - minus, the lower triangle of n rows.
template <class T>
GNEWT_INLINE void multiply_less_inline(int64_t n, const Term<T> plus, const Term<T> minus, View<T> out) {
    over_rows(0, n, [&](int64_t i, const auto rows) GNEWT_LAMBDA {
        constexpr int r = int(decltype(rows)::value);
        over_columns<T, widest(r)>(padded<T>(min(i + r, n)), [&](int64_t j, const auto width) GNEWT_LAMBDA {
            constexpr int vectors = int(decltype(width)::value);
            Vec<T> acc[r][vectors] = {};
            accumulate<T, r, vectors, false, false>(acc, plus.k, plus.a.from(0, i), plus.b.from(0, j));
            accumulate<T, r, vectors, true, false>(acc, minus.k, minus.a.from(0, i), minus.b.from(0, j));
            store_tile<T>(acc, out.from(i, j));
        });
    });
}
template <class T>
__attribute__((noinline)) inline void multiply_less_call(int64_t n, const Term<T>& plus, const Term<T>& minus,
                                                         const View<T>& out) {
    multiply_less_inline<T>(n, plus, minus, out);
}
template <class T, bool FIXED>
GNEWT_INLINE void multiply_less(int64_t n, const Term<T>& plus, const Term<T>& minus, View<T> out) {
    if constexpr (FIXED)
        multiply_less_inline<T>(n, plus, minus, out);
    else
        multiply_less_call<T>(n, plus, minus, out);
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
