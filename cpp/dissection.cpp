// Nested dissection; see plan/dissection.py.
#include <algorithm>

#include "separator.hpp"

namespace gnewt {

namespace {

constexpr Count kLeaf = 120;          // vertices of a part that is not cut any more
constexpr Count kLong = 10'000;       // vertices of a part for which ...
constexpr Count kFew = 2, kMany = 4;  // ... few separators are tried, and of a shorter one

// A part of the graph, and how many separators were taken out around it.
struct Part {
    std::vector<Index> vertices;
    Index depth;
};

// The part as a graph of its own; `local` has no names before and after.
WeightedGraph extract(const Rows& adjacency, Span<const Count> sizes, const std::vector<Index>& part,
                      std::vector<Index>& local) {
    for (std::size_t i = 0; i < part.size(); ++i) local[u(part[i])] = static_cast<Index>(i);
    WeightedGraph graph;
    for (Index v : part) {
        graph.weight.push_back(sizes[v]);
        for (Index w : adjacency[v])
            if (local[u(w)] != kNone) graph.idx.push_back(local[u(w)]);
        graph.ptr.push_back(static_cast<Count>(graph.idx.size()));
    }
    graph.bond.assign(graph.idx.size(), 1);
    for (Index v : part) local[u(v)] = kNone;
    return graph;
}

}  // namespace

bool dissect(const Rows& adjacency, Span<const Count> sizes, Span<Index> stage, Count most) {
    const Count num = adjacency.size();
    check_rows(adjacency, num);
    if (sizes.size != num || stage.size != num) throw InvalidInput("arrays of different lengths");
    std::vector<Index> depth(u(num), kNone);  // of the separator that a vertex is in
    std::vector<Index> local(u(num), kNone);
    std::vector<Part> parts(1, Part{{}, 0});
    for (Index v = 0; v < num; ++v)
        if (stage[v] >= 0) parts[0].vertices.push_back(v);
    Draws draws;
    Index deepest = -1;
    double flops = 0;
    while (!parts.empty()) {
        const Part part = std::move(parts.back());
        parts.pop_back();
        const Count size = static_cast<Count>(part.vertices.size());
        if (size <= kLeaf) continue;
        const Cut cut = separate(extract(adjacency, sizes, part.vertices, local), draws, size > kLong ? kFew : kMany);
        const double between = static_cast<double>(cut.weight[kBetween]);
        flops += between * between * between;
        if (flops > static_cast<double>(most)) return false;
        if (cut.weight[kLeft] == 0 || cut.weight[kRight] == 0) continue;
        Part sides[2] = {{{}, part.depth + 1}, {{}, part.depth + 1}};
        for (Count i = 0; i < size; ++i) {
            const Index v = part.vertices[u(i)];
            if (cut.side[u(i)] == kBetween)
                depth[u(v)] = part.depth;
            else
                sides[static_cast<int>(cut.side[u(i)])].vertices.push_back(v);
        }
        deepest = std::max(deepest, part.depth);
        for (Part& side : sides) parts.push_back(std::move(side));
    }
    for (Index v = 0; v < num; ++v)
        if (stage[v] >= 0) stage[v] = depth[u(v)] == kNone ? 0 : 1 + deepest - depth[u(v)];
    return true;
}

}  // namespace gnewt
