// Approximate minimum degree on the quotient graph; see plan/approximate.py.
#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "planner.hpp"

namespace gnewt {

namespace {

constexpr Count kTail = 32;  // vertices beyond which a rest that is complete is not taken apart

// What an elimination leaves, without its fill: the vertices that an eliminated one has joined are kept as one list, an
// *element*, named by the eliminated vertex. A vertex knows those of its first neighbours that no element covers, and
// behind them the elements that it is in. The two lists never grow together: they stay where the graph's row was.
class QuotientGraph {
public:
    QuotientGraph(const Rows& adjacency, Span<const Count> sizes, Span<const Index> stage)
        : weight(u(adjacency.size()), 0),
          degree(weight.size(), 0),
          next(weight.size(), kNone),
          last_(weight.size()),
          first_(adjacency.ptr.begin(), adjacency.ptr.end()),
          num_near_(weight.size(), 0),
          num_elements_(weight.size(), 0),
          list_(adjacency.idx.begin(), adjacency.idx.end()),
          members_(weight.size()),
          element_weight_(weight.size(), 0),
          outside_(weight.size(), 0),
          seen_(weight.size(), kNone),
          mark_(weight.size(), kNone),
          compare_(weight.size(), 0) {
        for (Count v = 0; v < adjacency.size(); ++v) {
            last_[u(v)] = static_cast<Index>(v);
            if (stage[v] >= 0) weight[u(v)] = sizes[v];
            left += weight[u(v)];
        }
        for (Count v = 0; v < adjacency.size(); ++v) {
            for (Index w : adjacency[v]) {
                if (!is_left(w)) continue;
                list_[u(first_[u(v)] + num_near_[u(v)]++)] = w;
                degree[u(v)] += weight[u(w)];
            }
        }
    }

    bool is_left(Index v) const { return weight[u(v)] > 0; }

    // List the vertices around p, which is eliminated, and drop the elements that they cover.
    void eliminate(Index p) {
        joined.clear();
        mark_[u(p)] = p;
        const auto join = [&](Index v) {
            if (!is_left(v) || mark_[u(v)] == p) return;
            mark_[u(v)] = p;
            joined.push_back(v);
            joined_weight += weight[u(v)];
        };
        joined_weight = 0;
        const Count first = first_[u(p)], middle = first + num_near_[u(p)], end = middle + num_elements_[u(p)];
        for (Count k = first; k < middle; ++k) join(list_[u(k)]);
        for (Count k = middle; k < end; ++k) {
            for (Index v : members_[u(list_[u(k)])]) join(v);
            work += static_cast<Count>(members_[u(list_[u(k)])].size());
            drop(list_[u(k)]);
        }
        left -= weight[u(p)];
        // Of every element around: what p has not joined.
        for (Index v : joined) {
            const Count elements = first_[u(v)] + num_near_[u(v)];
            for (Count k = elements; k < elements + num_elements_[u(v)]; ++k) {
                const Count e = list_[u(k)];
                if (seen_[u(e)] != p) outside_[u(e)] = element_weight_[u(e)];
                seen_[u(e)] = p;
                outside_[u(e)] -= weight[u(v)];
            }
            work += num_elements_[u(v)];
        }
    }

    // Rewrite the lists of a vertex that p has joined, and bound the scalars around it that p has not joined. Returns a
    // number that vertices with equal lists share.
    Count update(Index v, Index p) {
        const Count first = first_[u(v)], middle = first + num_near_[u(v)], end = middle + num_elements_[u(v)];
        Count at = first, sum = 0, hash = 0;
        const auto keep = [&](Index name, Count scalars) {
            list_[u(at++)] = name;
            hash += name;
            sum += scalars;
        };
        for (Count k = first; k < middle; ++k) {
            const Index w = list_[u(k)];
            if (is_left(w) && mark_[u(w)] != p) keep(w, weight[u(w)]);
        }
        num_near_[u(v)] = at - first;
        for (Count k = middle; k < end; ++k) {
            const Index e = list_[u(k)];
            if (members_[u(e)].empty()) continue;
            if (outside_[u(e)] == 0)
                drop(e);  // p has joined all of it
            else
                keep(e, outside_[u(e)]);
        }
        list_[u(at++)] = p;
        num_elements_[u(v)] = at - first - num_near_[u(v)];
        work += end - first;
        degree[u(v)] = std::min(degree[u(v)], sum);
        return hash;
    }

