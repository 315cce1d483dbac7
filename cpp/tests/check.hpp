// The smallest test harness that can fail.
#pragma once
#include <cstdio>

#ifndef GNEWT_ISA
#define GNEWT_ISA isa_test  // the namespace of the engine that is tested
#endif

namespace check {

inline int& failures() {
    static int count = 0;
    return count;
}

// Whether this machine has the instructions that the test was compiled with.
inline bool runs_here() {
#if defined(__AVX512F__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
#elif defined(__AVX2__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return true;
#endif
}

inline int skip(const char* name) {
    std::printf("%s: skipped, not on this machine\n", name);
    return 0;
}

inline int finish(const char* name) {
    std::printf("%s: %s\n", name, failures() ? "FAILED" : "ok");
    return failures() ? 1 : 0;
}

}  // namespace check

#define CHECK(condition)                                                                                             \
    do {                                                                                                             \
        if (!(condition)) {                                                                                          \
            if (++check::failures() <= 20) std::printf("%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
        }                                                                                                            \
    } while (0)
