// The one matrix kernel: C (=, +=, -=) AᵀB on row-major matrices, whole or upper triangle. No packing: fronts are
// small and stay in cache.
#pragma once
#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

enum Update { kSet, kAdd, kSubtract };

template <class T, int ROWS, int VECTORS, int UPDATE>
GNEWT_INLINE void tile(int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, T* c, int64_t ldc) {
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
        for (int v = 0; v < VECTORS; ++v) store(c + i * ldc + v * w, acc[i][v]);
}

template <class T, int ROWS, int UPDATE>
inline void row_of_tiles(int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, T* c, int64_t ldc, int64_t cols) {
    constexpr int64_t w = kWidth<T>;
    int64_t j = 0;
    for (; j + kTileVectors * w <= cols; j += kTileVectors * w)
        tile<T, ROWS, kTileVectors, UPDATE>(k, a, lda, b + j, ldb, c + j, ldc);
    if (kTileVectors > 2 && j + 2 * w <= cols) {
        tile<T, ROWS, 2, UPDATE>(k, a, lda, b + j, ldb, c + j, ldc);
        j += 2 * w;
    }
    if (j < cols) tile<T, ROWS, 1, UPDATE>(k, a, lda, b + j, ldb, c + j, ldc);
}

// C[i, j] (UPDATE) Σ_l A[l, i] B[l, j] for i in [first, last), j in [upper ? i : 0, cols). `cols` is rounded up to
// whole vectors and a little of the lower triangle is written too: both must be scratch.
template <class T, int UPDATE>
inline void multiply(int64_t k, int64_t first, int64_t last, bool upper, int64_t cols, const T* a, int64_t lda,
                     const T* b, int64_t ldb, T* c, int64_t ldc) {
    int64_t i = first;
    for (; i + kTileRows <= last; i += kTileRows) {
        const int64_t j = upper ? floor_to_vector<T>(i) : 0;
        row_of_tiles<T, kTileRows, UPDATE>(k, a + i, lda, b + j, ldb, c + i * ldc + j, ldc, cols - j);
    }
    const int64_t j = upper ? floor_to_vector<T>(i) : 0;
    const T *ai = a + i, *bj = b + j;
    T* cij = c + i * ldc + j;
    switch (last - i) {
        case 7: row_of_tiles<T, 7, UPDATE>(k, ai, lda, bj, ldb, cij, ldc, cols - j); break;
        case 6: row_of_tiles<T, 6, UPDATE>(k, ai, lda, bj, ldb, cij, ldc, cols - j); break;
        case 5: row_of_tiles<T, 5, UPDATE>(k, ai, lda, bj, ldb, cij, ldc, cols - j); break;
        case 4: row_of_tiles<T, 4, UPDATE>(k, ai, lda, bj, ldb, cij, ldc, cols - j); break;
        case 3: row_of_tiles<T, 3, UPDATE>(k, ai, lda, bj, ldb, cij, ldc, cols - j); break;
        case 2: row_of_tiles<T, 2, UPDATE>(k, ai, lda, bj, ldb, cij, ldc, cols - j); break;
        case 1: row_of_tiles<T, 1, UPDATE>(k, ai, lda, bj, ldb, cij, ldc, cols - j); break;
        default: break;
    }
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
