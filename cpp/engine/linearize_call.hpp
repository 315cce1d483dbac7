// What a linearisation gets and returns, and the formats of its integers: the same for every instruction set.
#pragma once
#include <cstdint>

namespace gnewt::engine {

// Integers of a structure (graph/tables.py): a header, a record for each family, then columns, patterns and items.
//
// A column (start, stride, table) says which slot instance i reads or defines: start + stride · i, or
// tables[table + i] where table ≥ 0. The pattern of a Jacobian lists its entries argument by argument: k + 1 ends, then
// for each entry its place in a row of the sources and its output. An item (family, first, count, rows) is a number of
// instances that may be evaluated after all items before it: first, first + 1, ..., one after the other where rows is
// kInTurn, in any order where it is kAtOnce; or tables[rows], tables[rows + 1], ..., in any order.
enum TablesField : int32_t { kFamilies, kSlots, kSources, kItems, kNumItems, kTablesHeader };
enum FamilyField : int32_t { kN, kK, kM, kArgs, kOuts, kPattern, kNumJac, kJacAt, kNumHess, kHessAt, kFamilySize };
constexpr int32_t kColumnSize = 3, kItemSize = 4;
constexpr int32_t kInTurn = -1, kAtOnce = -2;

// Integers of a linearisation (kkt/derivatives/native.py): the number of families, a record for each, then programs.
//
// kOperand is the first operand of the family: its data, or its derivatives (rows of J, or of the gradient of a loss)
// where kFirst is kGiven. Hessians that are not computed here are left alone, or set to zero where kSecond is
// kZeroHessian.
enum CodeField : int32_t { kOperand, kPrologue, kFirst, kSecond, kNumCommons, kNumSaved, kCodeSize };
constexpr int32_t kCodeHeader = 1;
constexpr int32_t kGiven = -1, kNoProgram = -1, kZeroHessian = -2;

// A program: a header, loads (place, kind, a, b, c), steps (scalars.hpp), stores (place, kind, a).
// Places are numbered: constants first, from kFirstConstant on in the vector of constants, then all others.
enum ProgramField : int32_t {
    kNumPlaces,
    kNumConstants,
    kFirstConstant,
    kNumLoads,
    kNumSteps,
    kNumStores,
    kProgramHeader
};
enum Load : int32_t {
    kLoadSlot,    // argument a
    kLoadData,    // operand a: number b of each row of c numbers
    kLoadShared,  // operand a: number b, the same for all instances
    kLoadCommon,  // number a that the prologue has computed
    kLoadDual,    // the dual of output a
    kLoadSaved    // row a that the first program has saved
};
enum Store : int32_t { kStoreValue, kStoreGradient, kStoreJacobian, kStoreHessian, kStoreCommon, kStoreSaved };
constexpr int32_t kLoadSize = 5, kStoreSize = 3;

template <class T>
struct LinearizeCall {
    const int32_t* tables;
    int64_t tables_len;
    const int32_t* code;
    int64_t code_len;
    const T* constants;
    int64_t constants_len;
    const T* slots;
    const T* const* operands;
    const int64_t* operand_sizes;
    int64_t num_operands;
    T* value;
    T* duals;
    int64_t num_slots;
    T* sources;
    int64_t num_sources;
    // [num_slots] or null: multipliers of the nodes, NaN for nodes whose multiplier the sweep shall find. Hessians are
    // taken with these, and `duals` becomes the gradient of the losses plus Jᵀ times them, at every slot.
    const T* given;
};

// One build of the machine. The functions are false where the integers do not fit together or memory is missing.
struct Linearizer {
    bool (*run_f64)(const LinearizeCall<double>&);
    bool (*run_f32)(const LinearizeCall<float>&);
    // Up to kMostInPack calls; side by side in the lanes of vectors, where they have the same integers.
    bool (*run_many_f64)(const LinearizeCall<double>*, int count);
    bool (*run_many_f32)(const LinearizeCall<float>*, int count);
};
const Linearizer* baseline_linearizer();
const Linearizer* avx2_linearizer();
const Linearizer* avx512_linearizer();

}  // namespace gnewt::engine
