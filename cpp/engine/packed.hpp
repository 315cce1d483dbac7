// C (+=, -=) AᵀB on the upper triangle of a matrix that does not fit into the cache: A and B are copied into the order in which tiles read them.
#pragma once
#include "gemm.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

constexpr int64_t kPackedRows = 64;  // rows of A and B at most
constexpr int64_t kPackedBlock =
    4 *
    kTileRows;  // rows of C for which all of B is gone through: their part of A, and a strip of B, stay in the first cache

template <class T>
constexpr int64_t kStrip = kTileVectors * kWidth<T>;  // columns of a tile

// Whether the copies pay for the upper triangle of so many rows. Wide tiles read long enough pieces of rows as they stand.
template <class T>
constexpr bool pays_to_pack(int64_t rows) {
    return kTileRows < 8 && rows * int64_t(sizeof(T)) >= 3200;
}

template <class T>
inline int64_t packed_size(int64_t cols) {
    return kPackedRows * (cols + kStrip<T> + kPackedBlock);
}

// C[i, j] (+, -)= Σ_l A[l, i] B[l, j] for i in [first, last), j in [i, cols), with k <= kPackedRows. Columns are rounded up to whole vectors, and a little
// of the other triangle is written too. `scratch`: packed_size(cols).
template <class T, int UPDATE>
__attribute__((noinline)) inline void multiply_packed(int64_t k, int64_t first, int64_t last, int64_t cols, const T* a,
                                                      int64_t lda, const T* b, int64_t ldb, T* c, int64_t ldc,
                                                      T* scratch) {
    constexpr int64_t w = kWidth<T>, wide = kStrip<T>, size = kTileRows;
    const int64_t end = padded<T>(cols), begin = floor_to_vector<T>(first), strips = (end - begin) / wide,
                  behind = begin + strips * wide;
    T *left = scratch, *right = scratch + kPackedRows * kPackedBlock;
    for (int64_t l = 0; l < k; ++l)
        for (int64_t s = 0; s < strips; ++s)
#pragma GCC unroll 8
            for (int v = 0; v < kTileVectors; ++v)
                store(right + (s * k + l) * wide + v * w, load(b + l * ldb + begin + s * wide + v * w));
    for (int64_t top = first; top < last; top += kPackedBlock) {
        const int64_t bottom = min(top + kPackedBlock, last), whole = top + (bottom - top) / size * size;
        for (int64_t i = top; i < whole; i += size)
            for (int64_t l = 0; l < k; ++l)
#pragma GCC unroll 8
                for (int64_t r = 0; r < size; ++r) left[(i - top) * k + l * size + r] = a[l * lda + i + r];
        for (int64_t s = (top - begin) / wide; s < strips; ++s) {
            const int64_t j = begin + s * wide;
            for (int64_t i = top; i < min(whole, j + wide); i += size) {
                T* to = c + i * ldc + j;
                tile<T, size, kTileVectors, UPDATE>(k, left + (i - top) * k, size, right + s * k * wide, wide, to, ldc,
                                                    to, ldc);
            }
        }
        // Rows and columns that fill no tile.
        if (whole < bottom && whole < behind)
            multiply_call<T, UPDATE>(k, whole, bottom, kUpper, behind, a, lda, b, ldb, c, ldc, c, ldc);
        if (behind < end)
            multiply_call<T, UPDATE>(k, top, bottom, kWhole, end - behind, a, lda, b + behind, ldb, c + behind, ldc,
                                     c + behind, ldc);
    }
}

// The same for any k, packed or not.
template <class T, int UPDATE>
inline void multiply_upper(int64_t k, int64_t first, int64_t last, int64_t cols, const T* a, int64_t lda, const T* b,
                           int64_t ldb, T* c, int64_t ldc, T* scratch) {
    if (!pays_to_pack<T>(last - first)) {
        if (k) multiply<T, UPDATE, false>(k, first, last, kUpper, cols, a, lda, b, ldb, c, ldc, c, ldc);
        return;
    }
    for (int64_t l = 0; l < k; l += kPackedRows)
        multiply_packed<T, UPDATE>(min(kPackedRows, k - l), first, last, cols, a + l * lda, lda, b + l * ldb, ldb, c,
                                   ldc, scratch);
}

// W = PP·F for a whole PP[p, ldp] and F, W [p, ld]. Nodes that are only ever multiplied by something have PP = 0, and there may be many of them.
template <class T>
inline void multiply_pairs(int64_t p, const T* pp, int64_t ldp, int64_t n, const T* f, int64_t ld, T* w) {
    bool any = false;
    for (int64_t i = 0; i < p && !any; ++i)
        for (int64_t j = 0; j < p; ++j) any |= pp[i * ldp + j] != 0;
    Vec<T> probe{};  // zero times what is not finite is no zero
    for (int64_t i = 0; i < p && !any; ++i)
        for (int64_t j = 0; j < padded<T>(n); j += kWidth<T>) probe += load(f + i * ld + j) * 0;
    if (any || !(sum<T>(probe) == 0))
        multiply<T, kSet, false>(p, 0, p, kWhole, n, pp, ldp, f, ld, w, ld, w, ld);
    else
        std::memset(w, 0, size_t(p * ld) * sizeof(T));
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
