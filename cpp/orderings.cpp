// Greedy elimination orders; see plan/orderings.py.
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "neighbour_set.hpp"

namespace gnewt {

namespace {

// The elimination graph, with the score of every vertex kept up to date by exact integer differences.
class EliminationGame {
public:
    EliminationGame(Rule rule, const Rows& adjacency, Span<const Count> sizes)
        : score(static_cast<std::size_t>(adjacency.size()), 0),
          rule_(rule),
          weight_(sizes),
          near_(score.size()),
          degree_(score.size(), 0),
          before_(score.size(), 0),
          is_touched_(score.size(), 0) {
        for (Count v = 0; v < adjacency.size(); ++v) {
            near(v).reserve(adjacency[v].size);
            for (Index u : adjacency[v])
                if (near(v).insert(u)) degree(v) += weight_[u];
        }
        if (rule_ == Rule::min_degree) {
            score = degree_;
            return;
        }
        for (Count v = 0; v < adjacency.size(); ++v) {
            const std::vector<Index> around = neighbours(static_cast<Index>(v));
            for (std::size_t i = 0; i < around.size(); ++i)
                for (std::size_t j = 0; j < i; ++j)
                    if (!near(around[i]).contains(around[j])) at(v) += weight_[around[i]] * weight_[around[j]];
        }
    }

    Count num_neighbours(Index v) const { return near_[static_cast<std::size_t>(v)].size(); }
    // |ι||χ|² of the elimination of v.
    double flops(Index v) const {
        const double size = static_cast<double>(weight_[v]);
        const double bag = size + static_cast<double>(degree_[static_cast<std::size_t>(v)]);
        return size * bag * bag;
    }

    // Remove v, join its neighbours with each other, and list the vertices whose score changed.
    const std::vector<Index>& eliminate(Index v) {
        const std::vector<Index> around = neighbours(v);
        touched_.clear();
        for (Index u : around) {
            touch(u);
            // The pairs (v, b) that u would have had to join are gone.
            if (rule_ == Rule::min_fill) at(u) -= weight_[v] * open_weight(u, v, around);
        }
        for (Index u : around) {
            near(u).erase(v);
            degree(u) -= weight_[v];
        }
        near(v).release();
        for (std::size_t i = 0; i < around.size(); ++i)
            for (std::size_t j = 0; j < i; ++j) join(around[i], around[j]);

        changed_.clear();
        for (Index u : touched_) {
            if (rule_ == Rule::min_degree) at(u) = degree(u);
            if (at(u) != before_[static_cast<std::size_t>(u)]) changed_.push_back(u);
            is_touched_[static_cast<std::size_t>(u)] = 0;
        }
        return changed_;
    }

    std::vector<Count> score;

private:
    NeighbourSet& near(Count v) { return near_[static_cast<std::size_t>(v)]; }
    Count& degree(Count v) { return degree_[static_cast<std::size_t>(v)]; }
    Count& at(Count v) { return score[static_cast<std::size_t>(v)]; }

    std::vector<Index> neighbours(Index v) {
        std::vector<Index> around;
        around.reserve(static_cast<std::size_t>(near(v).size()));
        near(v).for_each([&](Index u) { around.push_back(u); });
        return around;
    }

    // Weight of the neighbours of u, other than v, that are not neighbours of v.
    Count open_weight(Index u, Index v, const std::vector<Index>& around_v) {
        Count common = 0;
        for (Index b : around_v)
            if (b != u && near(u).contains(b)) common += weight_[b];
        return degree(u) - weight_[v] - common;
    }

    void touch(Index u) {
        if (is_touched_[static_cast<std::size_t>(u)]) return;
        is_touched_[static_cast<std::size_t>(u)] = 1;
        before_[static_cast<std::size_t>(u)] = at(u);
        touched_.push_back(u);
    }

    void join(Index a, Index b) {
        if (!near(a).insert(b)) return;
        if (rule_ == Rule::min_fill) {
            // a has b already, b does not have a yet: common neighbours are those of both, either way.
            const bool a_is_smaller = near(a).size() < near(b).size();
            const NeighbourSet& few = a_is_smaller ? near(a) : near(b);
            const NeighbourSet& many = a_is_smaller ? near(b) : near(a);
            Count common = 0;
            few.for_each([&](Index c) {
                if (!many.contains(c)) return;
                touch(c);
                at(c) -= weight_[a] * weight_[b];
                common += weight_[c];
            });
            at(a) += weight_[b] * (degree(a) - common);
            at(b) += weight_[a] * (degree(b) - common);
        }
        near(b).insert(a);
        degree(a) += weight_[b];
        degree(b) += weight_[a];
    }

    Rule rule_;
    Span<const Count> weight_;
    std::vector<NeighbourSet> near_;
    std::vector<Count> degree_;
    std::vector<Count> before_;  // score at the start of the step, for touched vertices
    std::vector<char> is_touched_;
    std::vector<Index> touched_, changed_;
};

}  // namespace

Count greedy_order(Rule rule, const Rows& adjacency, Span<const Count> sizes, const Rows& reads, Count wide,
                   Span<Index> order, Count most) {
    const Count num = adjacency.size();
    check_rows(adjacency, num);
    check_rows(reads, num);
    if (sizes.size != num || order.size != num || (reads.size() != 0 && reads.size() != num))
        throw InvalidInput("arrays of different lengths");

    EliminationGame game(rule, adjacency, sizes);
    std::vector<Index> waiting(static_cast<std::size_t>(num), 0);  // readers of v that are still there
    for (Index p : reads.idx) ++waiting[static_cast<std::size_t>(p)];

    // Entries of the heap go stale when a score changes; the vertex is then pushed anew.
    using Candidate = std::pair<Count, Index>;  // (score, vertex): ties go to the lower vertex
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<Candidate>> heap;
    const auto offer = [&](Index v) {
        if (waiting[static_cast<std::size_t>(v)] == 0) heap.push({game.score[static_cast<std::size_t>(v)], v});
    };
    for (Count v = 0; v < num; ++v) offer(static_cast<Index>(v));

    std::vector<char> done(static_cast<std::size_t>(num), 0);
    Count tail = 0;
    double flops = 0;
    while (!heap.empty()) {
        const auto [value, v] = heap.top();
        heap.pop();
        if (done[static_cast<std::size_t>(v)] || value != game.score[static_cast<std::size_t>(v)]) continue;
        const Count around = game.num_neighbours(v);
        if (around == num - tail - 1 || around > wide) break;
        flops += game.flops(v);
        if (flops > static_cast<double>(most)) return -1;
        order[tail++] = v;
        done[static_cast<std::size_t>(v)] = 1;
        for (Index u : game.eliminate(v)) offer(u);
        if (reads.size() == 0) continue;
        for (Index p : reads[v])
            if (--waiting[static_cast<std::size_t>(p)] == 0) offer(p);
    }
    Count next = tail;
    for (Count v = num - 1; v >= 0; --v)
        if (!done[static_cast<std::size_t>(v)]) order[next++] = static_cast<Index>(v);
    return tail;
}

}  // namespace gnewt
