// C (+=, -=) AᵀB on the upper triangle of a matrix that does not fit into the cache: A and B are copied into the order
// in which tiles read them. Called for wide fronts, by both eliminations.
#pragma once
#include "gemm.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// Rows of A and B at most, and rows of C for which all of B is gone through. With AVX2 a strip of B then takes 6 KiB
// and the columns of A 8 KiB: both stay in a first cache of 32 KiB.
constexpr int64_t kPackedRows = 64, kPackedBlock = 4 * kTileRows;
// Bytes of a row from which on copies pay: 400 doubles.
constexpr int64_t kPackedBytes = 3200;

template <class T>
constexpr int64_t kStrip = kTileVectors * kWidth<T>;  // columns of a tile

// Whether copies pay for the upper triangle of so many rows. Tiles of eight rows read long enough pieces without
// copies.
template <class T>
constexpr bool pays_to_pack(int64_t rows) {
    return kTileRows < 8 && rows * int64_t(sizeof(T)) >= kPackedBytes;
}

// Numbers of scratch memory for products with `cols` columns.
template <class T>
inline int64_t packed_size(int64_t cols) {
    return kPackedRows * (cols + kStrip<T> + kPackedBlock);
}

// Copy k rows of B into strips: `strips` of them, the first one from the column `begin` on.
template <class T>
GNEWT_INLINE void pack_strips(int64_t k, int64_t strips, int64_t begin, ConstView<T> b, T* to) {
    constexpr int64_t w = kWidth<T>, wide = kStrip<T>;
    for (int64_t l = 0; l < k; ++l)
        for (int64_t s = 0; s < strips; ++s)
#pragma GCC unroll 8
            for (int v = 0; v < kTileVectors; ++v)
                store(to + (s * k + l) * wide + v * w, load(b.at + l * b.ld + begin + s * wide + v * w));
}

// Copy the columns [top, whole) of k rows of A, as many at a time as a tile has rows.
template <class T>
GNEWT_INLINE void pack_columns(int64_t k, int64_t top, int64_t whole, ConstView<T> a, T* to) {
    for (int64_t i = top; i < whole; i += kTileRows)
        for (int64_t l = 0; l < k; ++l)
#pragma GCC unroll 8
            for (int64_t r = 0; r < kTileRows; ++r) to[(i - top) * k + l * kTileRows + r] = a.at[l * a.ld + i + r];
}

// C[i, j] (+, -)= Σ_l A[l, i] B[l, j] for i in [first, last), j in [i, cols), with k <= kPackedRows. Columns are
// rounded up to whole vectors, and a little of the other triangle is written too. `scratch`: packed_size(cols).
template <class T, int UPDATE>
__attribute__((noinline)) inline void multiply_packed(int64_t k, const Extent& extent, const ConstView<T>& a,
                                                      const ConstView<T>& b, const View<T>& c, T* scratch) {
    constexpr int64_t wide = kStrip<T>, size = kTileRows;
    const int64_t end = padded<T>(extent.cols), begin = floor_to_vector<T>(extent.first), strips = (end - begin) / wide,
                  behind = begin + strips * wide;
    T *left = scratch, *right = scratch + kPackedRows * kPackedBlock;
    pack_strips(k, strips, begin, b, right);
    for (int64_t top = extent.first; top < extent.last; top += kPackedBlock) {
        const int64_t bottom = min(top + kPackedBlock, extent.last), whole = top + (bottom - top) / size * size;
        pack_columns(k, top, whole, a, left);
        for (int64_t s = (top - begin) / wide; s < strips; ++s) {
            const int64_t j = begin + s * wide;
            for (int64_t i = top; i < min(whole, j + wide); i += size)
                tile<T, size, kTileVectors, UPDATE>(k, {left + (i - top) * k, size}, {right + s * k * wide, wide},
                                                    c.from(i, j), c.from(i, j));
        }
        // Rows and columns that fill no tile.
        if (whole < bottom && whole < behind) multiply_call<T, UPDATE>(k, {whole, bottom, kUpper, behind}, a, b, c, c);
        if (behind < end)
            multiply_call<T, UPDATE>(k, {top, bottom, kWhole, end - behind}, a, b.from(0, behind), c.from(0, behind),
                                     c.from(0, behind));
    }
}

// The same for any k, packed where copies pay. `extent` is upper.
template <class T, int UPDATE>
inline void multiply_upper(int64_t k, const Extent& extent, ConstView<T> a, ConstView<T> b, View<T> c, T* scratch) {
    if (!pays_to_pack<T>(extent.last - extent.first)) {
        if (k) multiply<T, UPDATE, false>(k, extent, a, b, c);
        return;
    }
    for (int64_t l = 0; l < k; l += kPackedRows)
        multiply_packed<T, UPDATE>(min(kPackedRows, k - l), extent, a.from(l, 0), b.from(l, 0), c, scratch);
}

// W = PP·F for a whole, symmetric PP [p, p] and F, W [p, n]. Nodes that are only ever multiplied by something have
// PP = 0, and there may be many of them.
template <class T>
inline void multiply_pairs(int64_t p, int64_t n, ConstView<T> pp, ConstView<T> f, View<T> w) {
    bool any = false;
    for (int64_t i = 0; i < p && !any; ++i)
        for (int64_t j = 0; j < p; ++j) any |= pp.at[i * pp.ld + j] != 0;
    Vec<T> probe{};  // zero times a number that is not finite is not zero
    for (int64_t i = 0; i < p && !any; ++i)
        for (int64_t j = 0; j < padded<T>(n); j += kWidth<T>) probe += load(f.at + i * f.ld + j) * 0;
    if (any || !(sum<T>(probe) == 0))
        multiply<T, kSet, false>(p, {0, p, kWhole, n}, pp, f, w);
    else
        std::memset(w.at, 0, size_t(p * w.ld) * sizeof(T));
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
