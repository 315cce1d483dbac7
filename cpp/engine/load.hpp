// Loading: how the sources of a front are put into its parts, and how the pairs of a front are unfolded; and whether a
// wide front is worth the effort. Called by quick.hpp, and in part by fronts.hpp.
#pragma once
#include "blocks.hpp"
#include "messages.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// Whether a diagonal entry of the rows to eliminate is not positive, in a front without pairs. Such a front, if it is
// wide, would most likely be put together in vain: one of its pivots is in doubt. `diagonal`: [q + b] work space.
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

// F := (I - G)⁻¹F, from the last pair, which reads no other pair, to the first. `spread` gets the magnitudes that went
// into F. Both are [p, ld], of which n columns count.
template <class T>
inline void unfold(const Call<T>& call, const Front& front, int64_t n, View<T> f, T* spread) {
    const int64_t ld = f.ld;
    for (int64_t i = 0; i < front.shape.p * ld; ++i) spread[i] = abs(f.at[i]);
    for (int64_t row = front.shape.p - 1; row >= 0; --row)
        for_reads(front, call.sources, row, [&](int64_t j, T x) {
            axpy(f.at + row * ld, x, f.at + j * ld, n);
            axpy(spread + row * ld, abs(x), spread + j * ld, n);
        });
}

// Where the sources of pairs go. `dense`: blocks cover F exactly once and are written, not added.
template <class T>
struct PairParts {
    View<T> f, pp, c;
    T* weight;
    bool dense;
};

// Load F, PP and C; return the first block that goes to R.
template <class T>
GNEWT_INLINE int32_t load_pairs(const Call<T>& call, const Front& front, const PairParts<T>& to) {
    const Shape& shape = front.shape;
    int32_t k = 0;
    for (; k < shape.num_blocks && shape.blocks[k].kind != kR; ++k) {
        const Block& block = shape.blocks[k];
        const int64_t at = front.sources[k];
        const T* src = call.sources + at;
        if (block.kind == kF && to.dense) {
            place<T, false>(block, src, to.f.at, to.f.ld);
        } else if (block.kind == kF) {
            place<T, true>(block, src, to.f.at, to.f.ld);
        } else if (block.kind == kPP) {
            place_upper<T, true>(block, src, call.sources_len - at, to.pp.at, to.pp.ld);
            place_diagonal(block, src, to.weight);
        } else if (block.kind == kC) {
            place<T, true>(block, src, to.c.at, to.c.ld);
        }
    }
    return k;
}

// Load all sources of a front; R is `rest`, and `size` gets the magnitudes on its diagonal. `apart`: the first num_set
// blocks of R are written, not added. Never inlined: this function needs the registers for itself.
template <class T>
__attribute__((noinline)) inline void load_sources(const Call<T>& call, const Front& front, const PairParts<T>& pairs,
                                                   bool apart, const View<T>& rest, T* size) {
    const Shape& shape = front.shape;
    if (shape.p && !pairs.dense) std::memset(pairs.f.at, 0, size_t(shape.p * pairs.f.ld) * sizeof(T));
    int32_t k = load_pairs(call, front, pairs);
    for (const int32_t written = apart ? k + shape.num_set : 0; k < shape.num_blocks; ++k) {
        const int64_t at = front.sources[k];
        const T* src = call.sources + at;
        if (k < written)
            place_upper<T, false>(shape.blocks[k], src, call.sources_len - at, rest.at, rest.ld);
        else
            place_upper<T, true>(shape.blocks[k], src, call.sources_len - at, rest.at, rest.ld);
    }
    const int32_t* diagonal = front.sources + shape.num_blocks;
    for (k = 0; k < shape.num_diag; ++k) size[shape.diag[k]] += abs(call.sources[diagonal[k]]);
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
