// The sources of one front as blocks: rectangles and packed triangles (Block in plan_format.hpp).
#pragma once

#include <limits>
#include <vector>

#include "plan_format.hpp"
#include "planner.hpp"

namespace gnewt {

inline Index narrow(Count i) {
    if (i < std::numeric_limits<Index>::min() || i > std::numeric_limits<Index>::max())
        throw OverLimit("an index beyond 31 bits");
    return static_cast<Index>(i);
}

// A number that is added to a part of a front.
struct Contribution {
    Index kind, row, col;
    Count source;
};

// Consecutive sources that are consecutive in a row of a part, or, transposed, in a column.
struct SourceRun {
    Index kind, transposed, outer, inner;
    Count length, source;
};

// Runs below each other whose lengths and starts follow a rule.
struct SourceBlock {
    SourceRun first;
    Count rows = 1, dlen = 0, step = 0, dstep = 0;

    // Take the next run if it stands right below `last`, is no farther from `last` than `farthest` among the sources,
    // and keeps the rule; the second and the third run set the rule.
    bool take(const SourceRun& run, const SourceRun& last, Count farthest);
    plan_format::Block record() const;
};

class BlockFinder {
public:
    // Blocks that hold every contribution once, sorted by kind. Sorts the contributions.
    std::vector<SourceBlock>& find(std::vector<Contribution>& contributions);

    // A block for every contribution, those on a diagonal first: in a small front, looking at the sizes of blocks takes
    // longer than adding numbers one by one. Sorts the contributions.
    std::vector<SourceBlock>& single(std::vector<Contribution>& contributions);

private:
    void find_runs(const std::vector<Contribution>& contributions);

    std::vector<char> steps_;
    std::vector<SourceRun> runs_;
    std::vector<SourceBlock> blocks_;
};

// Move the blocks that cover the first q rows of the upper triangle of R exactly once before the other blocks of R, and
// return how many they are: the engine writes these where it adds the others. Zero if no blocks cover these rows so,
// or if other rows of R have sources too.
Index cover_rows(std::vector<SourceBlock>& blocks, Count q, Count n);

}  // namespace gnewt
