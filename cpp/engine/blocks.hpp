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

// Add a block to (or, where ADD is false, write it into) a row-major matrix.
template <class T, bool ADD>
inline void place(const Block& k, const T* __restrict src, T* __restrict to, int64_t ld) {
    to += k.row * ld + k.col;
    int64_t step = k.step, len = k.len;
    for (int32_t i = 0; i < k.rows; ++i) {
        if (k.transposed) {
            for (int64_t j = 0; j < len; ++j) to[j * ld] = ADD ? to[j * ld] + src[j] : src[j];
            to += 1;
        } else {
            for (int64_t j = 0; j < len; ++j) to[j] = ADD ? to[j] + src[j] : src[j];
            to += ld;
        }
        src += step;
        step += k.dstep;
        len += k.dlen;
    }
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
