// Vertex separators of graphs, found on a coarser graph and refined on the way back; see plan/separators.py.
#pragma once

#include "planner.hpp"

namespace gnewt {

// A graph of its own. A vertex weighs what the vertices that it stands for weigh together; `bond` counts the edges that
// an edge stands for.
struct WeightedGraph {
    std::vector<Count> ptr{0};
    std::vector<Index> idx;
    std::vector<Count> bond;
    std::vector<Count> weight;

    Count size() const { return static_cast<Count>(weight.size()); }
    Count degree(Index v) const { return ptr[u(v) + 1] - ptr[u(v)]; }
    Count total() const;
};

// Numbers that look random and are the same everywhere: a linear congruential generator (Knuth's MMIX).
class Draws {
public:
    // A number below `bound`.
    Count below(Count bound) {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        return static_cast<Count>((state_ >> 33) % static_cast<std::uint64_t>(bound));
    }

private:
    std::uint64_t state_ = 1;
};

constexpr int kLeft = 0, kRight = 1, kBetween = 2;

// Where every vertex is; no edge joins left and right.
struct Cut {
    std::vector<char> side;
    Count weight[3] = {0, 0, 0};

    // Less is better: a light separator, and sides that are not too different.
    Count score() const;
};

// The best of several separators of a graph that has vertices.
Cut separate(const WeightedGraph& graph, Draws& draws, Count tries);

}  // namespace gnewt
