// Packs: up to eight problems with one plan, side by side in the lanes of vectors, from the leaves up and down again, in
// the quick form. Made for batches of small fronts, where a single problem leaves most of a vector empty.
//
// A lane in doubt goes on, but nothing is written of it: its problem is eliminated alone (packs.cpp), by the forms
// that can be careful.
#pragma once
#include "pack_call.hpp"
#include "pack_front.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// The tree with the numbers of a pack, for an elimination and for other right-hand sides.
template <class T>
class PackTree {
    using V = Eight<T>;

public:
    // Whether a plan is for packs: all its fronts are small, and so is its memory.
    static bool takes(const PlanView& plan, int64_t columns) {
#if defined(__AVX512F__)
        constexpr int64_t most = 28;
#else
        constexpr int64_t most = 20;  // two registers for a vector of eight
#endif
        return plan.causal() && columns == 1 && plan.data[kMaxPairs] + plan.data[kMaxRest] <= most &&
               plan.data[kNumSources] <= kMostSources;
    }

    explicit PackTree(const int32_t* plan) : plan_{plan} {}

    bool reserve() {
        return sources_.reserve(plan_.data[kNumSources] + 1) && z_.reserve(plan_.num_slots() + 1) &&
               rows_.reserve(plan_.rows_size() + 1) && local_.reserve(2 * PackFront<T>::kMostInFront);
    }

    // Take the problems' sources, and their right-hand sides at the inputs.
    void take(const LanePointers<const T>& sources, const LanePointers<const T>& rhs) {
        interleave(sources, plan_.data[kNumSources], sources_.data());
        interleave(rhs, plan_.num_inputs(), z_.data());
    }

    const PlanView& plan() const { return plan_; }
    const V* sources() { return sources_.data(); }
    V* z() { return z_.data(); }
    V* rows() { return rows_.data(); }

    // Solutions from the roots down, where z holds right-hand sides as rows of L.
    void descend() {
        const V* l = rows_.data() + plan_.rows_size();
        V *z = z_.data(), *rest = local_.data(), *x = rest + PackFront<T>::kMostInFront;
        for (int32_t f = plan_.num_fronts() - 1; f >= 0; --f) {
            const Front front = plan_.front(f);
            const int64_t p = front.shape.p, q = front.shape.q, n = q + front.shape.b;
            const int32_t* slots = front.slots;
            l -= q * n;
            if (q == 0 && !front.num_children) continue;  // no one reads the pairs of a leaf
            for (int64_t i = 0; i < n; ++i) rest[i] = z[slots[p + i]];
            for (int64_t k = q - 1; k >= 0; --k) {
                V u = rest[k];
                for (int64_t j = k + 1; j < n; ++j) u -= l[k * n + j] * rest[j];
                rest[k] = z[slots[p + k]] = u;
            }
            if (!p || !front.num_children) continue;
            substitute(front, x, rest);
            for (int64_t i = 0; i < p; ++i) z[slots[i]] = x[i];
        }
    }

    // Another right-hand side, which z holds at the inputs, up the tree.
    void ascend() {
        const V* l = rows_.data();
        V *z = z_.data(), *rest = local_.data(), *x = rest + PackFront<T>::kMostInFront;
        for (int64_t i = plan_.num_inputs(); i < plan_.num_slots(); ++i) z[i] = V{};
        for (int32_t f = 0; f < plan_.num_fronts(); ++f) {
            const Front front = plan_.front(f);
            const int64_t p = front.shape.p, q = front.shape.q, n = q + front.shape.b;
            const int32_t* slots = front.slots;
            for (int64_t i = 0; i < p; ++i) x[i] = z[slots[i]];
            for (int64_t i = 0; i < n; ++i) rest[i] = z[slots[p + i]];
            if (p) lift(front, x, rest);
            for (int64_t k = 0; k < q; ++k) {
                for (int64_t j = k + 1; j < n; ++j) rest[j] -= l[k * n + j] * rest[k];
                rest[k] /= l[k * n + k];
            }
            for (int64_t i = 0; i < n; ++i) z[slots[p + i]] = rest[i];
            l += q * n;
        }
    }

private:
    static constexpr int64_t kMostSources = int64_t(1) << 20;

    // x = F [u; ξ], with F read from the sources; each pair reads later pairs only.
    void substitute(const Front& front, V* x, const V* rest) {
        const Shape& s = front.shape;
        const V* sources = sources_.data();
        for (int64_t i = 0; i < s.p; ++i) x[i] = V{};
        for (int32_t k = 0; k < s.num_blocks && s.blocks[k].kind == kF; ++k) {
            const V* from = sources + front.sources[k];
            for_places(s.blocks[k], [&](int64_t i, int64_t j, int64_t at) GNEWT_LAMBDA { x[i] += from[at] * rest[j]; });
        }
        if (!(s.flags & kNested)) return;
        for (int32_t row = s.p - 1; row >= 0; --row)
            for_reads(front, sources, row, [&](int64_t j, V value) { x[row] += value * x[j]; });
    }
    // What the pairs pass to the rest: its transpose.
    void lift(const Front& front, V* x, V* rest) {
        const Shape& s = front.shape;
        const V* sources = sources_.data();
        if (s.flags & kNested)
            for (int32_t row = 0; row < s.p; ++row)
                for_reads(front, sources, row, [&](int64_t j, V value) { x[j] += value * x[row]; });
        for (int32_t k = 0; k < s.num_blocks && s.blocks[k].kind == kF; ++k) {
            const V* from = sources + front.sources[k];
            for_places(s.blocks[k], [&](int64_t i, int64_t j, int64_t at) GNEWT_LAMBDA { rest[j] += from[at] * x[i]; });
        }
    }

