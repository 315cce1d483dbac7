// The binary plan: one flat array of int32, written by plan_writer.cpp and read through engine/plan_view.hpp.
//
//     header    Header
//     fronts    FrontRecord for every front, in postorder
//     shapes    for every shape a ShapeRecord and its five lists: blocks [num_blocks] Block, diagonal [num_diag],
//               pairs [num_pairs, 2], inputs [num_inputs], runs [num_runs] RunRecord
//     slots     for every front [p + q + b] slots; free plans: [q + b] unknowns, by number: slots, then the duals of
//               the nodes in the same order
//     sources   for every front [num_blocks] positions at which its blocks begin, then [num_diag] positions
//     lines     LineRecord for every line of fronts, ascending
//     strides   for every line [num_blocks + num_diag]: how far those positions move from front to front
//     segments  for every segment a SegmentRecord; its groups, each a GroupRecord; their members, each a MemberRecord
//               and the numbers of its children
//
// A change of anything here is a new kPlanVersion. Plans are never stored, so the engine reads one version only.
#pragma once
#include <cstdint>

namespace gnewt::plan_format {

constexpr int32_t kPlanVersion = 5;

// Places in the header.
enum Header {
    kVersion,
    kNumFronts,
    kNumInputs,
    kNumSlots,
    kIsCausal,
    kFrontsAt,  // where the seven parts after the header begin in the array
    kShapesAt,
    kSlotsAt,
    kSourcesAt,
    kLinesAt,
    kStridesAt,
    kNumLines,
    kSegmentsAt,
    kNumSegments,
    kNumSources,
    kMaxPairs,  // largest p of a front, at least 1
    kMaxRest,   // largest q + b of a front, at least 1
    kRowsLow,   // lower 31 bits of: numbers in the rows of L where no pivot is moved
    kRowsHigh,  // the bits above
    kHeaderSize
};

struct FrontRecord {
    int32_t shape, slots, sources;  // where those of this front begin, counted from kShapesAt, kSlotsAt, kSourcesAt
    int32_t num_children;
};

// A front of p pairs, q inputs and a separator of b slots. All fronts that look alike share one shape.
// A front of a free plan has p = 0, q = the number of unknowns to eliminate, b = the number of those that stay.
struct ShapeRecord {
    int32_t p, q, b;
    int32_t flags;  // a sum of Flag
    int32_t num_blocks, num_diag, num_pairs, num_inputs, num_runs;
    // If positive: the first num_set blocks of R cover its first q rows once, and its other rows have no blocks.
    int32_t num_set;
};

enum Flag {
    kChildIsPairs = 1,   // the only child's separator is exactly the pairs: its Schur complement is used in place
    kCross = 2,          // some entry couples a pair with an input or with the separator
    kNested = 4,         // a pair reads another pair of the same front
    kDenseJacobian = 8,  // the blocks cover F exactly once: no zeroing, no adding
    kInputBelow = 16,    // the separator holds inputs, whose bounds go to the parent
};

// The part of a front that a block of sources goes to (kkt/engines/native/packing.py draws the parts).
enum Kind { kF, kG, kPP, kC, kR };

// Sources that are a rectangle or a packed triangle of one part. Element (i, j), j < len + i * dlen, is
// sources[start + i * step + dstep * i * (i - 1) / 2 + j], where start stands in the front's list of sources.
// The element goes to (row + i, col + j), or to (row + j, col + i) if transposed. Blocks are sorted by kind.
struct Block {
    int32_t kind, transposed, rows, len, dlen, step, dstep, row, col;
};

// `length` slots of the separator from `start` on lie side by side in the parent, from coordinate `place` on.
// A run does not cross the end of the parent's pairs.
struct RunRecord {
    int32_t start, place, length;
};

// A line: `count` fronts from `first` on that look alike. Each front has one child, the front before it, whose
// separator lies in the front as that of every front of the line lies in the next one: at ascending places. The
// positions of the sources move by the same strides from each front to the next.
struct LineRecord {
    int32_t first, count;
    int32_t strides;  // where those of this line begin, counted from kStridesAt
};

// Small fronts of the same sizes are eliminated side by side, one in each lane of a vector. A segment is a range of
// fronts, and holds groups of such fronts, children before parents: all children of a member are members before it.
struct SegmentRecord {
    int32_t begin, end;  // the range of fronts
    int32_t num_groups;
    int32_t length;  // of the whole segment in the array
};
struct GroupRecord {
    int32_t count;  // members
};
struct MemberRecord {
    int32_t front;
};

// Fronts of a group have at most so many unknowns, pairs counted once; a group has at least so many members.
constexpr int32_t kMostInLane = 24, kFewestLanes = 3;

// How many int32 a record takes in the array.
template <class Record>
constexpr int kInts = sizeof(Record) / sizeof(int32_t);

static_assert(kInts<FrontRecord> == 4 && kInts<ShapeRecord> == 10 && kInts<Block> == 9 && kInts<RunRecord> == 3 &&
                  kInts<LineRecord> == 3,
              "records are read from the plan as they stand");

}  // namespace gnewt::plan_format
