// The numbers of a front lie far from those of the one before it, and in no order that the hardware guesses: they are asked for ahead.
#pragma once
#include "plan_view.hpp"
#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

constexpr int64_t kLine = 64;

// Ask for cache lines. Four at a time: this is as many instructions as a small front has arithmetic, else.
template <bool WRITE>
GNEWT_INLINE
void ask_for_lines(const char* p, int64_t count) {
    const char* end = p + count * kLine;
    for (; p + 3 * kLine < end; p += 4 * kLine) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) __builtin_prefetch(p + k * kLine, WRITE, WRITE ? 3 : 2);
    }
    for (; p < end; p += kLine) __builtin_prefetch(p, WRITE, WRITE ? 3 : 2);
}
template <bool WRITE, class T>
GNEWT_INLINE
void ask_for(const T* p, int64_t length) {
    ask_for_lines<WRITE>(reinterpret_cast<const char*>(p), (length * int64_t(sizeof(T)) + kLine - 1) / kLine);
}

// Which cache lines the blocks of a front are in, counted from where the blocks begin: the same for all fronts of a shape, or nearly.
template <class T>
class Ahead {
public:
    Ahead() = default;
    // The blocks of some kinds, [first, last); `starts` are those of any front of the shape.
    Ahead(const Shape& shape, int32_t first, int32_t last, const int32_t* starts) {
        for (int32_t k = first; k < last && count_ < kMost; ++k) {
            const Block& b = shape.blocks[k];
            const int64_t row = b.rows - 1,
                          length = row * b.step + int64_t(b.dstep) * row * (row - 1) / 2 + b.len + row * b.dlen;
            add(k, starts[k], starts[k] + length, starts);
        }
    }

    // Where the i-th range of lines begins, if there is one, and how far it reaches with each of some steps.
    GNEWT_INLINE
    const char* begin(const T* sources, const int32_t* starts, int i) const {
        return reinterpret_cast<const char*>(sources + (i < count_ ? starts[ranges_[i].block] + ranges_[i].from : 0));
    }
    int64_t in_steps(int i, int64_t steps) const {
        return i < count_ ? (ranges_[i].count() * kLine + steps - 1) / steps : 0;
    }

    // Ask for all ranges from `first` on. Inlined: a call without any visible effect would be left out.
    GNEWT_INLINE
    void ask(const T* sources, const int32_t* starts, int first = 0) const {
        for (int i = first; i < count_; ++i) ask_for_lines<false>(begin(sources, starts, i), ranges_[i].count());
    }

private:
    static constexpr int64_t kMost = 8;
    struct Range {
        int32_t block;
        int64_t from, to;  // relative to where the block begins
        int64_t count() const { return ((to - from) * int64_t(sizeof(T)) + kLine - 1) / kLine + 1; }
    };
    void add(int32_t block, int64_t from, int64_t to, const int32_t* starts) {
        if (count_) {  // blocks of one matrix lie within each other
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
