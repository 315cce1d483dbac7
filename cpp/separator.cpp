#include "separator.hpp"

#include <algorithm>
#include <numeric>

#include "refinement.hpp"

namespace gnewt {

namespace {

constexpr Count kCoarse = 80;  // vertices at which coarsening ends
constexpr int kSeeds = 6;      // regions that are grown on the coarsest graph

// Pairs of vertices that become one: neighbours with a strong bond, and then those left over that share a neighbour.
class Matching {
public:
    Matching(const WeightedGraph& graph, Draws& draws)
        : coarse_of(u(graph.size()), kNone), graph_(graph), heaviest_(1 + 3 * graph.total() / (2 * kCoarse)) {
        const std::vector<Index> sequence = shuffle(draws);
        for (Index v : sequence) {
            const Index w = coarse_of[u(v)] == kNone ? strongest(v, true) : kNone;
            if (w != kNone) pair(v, w);
        }
        std::vector<Index> waiting(u(graph.size() + 1), kNone);  // the last one is for vertices without neighbours
        for (Index v : sequence) {
            if (coarse_of[u(v)] != kNone) continue;
            const Index hub = strongest(v, false);
            Index& other = waiting[hub == kNone ? u(graph.size()) : u(hub)];
            if (other != kNone && fits(v, other)) {
                pair(v, other);
                other = kNone;
            } else {
                other = v;
            }
        }
        for (Index v : sequence)
            if (coarse_of[u(v)] == kNone) coarse_of[u(v)] = static_cast<Index>(count++);
    }

    std::vector<Index> coarse_of;
    Count count = 0;

private:
    // Vertices with few neighbours first: those with many find one in the end, too.
    std::vector<Index> shuffle(Draws& draws) const {
        std::vector<Index> sequence(coarse_of.size());
        std::iota(sequence.begin(), sequence.end(), 0);
        for (Count i = graph_.size() - 1; i > 0; --i) std::swap(sequence[u(i)], sequence[u(draws.below(i + 1))]);
        std::stable_sort(sequence.begin(), sequence.end(),
                         [&](Index a, Index b) { return graph_.degree(a) < graph_.degree(b); });
        return sequence;
    }

    // The neighbour with the strongest bond; if wanted, of those that v can be paired with.
    Index strongest(Index v, bool for_pair) const {
        Index found = kNone;
        Count bond = 0;
        for (Count k = graph_.ptr[u(v)]; k < graph_.ptr[u(v) + 1]; ++k) {
            const Index w = graph_.idx[u(k)];
            if (graph_.bond[u(k)] <= bond || (for_pair && (coarse_of[u(w)] != kNone || !fits(v, w)))) continue;
            found = w;
            bond = graph_.bond[u(k)];
        }
        return found;
    }
    bool fits(Index v, Index w) const { return graph_.weight[u(v)] + graph_.weight[u(w)] <= heaviest_; }
    void pair(Index v, Index w) { coarse_of[u(v)] = coarse_of[u(w)] = static_cast<Index>(count++); }

    const WeightedGraph& graph_;
    Count heaviest_;
};

WeightedGraph contract(const WeightedGraph& graph, const Matching& matching) {
    const Count num = matching.count;
    WeightedGraph coarse;
    coarse.weight.assign(u(num), 0);
    std::vector<Index> first(u(num), kNone), second(u(num), kNone);
    for (Index v = 0; v < graph.size(); ++v) {
        const Index c = matching.coarse_of[u(v)];
        coarse.weight[u(c)] += graph.weight[u(v)];
        (first[u(c)] == kNone ? first : second)[u(c)] = v;
    }
    std::vector<Count> at(u(num), kNone);  // where a neighbour of the present vertex was written
    for (Index c = 0; c < num; ++c) {
        const Count begin = coarse.ptr.back();
        for (Index v : {first[u(c)], second[u(c)]}) {
            if (v == kNone) continue;
            for (Count k = graph.ptr[u(v)]; k < graph.ptr[u(v) + 1]; ++k) {
                const Index w = matching.coarse_of[u(graph.idx[u(k)])];
                if (w == c) continue;
                if (at[u(w)] < begin) {
                    at[u(w)] = static_cast<Count>(coarse.idx.size());
                    coarse.idx.push_back(w);
                    coarse.bond.push_back(0);
                }
                coarse.bond[u(at[u(w)])] += graph.bond[u(k)];
            }
        }
        coarse.ptr.push_back(static_cast<Count>(coarse.idx.size()));
    }
    return coarse;
}

// Grow regions from several vertices, and refine their boundaries.
Cut first_cut(const WeightedGraph& graph, Draws& draws) {
    Cut best;
    for (int i = 0; i < kSeeds; ++i) {
        Cut cut;
        Refinement moves(graph, cut);
        moves.grow(static_cast<Index>(draws.below(graph.size())));
        moves.refine();
        if (i == 0 || cut.score() < best.score()) best = std::move(cut);
    }
    return best;
}

Cut separate_once(const WeightedGraph& graph, Draws& draws) {
    if (graph.size() <= kCoarse) return first_cut(graph, draws);
    const Matching matching(graph, draws);
    if (20 * matching.count > 19 * graph.size()) return first_cut(graph, draws);  // it hardly gets smaller
    const Cut coarse = separate_once(contract(graph, matching), draws);
    Cut cut = coarse;
    cut.side.resize(u(graph.size()));
    for (Index v = 0; v < graph.size(); ++v) cut.side[u(v)] = coarse.side[u(matching.coarse_of[u(v)])];
    Refinement(graph, cut).refine();
    return cut;
}

}  // namespace

Count WeightedGraph::total() const { return std::accumulate(weight.begin(), weight.end(), Count{0}); }

Count Cut::score() const {
    const Count all = weight[kLeft] + weight[kRight] + weight[kBetween],
                larger = std::max(weight[kLeft], weight[kRight]);
    const Count over = std::max(Count{0}, 4 * larger - 3 * all);  // beyond three quarters
    return 4 * weight[kBetween] * (all + larger + 5 * over) + larger;
}

Cut separate(const WeightedGraph& graph, Draws& draws, Count tries) {
    Cut best;
    for (Count i = 0; i < tries; ++i) {
        Cut cut = separate_once(graph, draws);
        if (i == 0 || cut.score() < best.score()) best = std::move(cut);
    }
    return best;
}

}  // namespace gnewt
