// The binary plan (plan_format.hpp) as the engine reads it: fronts with their lists, without copies.
#pragma once
#include "../plan_format.hpp"
#include "call.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

using namespace plan_format;

struct Shape : ShapeRecord {
    const Block* blocks;    // sorted by kind
    const int32_t* diag;    // coordinates within [q | b] of the sources that fall on an input's diagonal
    const int32_t* pairs;   // free plans: [num_pairs, 2], where the -1 of a pair stands, as (dual, state)
    const int32_t* inputs;  // free plans: coordinates of inputs, where the shift is added
    const int32_t* runs;    // [num_runs] RunRecord: where the separator lies in the parent
};

struct Front {
    Shape shape;
    const int32_t* slots;    // [p + q + b] slots; free plans: [q + b] unknowns
    const int32_t* sources;  // [num_blocks] starts of the blocks, then [num_diag] positions
    int32_t num_children;
};

struct PlanView {
    const int32_t* data;

    int32_t num_fronts() const { return data[kNumFronts]; }
    int32_t num_inputs() const { return data[kNumInputs]; }
    int32_t num_slots() const { return data[kNumSlots]; }
    int64_t num_unknowns() const { return 2 * int64_t(num_slots()) - num_inputs(); }
    bool causal() const { return data[kIsCausal] != 0; }

    // Numbers in the rows of L where no pivot is moved.
    int64_t rows_size() const { return (int64_t(data[kRowsHigh]) << 31) + data[kRowsLow]; }

    // Records of all fronts, and the lists that FrontRecord counts from.
    const FrontRecord* fronts() const { return reinterpret_cast<const FrontRecord*>(data + data[kFrontsAt]); }
    const int32_t* segments() const { return data + data[kSegmentsAt]; }
    const int32_t* slots() const { return data + data[kSlotsAt]; }
    const int32_t* sources() const { return data + data[kSourcesAt]; }

    // Lines of fronts, ascending, and the strides that LineRecord counts from.
    int32_t num_lines() const { return data[kNumLines]; }
    const LineRecord* lines() const { return reinterpret_cast<const LineRecord*>(data + data[kLinesAt]); }
    const int32_t* strides() const { return data + data[kStridesAt]; }

    Front front(int64_t i) const {
        const FrontRecord& f = fronts()[i];
        const int32_t* s = data + data[kShapesAt] + f.shape;
        Shape shape{*reinterpret_cast<const ShapeRecord*>(s), nullptr, nullptr, nullptr, nullptr, nullptr};
        s += kInts<ShapeRecord>;
        shape.blocks = reinterpret_cast<const Block*>(s);
        shape.diag = s += kInts<Block> * shape.num_blocks;
        shape.pairs = s += shape.num_diag;
        shape.inputs = s += 2 * shape.num_pairs;
        shape.runs = s += shape.num_inputs;
        return {shape, slots() + f.slots, sources() + f.sources, f.num_children};
    }
};

inline bool fits(const int32_t* plan, int64_t plan_len, int64_t sources_len, int64_t num_inputs) {
    return plan_len >= kHeaderSize && plan[kVersion] == kPlanVersion && plan[kNumSources] == sources_len &&
           plan[kNumInputs] == num_inputs;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
