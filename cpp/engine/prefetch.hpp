// The numbers of a front lie far from those of the one before it, and in no order that the hardware guesses: they are asked for ahead.
#pragma once
#include "plan_view.hpp"
#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T>
GNEWT_INLINE void ask_for(const T* p, int64_t length) {
    const char *at = reinterpret_cast<const char*>(p), *end = reinterpret_cast<const char*>(p + length);
    for (; at < end; at += 64) __builtin_prefetch(at, 0, 2);
}

template <class T>
GNEWT_INLINE void ask_to_write(const T* p, int64_t length) {
    const char *at = reinterpret_cast<const char*>(p), *end = reinterpret_cast<const char*>(p + length);
    for (; at < end; at += 64) __builtin_prefetch(at, 1, 3);
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
            const int64_t row = b.rows - 1, length = row * b.step + int64_t(b.dstep) * row * (row - 1) / 2 + b.len + row * b.dlen;
            add(k, starts[k], starts[k] + length, starts);
        }
        for (int i = 0; i < count_; ++i) lines_ += ranges_[i].lines();
    }

    // Ask for the part [part, part + 1) of `parts` equal ones. Inlined: a call without any visible effect would be left out.
    GNEWT_INLINE void ask(const T* sources, const int32_t* starts, int64_t part, int64_t parts) const {
        int64_t skip = lines_ * part / parts, left = lines_ * (part + 1) / parts - skip;
        for (int i = 0; i < count_ && left > 0; ++i) {
            const int64_t here = ranges_[i].lines();
            if (skip >= here) {
                skip -= here;
                continue;
            }
            const char* p = reinterpret_cast<const char*>(sources + starts[ranges_[i].block] + ranges_[i].from) + skip * kLine;
            const int64_t count = min(here - skip, left);
            for (int64_t k = 0; k < count; ++k) __builtin_prefetch(p + k * kLine, 0, 2);
            left -= count;
            skip = 0;
        }
    }

private:
    static constexpr int64_t kMost = 8, kLine = 64;
    struct Range {
        int32_t block;
        int64_t from, to;  // relative to where the block begins
        int64_t lines() const { return ((to - from) * int64_t(sizeof(T)) + kLine - 1) / kLine + 1; }
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
    int64_t lines_ = 0;
    int count_ = 0;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
