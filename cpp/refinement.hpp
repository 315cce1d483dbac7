// Fiduccia and Mattheyses' moves, for vertex separators; see plan/refinement.py.
#pragma once

#include <queue>
#include <utility>

#include "separator.hpp"

namespace gnewt {

// Vertices leave the separator for one side, one at a time, and pull their neighbours on the other side into it.
class Refinement {
public:
    Refinement(const WeightedGraph& graph, Cut& cut);

    // Grow the left side from a vertex until it is as heavy as the right one, and keep the best cut on the way.
    void grow(Index seed);
    // Move vertices until no round of moves gives a better cut.
    void refine();

private:
    using Candidate = std::pair<Count, Index>;  // gain, vertex: ties go to the higher vertex
    using Queue = std::priority_queue<Candidate>;

    Count gain(Index v, int to) const { return graph_.weight[u(v)] - pulled_[to][u(v)]; }
    bool is_between(Index v) const { return cut_.side[u(v)] == kBetween; }
    bool is_allowed(Index v, int to) const;
    void put(Index v, int to);
    void weigh(Index v);
    void move(Index v, int to);
    void take_back(std::size_t kept);
    bool improve();
    int choose(Queue (&queue)[2]) const;
    template <class F>
    void around(Index v, F visit) const {
        for (Count k = graph_.ptr[u(v)]; k < graph_.ptr[u(v) + 1]; ++k) visit(graph_.idx[u(k)]);
    }

    const WeightedGraph& graph_;
    Cut& cut_;
    Count heaviest_;
    std::vector<Count> pulled_[2];  // what a vertex of the separator would pull into it, by the side that it goes to
    std::vector<char> locked_;
    std::vector<Index> changed_;              // vertices of the separator whose gains the last move has changed
    std::vector<std::pair<Index, int>> log_;  // a vertex, and where it was
};

}  // namespace gnewt
