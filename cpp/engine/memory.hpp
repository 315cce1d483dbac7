// Scratch memory of one call. C functions only: a template of the standard library that is compiled here with
// AVX flags could be the copy that the linker keeps for machines without AVX.
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

// A growing array: a failed allocation is remembered, and answered with the old memory.
template <class T>
class Buffer {
public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { std::free(data_); }

    // Make room for `size` elements; pointers into the buffer may move. Room is left beyond the end, so that
    // whole vectors may be read there.
    bool reserve(int64_t size) {
        if (size <= capacity_) return true;
        int64_t wanted = size + size / 2 + 64;
        if (size > kLimit / int64_t(sizeof(T))) return false;
        void* grown = aligned(size_t(wanted) * sizeof(T));
        if (!grown) return false;
        if (data_) std::memcpy(grown, data_, size_t(capacity_) * sizeof(T));
        std::free(data_);
        data_ = static_cast<T*>(grown);
        capacity_ = wanted - 32;
        return true;
    }
    T* data() { return data_; }
    T& operator[](int64_t i) { return data_[i]; }

private:
    static constexpr int64_t kLimit = int64_t(1) << 36;  // 64 GiB: delayed pivots without end stop here

    static void* aligned(size_t bytes) {
        constexpr size_t huge = size_t(1) << 21;
        if (bytes < 2 * huge) return std::aligned_alloc(64, (bytes + 63) / 64 * 64);
        bytes = (bytes + huge - 1) / huge * huge;
        void* memory = std::aligned_alloc(huge, bytes);
#ifdef MADV_HUGEPAGE
        if (memory)
            madvise(memory, bytes, MADV_HUGEPAGE);  // a page fault for every 4 KiB would take as long as the arithmetic
#endif
        return memory;
    }

    T* data_ = nullptr;
    int64_t capacity_ = 0;
};

// An array in memory of the caller, which moves to memory of its own where that is too small.
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

template <class T>
struct Precision;
template <>
struct Precision<double> {
    static constexpr double eps = 2.220446049250313e-16, root = 1.5e-8,
                            tiny = 1e-290;  // nothing smaller is a pivot: its inverse overflows
};
template <>
struct Precision<float> {
    static constexpr float eps = 1.1920929e-7f, root = 3.5e-4f, tiny = 1e-36f;
};

// The constants of the pivot test, as in kkt/pivots.py.
constexpr double kThreshold = 0.01;  // a pivot may make entries grow by at most 1 / kThreshold
constexpr double kCancelled = 0.1;   // an entry below this share of what was added into it has cancelled
constexpr double kDoubtful =
    1e-4;  // the share of what was summed into a diagonal entry below which the quick elimination is in doubt
constexpr double kNoise = 32.0;  // an entry below kNoise * eps * (what was added into it) counts as zero

template <class T>
inline bool cancelled(T value, T bound) {
    return value < T(kCancelled) * bound;
}

// The size of noise, in units of rounding, that a front of a free plan passes on. What kept its size is as good as new: noise does not
// grow relative to it. What lost half of its digits at once is as uncertain as what went into it; what lost fewer is forgotten by and by.
template <class T>
inline T renewed(T value, T bound) {
    if (!cancelled(value, bound)) return value;
    return value < Precision<T>::root * bound ? bound : std::sqrt(value) * std::sqrt(bound);
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
