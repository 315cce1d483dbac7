// Moving numbers from the sources into fronts, block by block.
#pragma once
#include "plan_view.hpp"
#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// Call visit(row, col, value) for every number of a block.
template <class T, class Visit>
GNEWT_INLINE void for_each(const Block& k, const T* src, Visit visit) {
    int64_t step = k.step, len = k.len;
    for (int32_t i = 0; i < k.rows; ++i) {
        for (int64_t j = 0; j < len; ++j) {
            if (k.transposed)
                visit(k.row + j, k.col + i, src[j]);
            else
                visit(k.row + i, k.col + j, src[j]);
        }
        src += step;
        step += k.dstep;
        len += k.dlen;
    }
}

// A length that the compiler knows.
template <int64_t N>
struct Length {
    constexpr operator int64_t() const { return N; }
};

// Call visit(i, length, offset) for every row of a block, with the length as a constant where it is short: loops of four
// numbers are slower than the numbers.
template <class Visit>
GNEWT_INLINE void rows_of(const Block& k, Visit visit) {
    int64_t step = k.step, len = k.len, at = 0;
    const auto all = [&](const auto length) {
        for (int32_t i = 0; i < k.rows; ++i, at += step, step += k.dstep) visit(i, length, at);
    };
    if (k.dlen == 0) {
        if (len == 4) return all(Length<4>{});
        if (len == 1) return all(Length<1>{});
        if (len == 2) return all(Length<2>{});
        if (len == 6) return all(Length<6>{});
        if (len == 12) return all(Length<12>{});
    }
    for (int32_t i = 0; i < k.rows; ++i, at += step, step += k.dstep, len += k.dlen) visit(i, len, at);
}

// Add a block to (or, where ADD is false, write it into) a row-major matrix.
template <class T, bool ADD>
inline void place(const Block& k, const T* __restrict src, T* __restrict to, int64_t ld) {
    to += k.row * ld + k.col;
    if (k.transposed) {
        int64_t step = k.step, len = k.len;
        for (int32_t i = 0; i < k.rows; ++i, src += step, step += k.dstep, len += k.dlen, ++to)
            for (int64_t j = 0; j < len; ++j) to[j * ld] = ADD ? to[j * ld] + src[j] : src[j];
        return;
    }
    rows_of(k, [&](int32_t i, const auto len, int64_t at) {
        T* row = to + i * ld;
        for (int64_t j = 0; j < len; ++j) row[j] = ADD ? row[j] + src[at + j] : src[at + j];
    });
}

// Offset of row i of a block, and its length.
GNEWT_INLINE int64_t row_start(const Block& k, int64_t i) { return i * k.step + int64_t(k.dstep) * i * (i - 1) / 2; }
GNEWT_INLINE int64_t row_length(const Block& k, int64_t i) { return k.len + i * k.dlen; }

// Add the magnitudes that a block brings to the diagonal of its part.
template <class T>
inline void place_diagonal(const Block& k, const T* src, T* to) {
    const int64_t outer = k.transposed ? k.col : k.row, inner = k.transposed ? k.row : k.col;
    for (int64_t i = 0; i < k.rows; ++i) {
        const int64_t j = outer + i - inner;
        if (j >= 0 && j < row_length(k, i)) to[outer + i] += abs(src[row_start(k, i) + j]);
    }
}

// The magnitude that a block brings to entry (row, col) of its part.
template <class T>
inline T magnitude_at(const Block& k, const T* src, int64_t row, int64_t col) {
    const int64_t i = k.transposed ? col - k.col : row - k.row, j = k.transposed ? row - k.row : col - k.col;
    if (i < 0 || i >= k.rows || j < 0 || j >= row_length(k, i)) return 0;
    return abs(src[row_start(k, i) + j]);
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