    // Whether p and what p has joined are all that v has around it.
    bool is_alone(Index v) const { return num_near_[u(v)] == 0 && num_elements_[u(v)] == 1; }

    // Whether b has the neighbours that `compare_with(a)` has noted.
    bool is_twin(Index a, Index b) {
        if (num_near_[u(a)] != num_near_[u(b)] || num_elements_[u(a)] != num_elements_[u(b)]) return false;
        const Count size = num_near_[u(b)] + num_elements_[u(b)];
        work += size;
        for (Count k = 0; k < size; ++k)
            if (compare_[u(list_[u(first_[u(b)] + k)])] != stamp_) return false;
        return true;
    }
    void compare_with(Index a) {
        ++stamp_;
        const Count size = num_near_[u(a)] + num_elements_[u(a)];
        for (Count k = 0; k < size; ++k) compare_[u(list_[u(first_[u(a)] + k)])] = stamp_;
    }

    // b goes with a from now on.
    void merge(Index a, Index b) {
        weight[u(a)] += weight[u(b)];
        weight[u(b)] = 0;
        next[u(last_[u(a)])] = b;
        last_[u(a)] = last_[u(b)];
    }

    // Keep what p has joined as an element, and finish the bounds on its members' degrees.
    void settle(Index p) {
        weight[u(p)] = 0;
        for (Index v : joined) {
            if (!is_left(v)) continue;
            members_[u(p)].push_back(v);
            degree[u(v)] = std::min(degree[u(v)] + joined_weight, left) - weight[u(v)];
        }
        element_weight_[u(p)] = joined_weight;
    }

    std::vector<Count> weight;  // of a vertex and those that go with it; 0 once it is gone, or goes with another
    std::vector<Count> degree;  // scalars around it, at most
    std::vector<Index> next;    // the next one of those that go together
    std::vector<Index> joined;  // by the elimination under way
    Count joined_weight = 0;
    Count left = 0;  // scalars that are not eliminated
    Count work = 0;

private:
    void drop(Index e) { std::vector<Index>().swap(members_[u(e)]); }

    std::vector<Index> last_;
    std::vector<Count> first_, num_near_, num_elements_;
    std::vector<Index> list_;
    std::vector<std::vector<Index>> members_;  // of the elements
    std::vector<Count> element_weight_, outside_;
    std::vector<Index> seen_, mark_;
    std::vector<Count> compare_;
    Count stamp_ = 0;
};

class ApproximateDegree {
public:
    ApproximateDegree(const Rows& adjacency, Span<const Count> sizes, const Rows& reads, Span<const Index> stage)
        : graph_(adjacency, sizes, stage), reads_(reads), stage_(stage), waiting_(u(adjacency.size()), 0) {
        for (Index v : reads.idx) ++waiting_[u(v)];
        for (Count v = 0; v < adjacency.size(); ++v) {
            if (stage[v] >= 0) ++num_left_;
            offer(static_cast<Index>(v));
        }
    }

