// From a Plan (graph/plan.py) to what the native engine reads.
#pragma once

#include <vector>

#include "planner.hpp"

namespace gnewt {

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
    Count factor_size = 0;  // numbers and ...
    Count index_size = 0;   // ... integers that a factor takes
};

// Throws OverLimit if an index needs more than 31 bits.
EngineLayout lay_out_for_engine(const PlanArrays& plan, Count num_sources);

}  // namespace gnewt
