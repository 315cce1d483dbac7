// Tree decompositions by symbolic elimination; see plan/tree.py.
#include <algorithm>
#include <limits>

#include "planner.hpp"

namespace gnewt {

namespace {

// Items numbered by their elimination: the rank of an item counts the items eliminated before it. A step
// eliminates consecutive ranks, so "later than this step" is one comparison.
struct Ranks {
    std::vector<Index> item_of_rank;
    std::vector<Index> rank_of_item;  // kNone for a number that no item bears
    std::vector<Count> first_rank;    // of each step, and one past the last
    std::vector<Index> step_of_rank;
};

Ranks rank_items(Span<const Index> order, Count tail, Span<const Index> vertex_of_item) {
    const Count num = order.size;
    std::vector<Index> position(u(num), kNone);
    for (Count i = 0; i < num; ++i) {
        if (order[i] < 0 || order[i] >= num || position[u(order[i])] != kNone)
            throw InvalidInput("the order is not a permutation");
        position[u(order[i])] = static_cast<Index>(i);
    }
    // A counting sort by position keeps the items of one vertex in ascending order.
    std::vector<Count> start(u(num + 1), 0);
    for (Index v : vertex_of_item) {
        if (v >= num) throw InvalidInput("an item of a vertex that does not exist");
        if (v >= 0) ++start[u(position[u(v)]) + 1];
    }
    for (Count i = 0; i < num; ++i) start[u(i + 1)] += start[u(i)];
    const Count steps = std::min(num, tail + 1);
    Ranks ranks;
    ranks.first_rank.assign(start.begin(), start.begin() + steps);
    ranks.first_rank.push_back(start[u(num)]);
    ranks.item_of_rank.resize(u(start[u(num)]));
    ranks.rank_of_item.assign(u(vertex_of_item.size), kNone);
    for (Count item = 0; item < vertex_of_item.size; ++item) {
        if (vertex_of_item[item] < 0) continue;
        const Count rank = start[u(position[u(vertex_of_item[item])])]++;
        ranks.item_of_rank[u(rank)] = static_cast<Index>(item);
        ranks.rank_of_item[u(item)] = static_cast<Index>(rank);
    }
    ranks.step_of_rank.resize(ranks.item_of_rank.size());
    for (Count step = 0; step < steps; ++step)
        std::fill(ranks.step_of_rank.begin() + ranks.first_rank[u(step)],
                  ranks.step_of_rank.begin() + ranks.first_rank[u(step + 1)], static_cast<Index>(step));
    return ranks;
}

// Lists of children, one per parent, linked through the children.
class Forest {
public:
    explicit Forest(Count num) : first_(u(num), kNone), sibling_(u(num), kNone) {}

    void push_front(Index parent, Index child) {
        sibling_[u(child)] = first_[u(parent)];
        first_[u(parent)] = child;
    }
    Index first(Count parent) const { return first_[u(parent)]; }
    Index sibling(Count child) const { return sibling_[u(child)]; }

private:
    std::vector<Index> first_, sibling_;
};

// What every step leaves coupled: ranks, step after step, unsorted.
struct Elimination {
    std::vector<Index> parent;  // the step at which the first of the coupled items goes
    std::vector<Count> ptr;
    std::vector<Index> idx;

