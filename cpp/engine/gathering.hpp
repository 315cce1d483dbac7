// A wide front right behind many leaves: their messages are added to it at once, so that they need not wait on the stack, which would be far larger than the front.
#pragma once
#include "blocks.hpp"
#include "extend.hpp"
#include "noise.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// The leading dimension of a front of n unknowns: right-hand sides and probes stand beside it.
template <class T>
inline int64_t probes_of(int64_t n) {
    return n < kWide ? 0 : kProbes<T>;
}
template <class T>
inline int64_t front_width(int64_t n, int64_t columns) {
    return spaced<T>(n + columns + probes_of<T>(n));
}

template <class T>
class Gathering {
public:
    // See whether leaves from `next` on lead to a front that is to be gathered. False where there is no memory.
    bool look_ahead(const PlanView& plan, int32_t next, int64_t columns) {
        if (next < seen_ || plan.data[kMaxRest] < kWide) return true;
        int32_t leaves = 0;
        double size = 0;
        for (seen_ = next; seen_ < plan.num_fronts(); ++seen_, ++leaves) {
            const Front leaf = plan.front(seen_);
            if (leaf.num_children || !leaf.shape.b) break;
            size += double(leaf.shape.b) * leaf.shape.b;
        }
        if (seen_++ >= plan.num_fronts() || leaves < kMany) return true;
        const Front front = plan.front(seen_ - 1);
        const int64_t n = front.shape.q + front.shape.b;
        // All leaves are its children where it has as many.
        if (n < kWide || front.num_children < leaves || size < double(n) * double(n)) return true;
        ld_ = front_width<T>(n, columns);
        if (!numbers_.reserve((n + 1) * ld_) || !places_.reserve(n)) return false;
        std::memset(numbers_.data(), 0, size_t((n + 1) * ld_) * sizeof(T));
        front_ = seen_ - 1, p_ = front.shape.p, n_ = n, added_ = 0;
        return true;
    }

    bool ahead_of(int32_t front) const { return front_ > front; }
    bool is(int32_t front) const { return front_ == front; }
    int32_t added() const { return added_; }  // children that are in it
    T* matrix() { return numbers_.data(); }   // [n, ld], upper, without the pairs; right-hand sides in the columns n..
    T* bound() { return numbers_.data() + n_ * ld_; }

    // Add a message, which is used up. False where it has to wait.
    bool add(const PlanView& plan, const Message& message, const T* stack, int64_t columns) {
        const Shape shape = plan.front(message.front).shape;
        bool waits = message.delayed;
        for (int32_t x = 0; x < shape.num_runs; ++x)
            waits |= shape.runs[3 * x + 1] < p_;  // pairs are substituted later
        if (waits) return false;
        Children<T>{plan, &message, 1, stack, columns, 0}.add_to_rest(p_, n_, matrix(), ld_, bound());
        ++added_;
        return true;
    }

    // Add a leaf of one pair, x = f·ξ with the second derivative d, without a message: d f fᵀ. False where it is none, or in doubt.
    bool add_leaf(const Front& leaf, const T* sources, T* f) {
        const Shape& shape = leaf.shape;
        if (shape.p != 1 || shape.q || shape.flags & (kCross | kNested)) return false;
        T d = 0, size = 0;
        std::memset(f, 0, size_t(shape.b) * sizeof(T));
        for (int32_t k = 0; k < shape.num_blocks; ++k) {
            const Block& block = shape.blocks[k];
            const T* src = sources + leaf.sources[k];
            if (block.kind == kPP)
                d += *src, size += abs(*src);
            else if (block.kind == kF)
                for_each(block, src, [&](int64_t, int64_t j, T v) { f[j] += v; });
            else
                return false;
        }
        if (!(abs(d) >= T(kDoubtful) * size)) return false;
        int32_t* places = places_.data();
        int64_t begin = 0, end = 0;  // the longest run
        for (int32_t x = 0, last = p_ - 1; x < shape.num_runs; ++x) {
            const int32_t* run = shape.runs + 3 * x;
            if (run[1] <= last) return false;
            for (int32_t i = 0; i < run[2]; ++i) places[run[0] + i] = run[1] - p_ + i;
            last = run[1] + run[2] - 1;
            if (run[2] > end - begin) begin = run[0], end = begin + run[2];
        }
        for (int64_t i = 0; i < shape.b; ++i) {
            const T scaled = d * f[i];
            T* row = matrix() + places[i] * ld_;
            const int64_t from = max(i, begin);
            if (i + kAhead < shape.b) ask_for(matrix() + places[i + kAhead] * ld_ + places[begin], end - begin);
            add_scattered(i, begin, scaled, f, places, row);
            if (from < end) axpy(row + places[from], scaled, f + from, end - from);
            add_scattered(max(i, end), shape.b, scaled, f, places, row);
            bound()[places[i]] += abs(scaled * f[i]);
        }
        ++added_;
        return true;
    }

    // Whether a leaf may add its Schur complement to `block_of` it: where its unknowns stand side by side.
    bool is_open_to(int32_t number, const Front& leaf) const {
        const Shape& shape = leaf.shape;
        const bool sources = shape.num_blocks && shape.blocks[shape.num_blocks - 1].kind == kR;  // of R itself
        return ahead_of(number) && !shape.q && shape.num_runs == 1 && shape.runs[1] >= p_ && !sources;
    }
    T* block_of(const Shape& shape) { return matrix() + (shape.runs[1] - p_) * (ld_ + 1); }
    int64_t width() const { return ld_; }

    // What such a leaf summed into the diagonal, of which `before` is how it was: `size`, but no less than what it changed.
    void add_sizes(const Shape& shape, const T* size, const T* before) {
        const T* block = block_of(shape);
        T* to = bound() + shape.runs[1] - p_;
        for (int64_t i = 0; i < shape.b; ++i) to[i] += max(size[i], abs(block[i * (ld_ + 1)] - before[i]));
        ++added_;
    }

    void end() { front_ = -1; }
    void begin_again() { front_ = -1, seen_ = 0; }

private:
    static GNEWT_INLINE
    void add_scattered(int64_t from, int64_t to, T scale, const T* __restrict f, const int32_t* places,
                       T* __restrict row) {
#pragma GCC unroll 4
        for (int64_t j = from; j < to; ++j) row[places[j]] += scale * f[j];
    }

    static GNEWT_INLINE
    void ask_for(const T* from, int64_t n) {
        for (int64_t j = 0; j < n; j += 64 / int64_t(sizeof(T))) __builtin_prefetch(from + j, 1);
    }

    static constexpr int64_t kAhead = 4;
    static constexpr int32_t kMany = 4;

    int32_t front_ = -1, seen_ = 0, added_ = 0, p_ = 0;
    int64_t n_ = 0, ld_ = 0;
    Buffer<T> numbers_;
    Buffer<int32_t> places_;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
