// The one matrix kernel: C (=, +=, -=) AᵀB on row-major matrices, whole or upper triangle. No packing: fronts are
// small and stay in cache.
#pragma once
#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

enum Update { kSet, kAdd, kSubtract };

// OUT (=, C +, C -) AᵀB on one tile; `out` may be `c` itself.
template <class T, int ROWS, int VECTORS, int UPDATE>
GNEWT_INLINE void tile(int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, const T* c, int64_t ldc, T* out,
                       int64_t ldo) {
    constexpr int64_t w = kWidth<T>;
    Vec<T> acc[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 3
        for (int v = 0; v < VECTORS; ++v)
            acc[i][v] = UPDATE == kSet ? Vec<T>{} : load(c + i * ldc + v * w);
    for (int64_t l = 0; l < k; ++l, a += lda, b += ldb) {
        Vec<T> right[VECTORS];
#pragma GCC unroll 3
        for (int v = 0; v < VECTORS; ++v) right[v] = load(b + v * w);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 3
            for (int v = 0; v < VECTORS; ++v) {
                if (UPDATE == kSubtract)
                    acc[i][v] -= a[i] * right[v];
                else
                    acc[i][v] += a[i] * right[v];
            }
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 3
        for (int v = 0; v < VECTORS; ++v) store(out + i * ldo + v * w, acc[i][v]);
}

template <class T, int ROWS, int UPDATE>
GNEWT_INLINE void row_of_tiles(int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, const T* c, int64_t ldc, T* out,
                               int64_t ldo, int64_t cols) {
    constexpr int64_t w = kWidth<T>;
    int64_t j = 0;
    for (; j + kTileVectors * w <= cols; j += kTileVectors * w)
        tile<T, ROWS, kTileVectors, UPDATE>(k, a, lda, b + j, ldb, c + j, ldc, out + j, ldo);
    if (kTileVectors > 2 && j + 2 * w <= cols) {
        tile<T, ROWS, 2, UPDATE>(k, a, lda, b + j, ldb, c + j, ldc, out + j, ldo);
        j += 2 * w;
    }
    if (j < cols) tile<T, ROWS, 1, UPDATE>(k, a, lda, b + j, ldb, c + j, ldc, out + j, ldo);
}

// Rows that do not fill a tile.
template <class T, int ROWS, int UPDATE>
GNEWT_INLINE void last_rows(int64_t rows, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, const T* c, int64_t ldc,
                            T* out, int64_t ldo, int64_t cols) {
    if (rows == ROWS)
        row_of_tiles<T, ROWS, UPDATE>(k, a, lda, b, ldb, c, ldc, out, ldo, cols);
    else if constexpr (ROWS > 1)
        last_rows<T, ROWS - 1, UPDATE>(rows, k, a, lda, b, ldb, c, ldc, out, ldo, cols);
}

// OUT[i, j] (=, C[i, j] +, C[i, j] -) Σ_l A[l, i] B[l, j] for i in [first, last), j in [upper ? i : 0, cols). `cols` is rounded up
// to whole vectors and a little of the lower triangle is written too: both must be scratch.
template <class T, int UPDATE>
GNEWT_INLINE void multiply_inline(int64_t k, int64_t first, int64_t last, bool upper, int64_t cols, const T* a, int64_t lda,
                                  const T* b, int64_t ldb, const T* c, int64_t ldc, T* out, int64_t ldo) {
    cols = padded<T>(cols);
    int64_t i = first;
    for (; i + kTileRows <= last; i += kTileRows) {
        const int64_t j = upper ? floor_to_vector<T>(i) : 0;
        row_of_tiles<T, kTileRows, UPDATE>(k, a + i, lda, b + j, ldb, c + i * ldc + j, ldc, out + i * ldo + j, ldo, cols - j);
    }
    if (i == last) return;
    const int64_t j = upper ? floor_to_vector<T>(i) : 0;
    last_rows<T, kTileRows - 1, UPDATE>(last - i, k, a + i, lda, b + j, ldb, c + i * ldc + j, ldc, out + i * ldo + j, ldo,
                                        cols - j);
}

template <class T, int UPDATE>
__attribute__((noinline)) inline void multiply_call(int64_t k, int64_t first, int64_t last, bool upper, int64_t cols, const T* a,
                                                    int64_t lda, const T* b, int64_t ldb, const T* c, int64_t ldc, T* out,
                                                    int64_t ldo) {
    multiply_inline<T, UPDATE>(k, first, last, upper, cols, a, lda, b, ldb, c, ldc, out, ldo);
}

// FIXED: the sizes are constants where this is called, and every loop is to be unrolled there.
template <class T, int UPDATE, bool FIXED>
GNEWT_INLINE void multiply(int64_t k, int64_t first, int64_t last, bool upper, int64_t cols, const T* a, int64_t lda, const T* b,
                           int64_t ldb, const T* c, int64_t ldc, T* out, int64_t ldo) {
    if constexpr (FIXED)
        multiply_inline<T, UPDATE>(k, first, last, upper, cols, a, lda, b, ldb, c, ldc, out, ldo);
    else
        multiply_call<T, UPDATE>(k, first, last, upper, cols, a, lda, b, ldb, c, ldc, out, ldo);
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
