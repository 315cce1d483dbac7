// Reproducible numbers, the same on every machine.
#pragma once
#include <cstdint>

struct Random {
    uint64_t state;

    explicit Random(uint64_t seed) : state(seed * 2654435761u + 88172645463325252u) {}
    uint64_t bits() {
        state ^= state << 13;
        state ^= state >> 7;
        return state ^= state << 17;
    }
    int64_t below(int64_t n) { return int64_t(bits() % uint64_t(n)); }
    double uniform() { return double(bits() >> 11) / 9007199254740992.0 * 2 - 1; }  // in [-1, 1)
};
