// Prefetching. The sources of a front lie far from those of the front before, in no order that the hardware guesses:
// the quick elimination (quick.hpp, chain.hpp) asks for the sources of the next front while the present one is
// eliminated.
#pragma once
#include "blocks.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// Ask for cache lines, four at a time: one at a time would take as many instructions as a small front has arithmetic.
template <bool WRITE>
GNEWT_INLINE void ask_for_lines(const char* p, int64_t count) {
    const char* end = p + count * kLineBytes;
    for (; p + 3 * kLineBytes < end; p += 4 * kLineBytes) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) __builtin_prefetch(p + k * kLineBytes, WRITE, WRITE ? 3 : 2);
    }
    for (; p < end; p += kLineBytes) __builtin_prefetch(p, WRITE, WRITE ? 3 : 2);
}
template <bool WRITE, class T>
GNEWT_INLINE void ask_for(const T* p, int64_t length) {
    ask_for_lines<WRITE>(reinterpret_cast<const char*>(p), (length * int64_t(sizeof(T)) + kLineBytes - 1) / kLineBytes);
}

// The cache lines that the blocks of a front are in, counted from where the blocks begin: the same lines, or nearly,
// for all fronts of a shape.
template <class T>
class Ahead {
public:
    Ahead() = default;
    // The first `blocks` blocks; `starts` are those of any front of the shape.
    Ahead(const Shape& shape, int32_t blocks, const int32_t* starts) {
        for (int32_t k = 0; k < blocks && count_ < kMost; ++k) {
            const Block& b = shape.blocks[k];
            add(k, starts[k], starts[k] + row_start(b, b.rows - 1) + row_length(b, b.rows - 1), starts);
        }
    }

    // Where the i-th range of lines begins, if there is one; and its bytes for each of so many steps.
    GNEWT_INLINE const char* begin(const T* sources, const int32_t* starts, int i) const {
        return reinterpret_cast<const char*>(sources + (i < count_ ? starts[ranges_[i].block] + ranges_[i].from : 0));
    }
    int64_t in_steps(int i, int64_t steps) const {
        return i < count_ ? (ranges_[i].count() * kLineBytes + steps - 1) / steps : 0;
    }

    // Ask for all ranges from `first` on. Inlined: a call without any visible effect would be left out.
    GNEWT_INLINE void ask(const T* sources, const int32_t* starts, int first = 0) const {
        for (int i = first; i < count_; ++i) ask_for_lines<false>(begin(sources, starts, i), ranges_[i].count());
    }

private:
    static constexpr int64_t kMost = 8;  // ranges at most; what lies beyond is not asked for
    struct Range {
        int32_t block;
        int64_t from, to;  // relative to where the block begins
        int64_t count() const { return ((to - from) * int64_t(sizeof(T)) + kLineBytes - 1) / kLineBytes + 1; }
    };
    void add(int32_t block, int64_t from, int64_t to, const int32_t* starts) {
        if (count_) {  // blocks of one matrix lie within each other: their ranges are joined
            Range& last = ranges_[count_ - 1];
            const int64_t base = starts[last.block];
            if (from <= base + last.to && to >= base + last.from) {
                last.from = min(last.from, from - base), last.to = max(last.to, to - base);
                return;
            }
        }
        ranges_[count_++] = {block, from - starts[block], to - starts[block]};
    }

    Range ranges_[kMost];
    int count_ = 0;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
