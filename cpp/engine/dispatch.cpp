// Chooses the build of the engine for this machine, once, when the first call comes.
#include <cstdlib>
#include <cstring>

#include "call.hpp"

namespace gnewt::engine {
namespace {

const Engine* pick() {
    const char* wanted = std::getenv("GNEWT_ISA");
    auto allowed = [&](const char* name) { return !wanted || !*wanted || std::strcmp(wanted, name) == 0; };
#ifdef GNEWT_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    if (avx512 && allowed("avx512")) return avx512_engine();
    if (avx2 && allowed("avx2")) return avx2_engine();
#endif
    (void)allowed;
    return baseline_engine();
}

}  // namespace

const Engine& chosen_engine() {
    static const Engine* engine = pick();
    return *engine;
}

}  // namespace gnewt::engine

// The engine without XLA, for tests and for other hosts. `call` is a Call (or a SolveCall below) of double, or of float
// if `single`.
extern "C" __attribute__((visibility("default"))) void gnewt_engine_factor(int single, const void* call) {
    using namespace gnewt::engine;
    if (single)
        chosen_engine().factor_f32(*static_cast<const Call<float>*>(call));
    else
        chosen_engine().factor_f64(*static_cast<const Call<double>*>(call));
}

extern "C" __attribute__((visibility("default"))) void gnewt_engine_solve(int single, const void* call) {
    using namespace gnewt::engine;
    if (single)
        chosen_engine().solve_f32(*static_cast<const SolveCall<float>*>(call));
    else
        chosen_engine().solve_f64(*static_cast<const SolveCall<double>*>(call));
}