    const PlanView plan_;
    Buffer<V> sources_, z_, rows_, local_;  // z_ [slots]; rows_: rows of L, front after front
};

// Factor and solve a pack: `count` calls with one plan. Returns, as bits, the lanes that are done.
template <class T>
unsigned eliminate_pack(const Call<T>* calls, int count) {
    using V = Eight<T>;
    const Call<T>& first = calls[0];
    if (!fits(first.plan, first.plan_len, first.sources_len, first.num_inputs) ||
        !PackTree<T>::takes({first.plan}, first.columns))
        return 0;
    PackTree<T> tree(first.plan);
    const PlanView& plan = tree.plan();
    Buffer<V> work, stack;
    Buffer<int64_t> waiting;  // where messages begin, and the end of the last
    if (plan.rows_size() > first.factor_len || !tree.reserve() ||
        !work.reserve(PackFront<T>::room(plan.data[kMaxPairs] + plan.data[kMaxRest])) ||
        !waiting.reserve(plan.num_fronts() + 2))
        return 0;
    LanePointers<const T> sources, rhs;
    V shift{};
    for (int lane = 0; lane < kLanesOfPack; ++lane) {
        const Call<T>& call = calls[lane < count ? lane : 0];
        sources.at[lane] = call.sources, rhs.at[lane] = call.rhs, shift[lane] = call.shift;
    }
    tree.take(sources, rhs);

    PackTally<T> tally;
    Holds<V> good = V{} == V{};
    Buffer<int32_t> senders;
    if (!senders.reserve(plan.num_fronts() + 1)) return 0;
    int64_t num_waiting = 0;
    waiting[0] = 0;
    V* l = tree.rows();
    for (int32_t f = 0; f < plan.num_fronts(); ++f) {
        const Front front = plan.front(f);
        PackFront<T> pack(front, work.data());
        pack.load(tree.sources(), shift, tree.z());
        for (int64_t k = num_waiting - front.num_children; k < num_waiting; ++k) {
            const Shape child = plan.front(senders[k]).shape;
            pack.add(child, PackMessage<const V>(stack.data() + waiting[k], child.b));
        }
        num_waiting -= front.num_children;
        pack.eliminate(l, tree.z(), tally, good);
        l += int64_t(front.shape.q) * (front.shape.q + front.shape.b);
        if (!front.shape.b) continue;
        const int64_t base = waiting[num_waiting], end = base + PackMessage<V>::size(front.shape.b);
        if (!stack.reserve(end)) return 0;
        pack.write(PackMessage<V>(stack.data() + base, front.shape.b));
        senders[num_waiting++] = f;
        waiting[num_waiting] = end;
        if (f % 16 == 0 && vanishes(good ? V{} + 1 : V{})) return 0;
    }
    unsigned done = bits(good) & ((1u << count) - 1);
    for (int lane = 0; lane < count; ++lane)
        if (!finite(tally.logdet(lane))) done &= ~(1u << lane);
    if (!done) return 0;
    tree.descend();

    LanePointers<T> factors, solutions;
    for (int lane = 0; lane < count; ++lane) {
        if (!(done >> lane & 1)) continue;
        const Call<T>& call = calls[lane];
        factors.at[lane] = call.factor, solutions.at[lane] = call.solution;
        std::memset(call.info, 0, kInfoSize * sizeof(int32_t));
        call.info[kPositive] = int32_t(tally.positive[lane]), call.info[kNegative] = int32_t(tally.negative[lane]);
        call.info[kMode] = kCausal, call.info[kKept] = 1, call.info[kFirstNull] = -1;
        call.real[kLogDet] = T(tally.logdet(lane)), call.real[kSmallestPivot] = tally.smallest[lane];
        call.real[kShift] = call.shift;
        std::memset(call.null, 0, size_t(plan.num_unknowns()));
        std::memset(call.index + call.index_len - 4, 0, 4 * sizeof(int32_t));
    }
    separate(tree.rows(), plan.rows_size(), factors);
    separate(tree.z(), plan.num_inputs(), solutions);
    return done;
}

// Solve a pack for other right-hand sides: all factors have the pivots of the plan.
template <class T>
bool solve_pack(const SolveCall<T>* calls, int count) {
    const SolveCall<T>& first = calls[0];
    if (!fits(first.plan, first.plan_len, first.sources_len, first.num_inputs) ||
        !PackTree<T>::takes({first.plan}, first.columns))
        return false;
    for (int i = 0; i < count; ++i) {
        const int32_t* info = calls[i].info;
        if (info[kStatus] != kOk || !info[kKept] || info[kMode] != kCausal) return false;
    }
    PackTree<T> tree(first.plan);
    const PlanView& plan = tree.plan();
    if (!tree.reserve()) return false;
    LanePointers<const T> sources, rhs, factors;
    LanePointers<T> solutions;
    for (int lane = 0; lane < kLanesOfPack; ++lane) {
        const SolveCall<T>& call = calls[lane < count ? lane : 0];
        sources.at[lane] = call.sources, rhs.at[lane] = call.rhs, factors.at[lane] = call.factor;
        if (lane < count) solutions.at[lane] = call.solution;
    }
    tree.take(sources, rhs);
    interleave(factors, plan.rows_size(), tree.rows());
    tree.ascend();
    tree.descend();
    separate(tree.z(), plan.num_inputs(), solutions);
    return true;
}

}  // namespace GNEWT_ISA

const Packer* GNEWT_ISA_PACKER() {
    using namespace GNEWT_ISA;
    static const Packer packer{eliminate_pack<double>, eliminate_pack<float>, solve_pack<double>, solve_pack<float>};
    return &packer;
}

}  // namespace gnewt::engine
