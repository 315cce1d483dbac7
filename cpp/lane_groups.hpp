// Which small fronts are eliminated side by side, in the lanes of vectors: SegmentRecord in plan_format.hpp.
#pragma once

#include <vector>

#include "planner.hpp"

namespace gnewt {

// What the groups depend on, for one front.
struct LaneFront {
    Index p, q, b, twins, num_children;
};

// The segments of the binary plan; `fronts` come in postorder. `num_segments` is set.
std::vector<Index> lane_groups(const std::vector<LaneFront>& fronts, Index& num_segments);

}  // namespace gnewt
