// What the quick elimination does before it multiplies: load the sources of a front, and see whether it is worth the effort.
#pragma once
#include "blocks.hpp"
#include "messages.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// Whether a diagonal entry of the rows to eliminate is not positive. A wide front of which that is so is as good as in doubt, and would be put together in vain.
template <class T>
inline bool indefinite(const Call<T>& call, const Front& front, const Messages<T>& children, T* diagonal) {
    const Shape& shape = front.shape;
    for (int64_t i = 0; i < shape.q + shape.b; ++i) diagonal[i] = call.shift;
    const int32_t* at = front.sources + shape.num_blocks;
    for (int32_t k = 0; k < shape.num_diag; ++k) diagonal[shape.diag[k]] += call.sources[at[k]];
    children.add_diagonals(diagonal);
    for (int64_t i = 0; i < shape.q; ++i)
        if (!(diagonal[i] > 0)) return true;
    return false;
}
// The same where there are pairs, given W = PP·F + C.
template <class T>
inline bool indefinite(int64_t p, int64_t q, const T* f, const T* w, const T* c, bool cross, int64_t ld, const T* h) {
    for (int64_t j = 0; j < q; ++j) {
        T sum = h[j * (ld + 1)];
        for (int64_t i = 0; i < p; ++i) sum += f[i * ld + j] * (w[i * ld + j] + (cross ? c[i * ld + j] : T(0)));
        if (!(sum > 0)) return true;
    }
    return false;
}

// Load all sources of a front; return the first block that goes to R. `apart`: the first num_set blocks of R are written, not added. Never inlined: it needs
// the registers for itself.
template <class T>
__attribute__((noinline)) inline int32_t load_sources(const Call<T>& call, const Front& front, bool apart, int64_t p,
                                                      T* pp, int64_t ldp, T* weight, T* f, T* c, T* rest, int64_t ld,
                                                      T* size) {
    const Shape& shape = front.shape;
    const bool dense = shape.flags & kDenseJacobian;
    if (p && !dense) std::memset(f, 0, size_t(p * ld) * sizeof(T));
    int32_t k = 0;
    for (; k < shape.num_blocks && shape.blocks[k].kind != kR; ++k) {
        const Block& block = shape.blocks[k];
        const int64_t at = front.sources[k];
        const T* src = call.sources + at;
        if (block.kind == kF && dense) {
            place<T, false>(block, src, f, ld);
        } else if (block.kind == kF) {
            place<T, true>(block, src, f, ld);
        } else if (block.kind == kPP) {
            place_upper<T, true>(block, src, call.sources_len - at, pp, ldp);
            place_diagonal(block, src, weight);
        } else if (block.kind == kC) {
            place<T, true>(block, src, c, ld);
        }
    }
    const int32_t first = k, written = apart ? first + shape.num_set : 0;
    for (; k < shape.num_blocks; ++k) {
        const int64_t at = front.sources[k];
        const T* src = call.sources + at;
        if (k < written)
            place_upper<T, false>(shape.blocks[k], src, call.sources_len - at, rest, ld);
        else
            place_upper<T, true>(shape.blocks[k], src, call.sources_len - at, rest, ld);
    }
    const int32_t* diagonal = front.sources + shape.num_blocks;
    for (k = 0; k < shape.num_diag; ++k) size[shape.diag[k]] += abs(call.sources[diagonal[k]]);
    return first;
}

// F := (I - G)⁻¹F, from the last pair, which reads no other, to the first; and the magnitudes that went into it.
template <class T>
inline void unfold(const Call<T>& call, const Front& front, int32_t blocks, int64_t p, int64_t n, T* f, T* spread,
                   int64_t ld) {
    const Shape& shape = front.shape;
    for (int64_t i = 0; i < p * ld; ++i) spread[i] = abs(f[i]);
    for (int64_t row = p - 1; row >= 0; --row)
        for (int32_t k = 0; k < blocks; ++k)
            if (shape.blocks[k].kind == kG)
                for_row(shape.blocks[k], call.sources + front.sources[k], row, [&](int64_t j, T x) {
                    axpy(f + row * ld, x, f + j * ld, n);
                    axpy(spread + row * ld, abs(x), spread + j * ld, n);
                });
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
