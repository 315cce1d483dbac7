// What one call of the engine gets and gives: plain pointers only, shared by ffi.cpp and by every build of the numerics
// (isa_*.cpp), of which dispatch.cpp chooses one.
#pragma once
#include <cstdint>

namespace gnewt::engine {

// Statuses of a call. kkt/engines/elimination.py has the same numbers.
enum Status : int32_t {
    kOk = 0,
    kSingular = 1,     // no pivot above rounding was found for some unknowns; they were set to zero
    kNonFinite = 2,    // a number was not finite; the solution is NaN
    kOutOfMemory = 3,  // fronts outgrew the memory; the solution is NaN
    kBadPlan = 4,      // the plan does not fit the other operands
};

// Which pivots made the factor. kCausal: those of a causal plan, in all fronts, so that there is no record. kGeneral:
// others, or the plan is free. kNone: there is no factor, since the plan does not fit.
enum Mode : int32_t { kNone = 0, kCausal = 1, kGeneral = 2 };

// What a call returns, in integers and in real numbers. The enums Info and Real of kkt/engines/native/engine.py have
// the same numbers, and names.cpp has the names.
// kPositive, kNegative, kZero: the inertia of H; pivots of pairs do not count.
// kDelayed: how many unknowns were passed to parents; an unknown counts for every front that passed it on.
// kKept: whether the factor fitted the caller's buffers.
// kMode: a Mode.
// kFirstNull: the null unknown that was found first, -1 where there is none.
// kSmallestPivot: the least magnitude of an eigenvalue of a pivot, 0 where some unknown is null.
// kShift: as it was given, for a factor that has to be made again.
enum InfoField { kStatus, kPositive, kNegative, kZero, kDelayed, kKept, kMode, kFirstNull, kInfoSize };
enum RealField { kLogDet, kSmallestPivot, kShift, kRealSize };

template <class T>
struct Call {
    const int32_t* plan;
    int64_t plan_len;
    const T* sources;
    int64_t sources_len;
    T shift;
    const T* rhs;  // [N, columns]
    int64_t num_inputs;
    int64_t columns;
    T* solution;  // [N, columns]
    T* factor;    // kept numbers, for another right-hand side
    int64_t factor_len;
    int32_t* index;  // integers of a general factor
    int64_t index_len;
    int32_t* info;  // [kInfoSize]
    T* real;        // [kRealSize]
    int8_t* null;   // [unknowns] 1 where no pivot was found
};

// Another right-hand side. A factor that was not kept, because it outgrew its buffers, is made again.
template <class T>
struct SolveCall {
    const int32_t* plan;
    int64_t plan_len;
    const T* sources;
    int64_t sources_len;
    const T* factor;
    int64_t factor_len;
    const int32_t* index;
    int64_t index_len;
    const int32_t* info;
    const T* real;
    const T* rhs;
    int64_t num_inputs;
    int64_t columns;
    T* solution;
};

// One build of the numerics for one instruction set.
struct Engine {
    const char* isa;
    void (*factor_f64)(const Call<double>&);
    void (*factor_f32)(const Call<float>&);
    void (*solve_f64)(const SolveCall<double>&);
    void (*solve_f32)(const SolveCall<float>&);
};

// Solve for all unknowns, with right-hand sides on all rows of K (whole.cpp): `rhs` and `solution` of the call are
// [unknowns, columns], slots first, then multipliers of the nodes.
void solve_whole(const SolveCall<double>& call);
void solve_whole(const SolveCall<float>& call);

const Engine* baseline_engine();
#ifdef GNEWT_X86
const Engine* avx2_engine();
const Engine* avx512_engine();
#endif

// The best build that this machine runs, or the one that GNEWT_ISA names.
const Engine& chosen_engine();

}  // namespace gnewt::engine
