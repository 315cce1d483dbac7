// Topological levels; see graph/schedule.py.
#include <algorithm>

#include "planner.hpp"

namespace gnewt {

void instance_levels(Span<const Count> sequence, const Rows& args, const Rows& outs, Span<Count> slot_level,
                     Span<Count> level) {
    check_rows(args, slot_level.size);
    check_rows(outs, slot_level.size);
    if (args.size() != level.size || outs.size() != level.size) throw InvalidInput("arrays of different lengths");
    for (Count i : sequence) {
        if (i < 0 || i >= level.size) throw InvalidInput("an index out of range");
        Count highest = 0;
        for (Index slot : args[i]) highest = std::max(highest, slot_level[slot]);
        level[i] = highest + 1;
        for (Index slot : outs[i]) slot_level[slot] = std::max(slot_level[slot], highest + 1);
    }
}

}  // namespace gnewt
