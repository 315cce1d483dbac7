// Calls that are made side by side, in the lanes of vectors: the same for every instruction set.
#pragma once
#include "call.hpp"

namespace gnewt::engine {

constexpr int kMostInPack = 8;    // calls of a pack
constexpr int kFewestInPack = 3;  // calls from which on a pack is faster than one after the other

// One build of the packs. All calls of a pack have one plan, and operands of the same sizes.
struct Packer {
    // Factor and solve; the calls that are done, as bits. The others are as they were: their plan is not for packs, or a
    // pivot was in doubt.
    unsigned (*factor_f64)(const Call<double>*, int count);
    unsigned (*factor_f32)(const Call<float>*, int count);
    // Solve with factors that were kept. False where nothing was done.
    bool (*solve_f64)(const SolveCall<double>*, int count);
    bool (*solve_f32)(const SolveCall<float>*, int count);
};
const Packer* baseline_packer();
#ifdef GNEWT_X86
const Packer* avx2_packer();
const Packer* avx512_packer();
#endif

// As one call each, but several at a time: up to kMostInPack.
void factor_many(const Call<double>* calls, int count);
void factor_many(const Call<float>* calls, int count);
void solve_many(const SolveCall<double>* calls, int count);
void solve_many(const SolveCall<float>* calls, int count);

}  // namespace gnewt::engine
