// Gathering: a wide front right behind many leaves takes their messages at once. On the stack, messages of many leaves
// would take far more memory than the front. Both eliminations look ahead for such a front (course.hpp, quick.hpp);
// fronts.hpp eliminates the front.
#pragma once
#include "blocks.hpp"
#include "messages.hpp"
#include "noise.hpp"
#include "prefetch.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T>
inline int64_t probes_of(int64_t n) {
    return n < kWide ? 0 : kProbes<T>;
}
// The leading dimension of a front of n unknowns: right-hand sides and probes stand beside the front.
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
        // A front with as many children as there are leaves has all of the leaves as children.
        if (n < kWide || front.num_children < leaves || size < double(n) * double(n)) return true;
        ld_ = front_width<T>(n, columns);
        if (!numbers_.reserve((n + 1) * ld_) || !places_.reserve(n)) return false;
        std::memset(numbers_.data(), 0, size_t((n + 1) * ld_) * sizeof(T));
        front_ = seen_ - 1, p_ = front.shape.p, n_ = n, added_ = 0;
        return true;
    }

    bool ahead_of(int32_t front) const { return front_ > front; }
    bool is(int32_t front) const { return front_ == front; }
    int32_t added() const { return added_; }  // children that have been added
    T* matrix() { return numbers_.data(); }   // [n, ld], upper, without the pairs; right-hand sides in the columns n..
    T* bound() { return numbers_.data() + n_ * ld_; }

    // Add a message, which is used up. False where the message has to wait.
    bool add(const PlanView& plan, const Message& message, const T* stack, int64_t columns) {
        const Shape shape = plan.front(message.front).shape;
        bool waits = message.delayed;
        for (int32_t x = 0; x < shape.num_runs; ++x)
            waits |= runs_of(shape)[x].place < p_;  // pairs are substituted later
        if (waits) return false;
        Messages<T>{plan, &message, 1, stack, columns}.add_to_rest(
            {p_, {matrix(), ld_}, {matrix() + n_, ld_, 1}, bound()});
        ++added_;
        return true;
    }

    // Add a leaf of one pair, x = f·ξ with the second derivative d, without a message: d f fᵀ. False where the leaf is
    // not of this kind, or is in doubt. `f` is work space.
    bool add_leaf(const Front& leaf, const T* sources, T* f) {
        const Shape& shape = leaf.shape;
        if (shape.p != 1 || shape.q || shape.flags & (kCross | kNested)) return false;
        T d = 0;
        if (!read_leaf(leaf, sources, f, d)) return false;
        int64_t begin = 0, end = 0;  // the longest run
        if (!place_runs(shape, begin, end)) return false;
        const int32_t* places = places_.data();
        for (int64_t i = 0; i < shape.b; ++i) {
            const T scaled = d * f[i];
            T* row = matrix() + places[i] * ld_;
            const int64_t from = max(i, begin);
            if (i + kAhead < shape.b) ask_for<true>(matrix() + places[i + kAhead] * ld_ + places[begin], end - begin);
            add_scattered(i, begin, scaled, f, places, row);
            if (from < end) axpy(row + places[from], scaled, f + from, end - from);
            add_scattered(max(i, end), shape.b, scaled, f, places, row);
            bound()[places[i]] += abs(scaled * f[i]);
        }
        ++added_;
        return true;
    }

    // Whether a leaf may add its Schur complement to block_of(shape): its unknowns must stand side by side.
    bool is_open_to(int32_t number, const Front& leaf) const {
        const Shape& shape = leaf.shape;
        const bool has_r = shape.num_blocks && shape.blocks[shape.num_blocks - 1].kind == kR;
        return ahead_of(number) && !shape.q && shape.num_runs == 1 && runs_of(shape)->place >= p_ && !has_r;
    }
    T* block_of(const Shape& shape) { return matrix() + (runs_of(shape)->place - p_) * (ld_ + 1); }
    int64_t width() const { return ld_; }

    // What such a leaf summed into the diagonal: `size`, but no less than what changed. `before`: the diagonal before.
    void add_sizes(const Shape& shape, const T* size, const T* before) {
        const T* block = block_of(shape);
        T* to = bound() + runs_of(shape)->place - p_;
        for (int64_t i = 0; i < shape.b; ++i) to[i] += max(size[i], abs(block[i * (ld_ + 1)] - before[i]));
        ++added_;
    }

    void end() { front_ = -1; }
    void begin_again() { front_ = -1, seen_ = 0; }

private:
    static GNEWT_INLINE void add_scattered(int64_t from, int64_t to, T scale, const T* __restrict f,
                                           const int32_t* places, T* __restrict row) {
#pragma GCC unroll 4
        for (int64_t j = from; j < to; ++j) row[places[j]] += scale * f[j];
    }

    // Read f and d of a leaf; false where the leaf has other sources, or d is in doubt.
    bool read_leaf(const Front& leaf, const T* sources, T* f, T& d) const {
        const Shape& shape = leaf.shape;
        T size = 0;
        std::memset(f, 0, size_t(shape.b) * sizeof(T));
        for (int32_t k = 0; k < shape.num_blocks; ++k) {
            const T* src = sources + leaf.sources[k];
            if (shape.blocks[k].kind == kPP)
                d += *src, size += abs(*src);
            else if (shape.blocks[k].kind == kF)
                for_each(shape.blocks[k], src, [&](int64_t, int64_t j, T v) { f[j] += v; });
            else
                return false;
        }
        return abs(d) >= T(kDoubtful) * size;
    }

    // Find where the separator of a leaf stands, and the longest run [begin, end) of it. False where runs do not
    // ascend, or a pair is among the unknowns.
    bool place_runs(const Shape& shape, int64_t& begin, int64_t& end) {
        for (int32_t x = 0, last = p_ - 1; x < shape.num_runs; ++x) {
            const RunRecord& run = runs_of(shape)[x];
            if (run.place <= last) return false;
            for (int32_t i = 0; i < run.length; ++i) places_[run.start + i] = run.place - p_ + i;
            last = run.place + run.length - 1;
            if (run.length > end - begin) begin = run.start, end = begin + run.length;
        }
        return true;
    }

    static constexpr int64_t kAhead = 4;  // rows that are asked for ahead
    static constexpr int32_t kMany = 4;   // leaves from which on gathering is considered

    int32_t front_ = -1, seen_ = 0, added_ = 0, p_ = 0;
    int64_t n_ = 0, ld_ = 0;
    Buffer<T> numbers_;
    Buffer<int32_t> places_;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
