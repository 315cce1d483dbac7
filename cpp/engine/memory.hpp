// Scratch memory of one call (Buffer, Region), small functions on numbers, and the constants of the pivot tests.
//
// C functions only: a template of the standard library that is compiled here with AVX flags could be the copy that the
// linker keeps for machines without AVX.
#pragma once
#include <cmath>
#include <cstdlib>
#include <cstring>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "call.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

constexpr int64_t kLineBytes = 64;  // of a line of the cache

// A growing array. reserve() is false where an allocation failed; the old memory stays valid then.
template <class T>
class Buffer {
public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { std::free(data_); }

    // Make room for `size` elements; pointers into the buffer may move. Room is left beyond the end, so that whole
    // vectors may be read there.
    bool reserve(int64_t size) {
        if (size <= capacity_) return true;
        const int64_t wanted = size + size / 2 + 2 * kBeyond;
        if (size > kLimit / int64_t(sizeof(T))) return false;
        void* grown = aligned(size_t(wanted) * sizeof(T));
        if (!grown) return false;
        if (data_) std::memcpy(grown, data_, size_t(capacity_) * sizeof(T));
        std::free(data_);
        data_ = static_cast<T*>(grown);
        capacity_ = wanted - kBeyond;
        return true;
    }
    T* data() { return data_; }
    T& operator[](int64_t i) { return data_[i]; }

private:
    static constexpr int64_t kLimit = int64_t(1) << 36;  // 64 GiB: delayed pivots without end stop here
    static constexpr int64_t kBeyond = 32;               // two of the widest vectors of float

    static void* aligned(size_t bytes) {
        constexpr size_t huge = size_t(1) << 21;  // a huge page of Linux
        constexpr size_t line = size_t(kLineBytes);
        if (bytes < 2 * huge) return std::aligned_alloc(line, (bytes + line - 1) / line * line);
        bytes = (bytes + huge - 1) / huge * huge;
        void* memory = std::aligned_alloc(huge, bytes);
#ifdef MADV_HUGEPAGE
        // A page fault for every 4 KiB would take as long as the arithmetic.
        if (memory) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
        return memory;
    }

    T* data_ = nullptr;
    int64_t capacity_ = 0;
};

// An array in memory of the caller. The array moves to memory of its own where the caller's is too small.
template <class T>
class Region {
public:
    void lend(T* data, int64_t size) {
        data_ = data;
        capacity_ = size;
        moved_ = false;
    }
    // Make room for `size` elements, of which `used` are to be kept.
    bool reserve(int64_t size, int64_t used) {
        if (size <= capacity_) return true;
        if (!own_.reserve(size)) return false;
        if (!moved_ && used) std::memcpy(own_.data(), data_, size_t(used) * sizeof(T));
        moved_ = true;
        data_ = own_.data();
        capacity_ = size;
        return true;
    }
    T* data() const { return data_; }
    bool moved() const { return moved_; }

private:
    T* data_ = nullptr;
    int64_t capacity_ = 0;
    bool moved_ = false;
    Buffer<T> own_;
};

inline double abs(double x) { return __builtin_fabs(x); }
inline float abs(float x) { return __builtin_fabsf(x); }
template <class T>
inline T max(T x, T y) {
    return x < y ? y : x;
}
template <class T>
inline T min(T x, T y) {
    return y < x ? y : x;
}
template <class T>
inline void swap(T& x, T& y) {
    T t = x;
    x = y;
    y = t;
}
template <class T>
inline bool finite(T x) {
    return x - x == 0;
}

// eps: rounding; root: √eps, half of the digits; tiny: no smaller number is a pivot, since its inverse overflows.
template <class T>
struct Precision;
template <>
struct Precision<double> {
    static constexpr double eps = 2.220446049250313e-16, root = 1.5e-8, tiny = 1e-307;
};
template <>
struct Precision<float> {
    static constexpr float eps = 1.1920929e-7f, root = 3.5e-4f, tiny = 2e-38f;
};

// A pivot may make entries grow by at most 1 / kThreshold. The value is Duff and Reid's (1983): two digits are a small
// price for pivots that stay where the plan has them. kkt/engines/reference/pivots.py has the same value.
constexpr double kThreshold = 0.01;
// An entry below kNoise · eps · (what was summed into it) counts as zero. The value leaves room for the sums of a
// front, whose rounding errors add up to a few eps. kkt/engines/reference/pivots.py has the same value.
constexpr double kNoise = 32.0;
// An entry below this share of what was summed into it has cancelled: one digit is gone, and the careful elimination
// takes such an entry last.
constexpr double kCancelled = 0.1;
// A diagonal entry below this share of what was summed into it is in doubt: four digits are gone. The quick elimination
// follows no noise, so a pivot must keep far more digits than noise takes, even in single precision.
constexpr double kDoubtful = 1e-4;

template <class T>
inline bool cancelled(T value, T bound) {
    return value < T(kCancelled) * bound;
}

// The noise, in units of rounding, that a front passes on with a diagonal entry `value` of which `bound` was summed.
// An entry that kept its size is as good as new: noise does not grow relative to the entry. An entry that lost half of
// its digits at once is as uncertain as what went into it. Smaller losses are forgotten by and by: the geometric mean.
template <class T>
inline T renewed(T value, T bound) {
    if (!cancelled(value, bound)) return value;
    return value < Precision<T>::root * bound ? bound : std::sqrt(value) * std::sqrt(bound);
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
