// What a selected inversion, and a draw from the factor, get and return: the same for every instruction set.
#pragma once
#include "call.hpp"

namespace gnewt::engine {

// The diagonal of the inverse of K on all slots, by the factor that a call has kept; or, for free plans, whose fronts
// hold duals, the derivative of log|det K| with respect to every source. One of the two is null.
template <class T>
struct InverseCall {
    const int32_t* plan;
    int64_t plan_len;
    const T* sources;
    int64_t sources_len;
    const T* factor;
    int64_t factor_len;
    const int32_t* index;
    int64_t index_len;
    const int32_t* info;
    T* variances;      // [slots]
    T* sensitivities;  // [sources]
    int64_t num_slots;
};

// Columns of standard normal noise become draws of covariance H⁻¹. Causal plans of a positive definite H only.
template <class T>
struct DrawCall {
    const int32_t* plan;
    int64_t plan_len;
    const T* sources;
    int64_t sources_len;
    const T* factor;
    int64_t factor_len;
    const int32_t* index;
    int64_t index_len;
    const int32_t* info;
    const T* noise;  // [N, columns]
    int64_t num_inputs;
    int64_t columns;
    T* draws;  // [N, columns]
};

// One build for one instruction set. Where there is no factor, or no memory, the numbers are NaN.
struct Inverter {
    void (*invert_f64)(const InverseCall<double>&);
    void (*invert_f32)(const InverseCall<float>&);
    void (*draw_f64)(const DrawCall<double>&);
    void (*draw_f32)(const DrawCall<float>&);
};
const Inverter* baseline_inverter();
#ifdef GNEWT_X86
const Inverter* avx2_inverter();
const Inverter* avx512_inverter();
#endif

}  // namespace gnewt::engine
