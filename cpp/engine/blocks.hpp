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

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