    Count size(Count step) const { return ptr[u(step + 1)] - ptr[u(step)]; }
};

Elimination eliminate(const Rows& adjacency, const Ranks& ranks, Forest& children, Count limit) {
    const Count steps = static_cast<Count>(ranks.first_rank.size()) - 1;
    Elimination result;
    result.parent.assign(u(steps), kNone);
    result.ptr.assign(1, 0);
    std::vector<Index> seen(ranks.item_of_rank.size(), kNone);
    for (Count step = 0; step < steps; ++step) {
        const Count own = ranks.first_rank[u(step)], later = ranks.first_rank[u(step + 1)];
        Index lowest = std::numeric_limits<Index>::max();
        const auto add = [&](Index rank) {
            if (rank < later || seen[u(rank)] == step) return;
            seen[u(rank)] = static_cast<Index>(step);
            lowest = std::min(lowest, rank);
            result.idx.push_back(rank);
        };
        for (Count rank = own; rank < later; ++rank) {
            for (Index item : adjacency[ranks.item_of_rank[u(rank)]]) {
                if (ranks.rank_of_item[u(item)] == kNone) throw InvalidInput("a coupling to no item");
                add(ranks.rank_of_item[u(item)]);
            }
        }
        for (Index c = children.first(step); c != kNone; c = children.sibling(c))
            for (Count i = result.ptr[u(c)]; i < result.ptr[u(c) + 1]; ++i) add(result.idx[u(i)]);
        result.ptr.push_back(static_cast<Count>(result.idx.size()));
        if (result.ptr.back() > limit) throw OverLimit("separators over the limit");
        if (result.size(step) > 0) {
            result.parent[u(step)] = ranks.step_of_rank[u(lowest)];
            children.push_front(result.parent[u(step)], static_cast<Index>(step));
        }
    }
    return result;
}

// Name each step's bag by its last step. A child whose separator is exactly its parent's bag joins it, the
// highest one if there are several.
std::vector<Index> join_steps(const Ranks& ranks, const Elimination& game, const Forest& children) {
    const Count steps = static_cast<Count>(game.parent.size());
    std::vector<Index> top(u(steps));
    for (Count step = 0; step < steps; ++step) top[u(step)] = static_cast<Index>(step);
    for (Count p = steps - 1; p >= 0; --p) {
        const Count whole = ranks.first_rank[u(p + 1)] - ranks.first_rank[u(p)] + game.size(p);
        Index heir = kNone;
        for (Index c = children.first(p); c != kNone; c = children.sibling(c))
            if (game.size(c) == whole && c > heir) heir = c;
        if (heir != kNone) top[u(heir)] = top[u(p)];
    }
    return top;
}

// Number the bags in postorder; siblings, and roots, go by their first step.
std::vector<Index> postorder(const std::vector<Index>& top, const std::vector<Index>& parent) {
    const Count steps = static_cast<Count>(top.size());
    std::vector<Index> by_first_step;
    std::vector<char> found(u(steps), 0);
    for (Index t : top) {
        if (!found[u(t)]) by_first_step.push_back(t);
        found[u(t)] = 1;
    }
    Forest kids(steps + 1);  // the last one stands above the roots
    for (auto t = by_first_step.rbegin(); t != by_first_step.rend(); ++t) {
        const Index p = parent[u(*t)];
        kids.push_front(p == kNone ? static_cast<Index>(steps) : top[u(p)], *t);
    }
    std::vector<Index> sequence, path;
    sequence.reserve(by_first_step.size());
    // Walk down to the first leaf, then alternate between finishing a bag and descending into its sibling.
    const auto descend = [&](Index t) {
        for (; t != kNone; t = kids.first(t)) path.push_back(t);
    };
    descend(kids.first(steps));
    while (!path.empty()) {
        const Index t = path.back();
        path.pop_back();
        sequence.push_back(t);
        descend(kids.sibling(t));
    }
    return sequence;
}

}  // namespace

Tree decompose(const Rows& adjacency, Span<const Index> order, Count tail, Span<const Index> vertex_of_item,
               Count limit) {
    check_rows(adjacency, adjacency.size());
    if (vertex_of_item.size != adjacency.size() || tail < 0) throw InvalidInput("arrays of different lengths");
    const Ranks ranks = rank_items(order, tail, vertex_of_item);
    Forest children(static_cast<Count>(ranks.first_rank.size()) - 1);
    const Elimination game = eliminate(adjacency, ranks, children, limit);
    const std::vector<Index> top = join_steps(ranks, game, children);
    const std::vector<Index> sequence = postorder(top, game.parent);

    const Count steps = static_cast<Count>(top.size()), bags = static_cast<Count>(sequence.size());
    std::vector<Index> number(u(steps), kNone);
    for (Count i = 0; i < bags; ++i) number[u(sequence[u(i)])] = static_cast<Index>(i);

    Tree tree;
    tree.parent.resize(u(bags));
    tree.frontal_ptr.assign(u(bags + 1), 0);
    tree.separator_ptr.assign(u(bags + 1), 0);
    for (Count step = 0; step < steps; ++step)
        tree.frontal_ptr[u(number[u(top[u(step)])]) + 1] += ranks.first_rank[u(step + 1)] - ranks.first_rank[u(step)];
    for (Count i = 0; i < bags; ++i) {
        const Index t = sequence[u(i)], p = game.parent[u(t)];
        tree.parent[u(i)] = p == kNone ? kNone : number[u(top[u(p)])];
        tree.frontal_ptr[u(i + 1)] += tree.frontal_ptr[u(i)];
        tree.separator_ptr[u(i + 1)] = tree.separator_ptr[u(i)] + game.size(t);
    }
    tree.frontal_idx.resize(ranks.item_of_rank.size());
    std::vector<Count> next(tree.frontal_ptr.begin(), tree.frontal_ptr.end() - 1);
    for (Count step = 0; step < steps; ++step)
        for (Count rank = ranks.first_rank[u(step)]; rank < ranks.first_rank[u(step + 1)]; ++rank)
            tree.frontal_idx[u(next[u(number[u(top[u(step)])])]++)] = ranks.item_of_rank[u(rank)];
    tree.separator_idx.reserve(u(tree.separator_ptr.back()));
    std::vector<Index> separator;
    for (Index t : sequence) {
        separator.assign(game.idx.begin() + game.ptr[u(t)], game.idx.begin() + game.ptr[u(t) + 1]);
        std::sort(separator.begin(), separator.end());
        for (Index rank : separator) tree.separator_idx.push_back(ranks.item_of_rank[u(rank)]);
    }
    return tree;
}

}  // namespace gnewt
