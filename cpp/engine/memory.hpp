// Scratch memory of one call. C functions only: a template of the standard library that is compiled here with
// AVX flags could be the copy that the linker keeps for machines without AVX.
#pragma once
#include <cstdlib>
#include <cstring>

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

    static void* aligned(size_t bytes) { return std::aligned_alloc(64, (bytes + 63) / 64 * 64); }

    T* data_ = nullptr;
    int64_t capacity_ = 0;
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
    static constexpr double eps = 2.220446049250313e-16, tiny = 1e-290;  // nothing smaller is a pivot: its inverse overflows
};
template <>
struct Precision<float> {
    static constexpr float eps = 1.1920929e-7f, tiny = 1e-36f;
};

// The two constants of the pivot test, as in kkt/pivots.py.
constexpr double kThreshold = 0.01;  // a pivot may make entries grow by at most 1 / kThreshold
constexpr double kNoise = 32.0;      // an entry below kNoise * eps * (what was added into it) counts as zero

// What is noise in a diagonal entry, where its unknown is replaced by others. An entry that kept its size is as good as new: its
// errors cannot grow relative to it. One that cancelled is noise of the size of what went into it, and stays it.
template <class T>
inline T carried(T value, T bound) {
    return value < T(kThreshold) * bound ? bound : value;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
