// The one matrix kernel: C (=, +=, -=) AᵀB on row-major matrices, whole or upper triangle. No packing: fronts are
// small and stay in cache.
#pragma once
#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

enum Update { kSet, kAdd, kSubtract };

// Which columns of a row i are computed: all, those from i on, or those up to i.
enum Part { kWhole, kUpper, kLower };

// Rows that begin at ever larger distances, as those of a packed triangle do.
template <class T>
struct Strided {
    const T* at;
    int64_t step, dstep = 0;
    GNEWT_INLINE
    const T* row(int64_t i) const { return at + i * step + dstep * (i * (i - 1) / 2); }
};

// Memory that is asked for while something is computed, a little with every step: it takes no time there.
struct Asking {
    const char* at;
    int64_t step;
    GNEWT_INLINE
    void next() {
        __builtin_prefetch(at, 0, 3);
        at += step;
    }
};
struct Silent {
    GNEWT_INLINE
    void next() {}
};

// acc (+, -)= AᵀB, or AB where A is TRANSPOSED.
template <class T, int ROWS, int VECTORS, bool MINUS, bool TRANSPOSED, class Ask = Silent>
GNEWT_INLINE
void accumulate(Vec<T> (&acc)[ROWS][VECTORS], int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb,
                Ask&& ask = {}) {
    for (int64_t l = 0; l < k; ++l, a += TRANSPOSED ? 1 : lda, b += ldb) {
        ask.next();
        Vec<T> right[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) right[v] = load(b + v * kWidth<T>);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; ++i) {
            const T left = a[TRANSPOSED ? i * lda : i];
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
GNEWT_INLINE
void store_tile(const Vec<T> (&acc)[ROWS][VECTORS], T* out, int64_t ldo) {
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) store(out + i * ldo + v * kWidth<T>, acc[i][v]);
}

// OUT (=, C +, C -) AᵀB on one tile; `out` may be `c` itself.
template <class T, int ROWS, int VECTORS, int UPDATE>
GNEWT_INLINE
void tile(int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, const T* c, int64_t ldc, T* out, int64_t ldo) {
    Vec<T> acc[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) acc[i][v] = UPDATE == kSet ? Vec<T>{} : load(c + i * ldc + v * kWidth<T>);
    accumulate<T, ROWS, VECTORS, UPDATE == kSubtract, false>(acc, k, a, lda, b, ldb);
    store_tile<T>(acc, out, ldo);
}

// How many vectors a tile of so many rows has: enough sums to hide the time that each takes.
constexpr int widest(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : kTileVectors; }

// Call run(column, tile width as a constant) so that tiles cover `cols` columns and none is narrow that need not be.
template <class T, int MOST, class Run>
GNEWT_INLINE
void over_columns(int64_t cols, Run run) {
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

template <class T, int ROWS, int UPDATE>
GNEWT_INLINE
void row_of_tiles(int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, const T* c, int64_t ldc, T* out,
                  int64_t ldo, int64_t cols) {
    over_columns<T, widest(ROWS)>(cols, [&](int64_t j, const auto width) GNEWT_LAMBDA {
        tile<T, ROWS, int(decltype(width)::value), UPDATE>(k, a, lda, b + j, ldb, c + j, ldc, out + j, ldo);
    });
}

// Call run(first row, number of rows as a constant) for tiles that cover the rows [first, last).
template <int ROWS, class Run>
GNEWT_INLINE
void last_rows(int64_t first, int64_t rows, Run run) {
    if (rows == ROWS)
        run(first, Length<ROWS>{});
    else if constexpr (ROWS > 1)
        last_rows<ROWS - 1>(first, rows, run);
}
template <class Run>
GNEWT_INLINE
void over_rows(int64_t first, int64_t last, Run run) {
    for (; last - first >= kTileRows; first += kTileRows) run(first, Length<kTileRows>{});
    if (first < last) last_rows<kTileRows - 1>(first, last - first, run);
}

// OUT[i, j] (=, C[i, j] +, C[i, j] -) Σ_l A[l, i] B[l, j] for i in [first, last), j in a part of [0, cols). Columns are rounded up
// to whole vectors and rows to tiles, so a little of the other triangle is written too: both must be scratch.
template <class T, int UPDATE>
GNEWT_INLINE
void multiply_inline(int64_t k, int64_t first, int64_t last, int part, int64_t cols, const T* a, int64_t lda,
                     const T* b, int64_t ldb, const T* c, int64_t ldc, T* out, int64_t ldo) {
    cols = padded<T>(cols);
    over_rows(first, last, [&](int64_t i, const auto rows) GNEWT_LAMBDA {
        const int64_t j = part == kUpper ? floor_to_vector<T>(i) : 0,
                      end = part == kLower ? padded<T>(min(i + rows, last)) : cols;
        row_of_tiles<T, int(decltype(rows)::value), UPDATE>(k, a + i, lda, b + j, ldb, c + i * ldc + j, ldc,
                                                            out + i * ldo + j, ldo, end - j);
    });
}

template <class T, int UPDATE>
__attribute__((noinline)) inline void multiply_call(int64_t k, int64_t first, int64_t last, int part, int64_t cols,
                                                    const T* a, int64_t lda, const T* b, int64_t ldb, const T* c,
                                                    int64_t ldc, T* out, int64_t ldo) {
    multiply_inline<T, UPDATE>(k, first, last, part, cols, a, lda, b, ldb, c, ldc, out, ldo);
}

// FIXED: the sizes are constants where this is called, and every loop is to be unrolled there.
template <class T, int UPDATE, bool FIXED>
GNEWT_INLINE
void multiply(int64_t k, int64_t first, int64_t last, int part, int64_t cols, const T* a, int64_t lda, const T* b,
              int64_t ldb, const T* c, int64_t ldc, T* out, int64_t ldo) {
    if constexpr (FIXED)
        multiply_inline<T, UPDATE>(k, first, last, part, cols, a, lda, b, ldb, c, ldc, out, ldo);
    else
        multiply_call<T, UPDATE>(k, first, last, part, cols, a, lda, b, ldb, c, ldc, out, ldo);
}

// OUT = AᵀB, whole, while memory is asked for.
template <class T, class Ask>
GNEWT_INLINE
void multiply_asking_inline(int64_t k, int64_t rows, int64_t cols, const T* a, int64_t lda, const T* b, int64_t ldb,
                            T* out, int64_t ldo, Ask ask) {
    cols = padded<T>(cols);
    over_rows(0, rows, [&](int64_t i, const auto height) GNEWT_LAMBDA {
        constexpr int r = int(decltype(height)::value);
        over_columns<T, widest(r)>(cols, [&](int64_t j, const auto width) GNEWT_LAMBDA {
            Vec<T> acc[r][int(decltype(width)::value)] = {};
            accumulate<T, r, int(decltype(width)::value), false, false>(acc, k, a + i, lda, b + j, ldb, ask);
            store_tile<T>(acc, out + i * ldo + j, ldo);
        });
    });
}
template <class T>
__attribute__((noinline)) inline void multiply_asking_call(int64_t k, int64_t rows, int64_t cols, const T* a,
                                                           int64_t lda, const T* b, int64_t ldb, T* out, int64_t ldo,
                                                           Asking ask) {
    multiply_asking_inline<T>(k, rows, cols, a, lda, b, ldb, out, ldo, ask);
}
template <class T, bool FIXED>
GNEWT_INLINE
void multiply_asking(int64_t k, int64_t rows, int64_t cols, const T* a, int64_t lda, const T* b, int64_t ldb, T* out,
                     int64_t ldo, Asking ask = {nullptr, 0}) {
    if constexpr (FIXED)
        multiply_asking_inline<T>(k, rows, cols, a, lda, b, ldb, out, ldo, Silent{});
    else
        multiply_asking_call<T>(k, rows, cols, a, lda, b, ldb, out, ldo, ask);
}
// How many steps this takes, or a few more.
template <class T>
inline int64_t steps_of_multiply(int64_t k, int64_t rows, int64_t cols) {
    return (rows + kTileRows - 1) / kTileRows * k * ((padded<T>(cols) / kWidth<T> + kTileVectors - 1) / kTileVectors);
}

// OUT = AᵀB - CᵀD, the lower triangle of n rows; A, B have k rows, C, D have m.
template <class T>
GNEWT_INLINE
void multiply_less_inline(int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, int64_t m, const T* c,
                          int64_t ldc, const T* d, int64_t ldd, int64_t n, T* out, int64_t ldo) {
    over_rows(0, n, [&](int64_t i, const auto rows) GNEWT_LAMBDA {
        constexpr int r = int(decltype(rows)::value);
        over_columns<T, widest(r)>(padded<T>(min(i + r, n)), [&](int64_t j, const auto width) GNEWT_LAMBDA {
            Vec<T> acc[r][int(decltype(width)::value)] = {};
            accumulate<T, r, int(decltype(width)::value), false, false>(acc, k, a + i, lda, b + j, ldb);
            accumulate<T, r, int(decltype(width)::value), true, false>(acc, m, c + i, ldc, d + j, ldd);
            store_tile<T>(acc, out + i * ldo + j, ldo);
        });
    });
}
template <class T>
__attribute__((noinline)) inline void multiply_less_call(int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb,
                                                         int64_t m, const T* c, int64_t ldc, const T* d, int64_t ldd,
                                                         int64_t n, T* out, int64_t ldo) {
    multiply_less_inline<T>(k, a, lda, b, ldb, m, c, ldc, d, ldd, n, out, ldo);
}
template <class T, bool FIXED>
GNEWT_INLINE
void multiply_less(int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, int64_t m, const T* c, int64_t ldc,
                   const T* d, int64_t ldd, int64_t n, T* out, int64_t ldo) {
    if constexpr (FIXED)
        multiply_less_inline<T>(k, a, lda, b, ldb, m, c, ldc, d, ldd, n, out, ldo);
    else
        multiply_less_call<T>(k, a, lda, b, ldb, m, c, ldc, d, ldd, n, out, ldo);
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
