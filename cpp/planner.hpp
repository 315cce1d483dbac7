// The sequential parts of planning. Each function gives exactly what the Python function of the same name gives
// (src/gnewt/plan, src/gnewt/graph/schedule.py): the Python function is the specification.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace gnewt {

using Index = std::int32_t;  // a vertex, an item, a bag
using Count = std::int64_t;  // a position in a long array, a sum of sizes

constexpr Index kNone = -1;

// A position as std::vector wants it.
inline std::size_t u(Count i) { return static_cast<std::size_t>(i); }

// A view of an array that the caller owns.
template <class T>
struct Span {
    T* data;
    Count size;

    T& operator[](Count i) const { return data[i]; }
    T* begin() const { return data; }
    T* end() const { return data + size; }
};

// Rows of indices in CSR form: row i is idx[ptr[i] .. ptr[i + 1]).
struct Rows {
    Span<const Count> ptr;
    Span<const Index> idx;

    Count size() const { return ptr.size - 1; }
    Span<const Index> operator[](Count i) const { return {idx.data + ptr[i], ptr[i + 1] - ptr[i]}; }
};

// Arguments that contradict each other; the C interface turns this into a status.
struct InvalidInput : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// More separator elements than the caller allowed.
struct OverLimit : std::length_error {
    using std::length_error::length_error;
};

// Throw InvalidInput unless the rows lie one after the other in idx, and every index is in [0, bound).
void check_rows(const Rows& rows, Count bound);

// Rows of a relation from its pairs (a[i], b[i]): sorted, each index once, no row with itself. `idx` has room for all
// pairs; the result is how many indices are left.
Count join_pairs(Count num, Span<const Count> a, Span<const Count> b, bool symmetric, Span<Count> ptr, Span<Index> idx);

// Elimination orders (orderings.cpp)

enum class Rule { min_degree, min_fill };

// Play the elimination game; write the order and return where the tail begins.
// `reads` has no rows for a free order; otherwise a vertex waits until all its readers are gone.
Count greedy_order(Rule rule, const Rows& adjacency, Span<const Count> sizes, const Rows& reads, Count wide,
                   Span<Index> order, Count most);

// Eliminate next the vertex with the fewest scalars around it, as far as the quotient graph tells; those of a lower
// stage first (approximate_degree.cpp). Vertices with a negative stage go last. Returns where the tail begins, -1
// beyond `most` flops; what is left after `patience` looks at the lists is the tail.
Count approximate_order(const Rows& adjacency, Span<const Count> sizes, const Rows& reads, Span<const Index> stage,
                        Span<Index> order, Count most, Count patience);

// Cut the graph by separators (dissection.cpp), again and again, and write when the vertices are eliminated: 0 for
// those of the last parts, then the separators, the first one last. Vertices with a negative stage stay out of it.
// False if the separators alone cost more than `most` flops.
bool dissect(const Rows& adjacency, Span<const Count> sizes, Span<Index> stage, Count most);

// Tree decompositions (tree.cpp)

struct Tree {
    std::vector<Index> parent;  // bags in postorder, -1 for a root
    std::vector<Count> frontal_ptr, separator_ptr;
    std::vector<Index> frontal_idx, separator_idx;
};

// Throws OverLimit once the separators of the single steps hold more than `limit` elements together.
Tree decompose(const Rows& adjacency, Span<const Index> order, Count tail, Span<const Index> vertex_of_item,
               Count limit);

// Merging of small fronts (merge.cpp)

// What the model needs to know of the bags of a tree; see plan/merge.py.
struct Bags {
    bool causal;
    Span<const Index> parent;
    Span<const Count> p, q, b;     // scalars of pairs, inputs and separator; free plans: 0, unknowns, unknowns
    Span<const Count> reads;       // between two pairs of the bag
    Rows links;                    // bags that hold pairs which pairs of this bag read
    Span<const Count> link_reads;  // how many such reads, for each link
    Rows separators;               // items
    Span<const Index> bag_of_item;
    Span<const Count> pairs_of_item;
};

// Constants of the modelled time, in the order of the fields of TimeModel in plan/merge.py, where their values stand.
struct TimeModel {
    Count few, large;
    Count front, input, input_row, cube, pairs, product, cross, nested, nested_pair, nested_rest;
    Count free_front, free_unknown, free_entry, free_product;
    Count message, straddling, whole, message_entry;
};

// Name for each bag the highest one of its group.
void merge_fronts(const Bags& bags, const TimeModel& model, Span<Count> top);

// Assembly maps (front_maps.cpp)

// Fronts over positions, the numbering of the unknowns by elimination.
struct Fronts {
    Span<const Count> elim_ptr;      // front i eliminates the positions [elim_ptr[i], elim_ptr[i + 1])
    Span<const Count> sep_ptr;       // the separator of front i is sep_position[sep_ptr[i] .. sep_ptr[i + 1])
    Span<const Count> sep_position;  // ascending in every front
};

// Merge the nonzeros (a[i], b[i]) of K that fall on one entry; the result is the number of entries.
// The front that eliminates the earlier unknown assembles an entry; entries are numbered by their positions.
Count place_entries(const Fronts& fronts, Span<const Count> position, Span<const Index> a, Span<const Index> b,
                    Span<Count> target, Span<Count> entry_ptr, Span<Index> entry_row, Span<Index> entry_col);

// Schedules (levels.cpp)

// Walk the instances in the given sequence; the level of each is one more than that of its highest argument.
void instance_levels(Span<const Count> sequence, const Rows& args, const Rows& outs, Span<Count> slot_level,
                     Span<Count> level);

}  // namespace gnewt
