// The smallest test harness that can fail.
#pragma once
#include <cstdio>

namespace check {

inline int& failures() {
    static int count = 0;
    return count;
}

inline int finish(const char* name) {
    std::printf("%s: %s\n", name, failures() ? "FAILED" : "ok");
    return failures() ? 1 : 0;
}

}  // namespace check

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            if (++check::failures() <= 20)                                                     \
                std::printf("%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);      \
        }                                                                                      \
    } while (0)
