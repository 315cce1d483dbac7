// The plan as the engine reads it: one flat int32 array, written by src/gnewt/kkt/native.py (see there).
#pragma once
#include "call.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

constexpr int32_t kPlanVersion = 3;

enum Header {
    kVersion,
    kNumFronts,
    kNumInputs,
    kNumSlots,
    kIsCausal,
    kFrontsAt,
    kShapesAt,
    kSlotsAt,
    kSourcesAt,
    kNumSources,
    kMaxPairs,
    kMaxRest,
    kRowsLow,  // numbers in the rows of L that the fronts of a causal plan have where no pivot is moved: these 31 bits ...
    kRowsHigh,  // ... and those above
    kHeaderSize
};

// Flags of a shape.
enum Flag {
    kChildIsPairs = 1,   // the only child's separator is exactly the pairs: its Schur complement is used in place
    kCross = 2,          // some entry couples a pair with an input or with the separator
    kNested = 4,         // a pair reads another pair of the same front
    kDenseJacobian = 8,  // the blocks cover F exactly once: no zeroing, no adding
    kInputBelow = 16,    // the separator holds inputs, whose bounds go to the parent
};

// Where a block of sources goes: rows and columns count within the part of the front.
enum Kind { kF, kG, kPP, kC, kR };

// Element (i, j), j < len + i * dlen, is sources[src + i * step + dstep * i * (i - 1) / 2 + j], and goes to
// (row + i, col + j), or to (row + j, col + i) if transposed.
struct Block {
    int32_t kind, transposed, rows, len, dlen, step, dstep, row, col;
};
constexpr int kBlockSize = 9;

// A front of p pairs, q inputs and a separator of b slots. All fronts that look alike share one shape.
// A front of a free plan has p = 0, q = the unknowns to eliminate, b = those of the separator.
struct Shape {
    int32_t p, q, b, flags, num_blocks, num_diag, num_pairs, num_inputs, num_runs, num_set;
    const Block*
        blocks;  // sorted by kind; if num_set > 0, the first num_set of kind R cover its first q rows once, and no others are there
    const int32_t* runs;    // [num_runs, 3]: separator start, coordinate in the parent, length
    const int32_t* diag;    // coordinates within [q | b] of the sources that fall on an input's diagonal
    const int32_t* pairs;   // free plans: [num_pairs, 2], where the -1 of a pair stands
    const int32_t* inputs;  // free plans: coordinates of inputs, where the shift is added
};
constexpr int kShapeHeader = 10;

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

    // Numbers in the rows of L of a causal plan where no pivot is moved.
    int64_t rows_size() const { return (int64_t(data[kRowsHigh]) << 31) + data[kRowsLow]; }

    Front front(int64_t i) const {
        const int32_t* f = data + data[kFrontsAt] + 4 * i;
        const int32_t* s = data + data[kShapesAt] + f[0];
        Shape shape{s[0], s[1], s[2],    s[3],    s[4],    s[5],    s[6],   s[7],
                    s[8], s[9], nullptr, nullptr, nullptr, nullptr, nullptr};
        s += kShapeHeader;
        shape.blocks = reinterpret_cast<const Block*>(s);
        shape.diag = s += kBlockSize * shape.num_blocks;
        shape.pairs = s += shape.num_diag;
        shape.inputs = s += 2 * shape.num_pairs;
        shape.runs = s += shape.num_inputs;
        return {shape, data + data[kSlotsAt] + f[1], data + data[kSourcesAt] + f[2], f[3]};
    }
};

static_assert(sizeof(Block) == kBlockSize * sizeof(int32_t), "a block is read from the plan as it stands");

inline bool fits(const int32_t* plan, int64_t plan_len, int64_t sources_len, int64_t num_inputs) {
    return plan_len >= kHeaderSize && plan[kVersion] == kPlanVersion && plan[kNumSources] == sources_len &&
           plan[kNumInputs] == num_inputs;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
