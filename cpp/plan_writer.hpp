// From a Plan (graph/plan.py) to the binary plan that the native engine reads (plan_format.hpp).
#pragma once

#include <vector>

#include "planner.hpp"

namespace gnewt {

// The arrays of a Plan, under their names there.
struct PlanArrays {
    Count num_inputs, num_slots;
    bool causal;
    Span<const Index> parent;
    Span<const Count> elim_ptr;
    Span<const Index> elim_idx;
    Span<const Count> sep_ptr;
    Span<const Index> sep_idx, sep_pos;
    Span<const Count> entry_ptr;
    Span<const Index> entry_row, entry_col;
    Span<const Count> source, target, pair_entry, input_entry;
};

struct EngineLayout {
    std::vector<Index> array;
    Count factor_size = 0;              // numbers that a factor takes
    Count index_size = 0;               // integers that a factor takes
    Index max_pairs = 1, max_rest = 1;  // largest p and largest q + b of a front
};

// Throws OverLimit if an index needs more than 31 bits.
EngineLayout lay_out_for_engine(const PlanArrays& plan, Count num_sources);

}  // namespace gnewt
