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