    // Write the order of the vertices that take part; returns how many, or -1 beyond `most` flops.
    Count run(Span<Index> order, Count most, Count patience) {
        double flops = 0;
        Count at = 0;
        while (!heap_.empty()) {
            const auto [turn, value, behind] = heap_.top();
            const Index p = -behind;
            heap_.pop();
            if (!graph_.is_left(p) || value != graph_.degree[u(p)]) continue;  // it was pushed anew
            if (graph_.work > patience) break;
            graph_.eliminate(p);
            if (graph_.joined_weight == graph_.left && num_left_ - at > kTail) break;  // what is left is one front
            const Count begin = at, size = settle(p);
            const double own = static_cast<double>(size), bag = own + static_cast<double>(graph_.joined_weight);
            flops += own * bag * bag;
            if (flops > static_cast<double>(most)) return -1;
            for (Index v = p; v != kNone; v = graph_.next[u(v)]) order[at++] = v;
            for (Count k = begin; k < at; ++k) release(order[k]);
        }
        return at;
    }

private:
    using Candidate = std::tuple<Index, Count, Index>;  // stage, degree, vertex from behind

    bool is_ready(Index v) const { return waiting_[u(v)] == 0; }
    void offer(Index v) {
        if (graph_.is_left(v) && is_ready(v)) heap_.push({stage_[v], graph_.degree[u(v)], -v});
    }
    // Those that v reads have one reader less.
    void release(Index v) {
        if (reads_.size() == 0) return;
        for (Index w : reads_[v])
            if (--waiting_[u(w)] == 0) offer(w);
    }

    // Finish the elimination of p, and of those that can go with it; returns their scalars.
    Count settle(Index p) {
        hashes_.clear();
        for (Index v : graph_.joined) {
            const Count hash = graph_.update(v, p);
            if (!is_ready(v)) continue;
            if (graph_.is_alone(v) && stage_[v] == stage_[p]) {
                graph_.left -= graph_.weight[u(v)];
                graph_.joined_weight -= graph_.weight[u(v)];
                graph_.merge(p, v);
            } else {
                hashes_.push_back({hash, v});
            }
        }
        join_twins();
        const Count size = graph_.weight[u(p)];
        graph_.settle(p);
        for (Index v : graph_.joined) offer(v);
        return size;
    }

    void join_twins() {
        std::sort(hashes_.begin(), hashes_.end());
        for (std::size_t i = 0; i < hashes_.size(); ++i) {
            const auto [hash, a] = hashes_[i];
            if (i + 1 == hashes_.size() || hashes_[i + 1].first != hash || !graph_.is_left(a)) continue;
            graph_.compare_with(a);
            for (std::size_t j = i + 1; j < hashes_.size() && hashes_[j].first == hash; ++j) {
                const Index b = hashes_[j].second;
                if (graph_.is_left(b) && stage_[a] == stage_[b] && graph_.is_twin(a, b)) graph_.merge(a, b);
            }
        }
    }

    QuotientGraph graph_;
    const Rows& reads_;
    Span<const Index> stage_;
    Count num_left_ = 0;          // vertices that take part
    std::vector<Index> waiting_;  // readers of a vertex that are still there
    // Entries go stale when a degree changes; the vertex is then pushed anew.
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<Candidate>> heap_;
    std::vector<std::pair<Count, Index>> hashes_;
};

}  // namespace

Count approximate_order(const Rows& adjacency, Span<const Count> sizes, const Rows& reads, Span<const Index> stage,
                        Span<Index> order, Count most, Count patience) {
    const Count num = adjacency.size();
    check_rows(adjacency, num);
    check_rows(reads, num);
    if (sizes.size != num || order.size != num || stage.size != num || (reads.size() != 0 && reads.size() != num))
        throw InvalidInput("arrays of different lengths");
    ApproximateDegree game(adjacency, sizes, reads, stage);
    const Count gone = game.run(order, most, patience);
    if (gone < 0) return -1;
    std::vector<char> done(u(num), 0);
    for (Count k = 0; k < gone; ++k) done[u(order[k])] = 1;
    Count at = gone;
    bool complete = true;
    for (Count v = num - 1; v >= 0; --v) {
        if (done[u(v)]) continue;
        order[at++] = static_cast<Index>(v);
        complete = complete && stage[v] < 0;
    }
    return complete ? num : gone;
}

}  // namespace gnewt
