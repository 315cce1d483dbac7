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

// Blocks of memory that calls of one thread hand on to each other. Fresh pages of the system would take longer than the
// arithmetic of a small problem. Only blocks up to a limit are kept, and nothing that is in them is ever read.
class Pool {
public:
    // A block of at least `bytes`; null where there is no memory. `bytes` is set to its size.
    void* take(size_t& bytes) {
        if (bytes > kLargest) return aligned(bytes);
        size_t& size = bytes;
        int best = -1;
        for (int i = 0; i < kBlocks; ++i)
            if (blocks_[i] && sizes_[i] >= size && (best < 0 || sizes_[i] < sizes_[best])) best = i;
        if (best < 0 || sizes_[best] > kSpare * size + kLeast) {
            size = size < kLeast ? kLeast : size;
            return aligned(size);
        }
        size = sizes_[best];
        void* block = blocks_[best];
        blocks_[best] = nullptr;
        return block;
    }

    void give(void* block, size_t size) {
        int free = -1, least = 0;
        for (int i = 0; i < kBlocks; ++i) {
            if (!blocks_[i]) free = i;
            if (sizes_[i] < sizes_[least]) least = i;
        }
        if (free < 0 && size <= kLargest && size > sizes_[least]) std::free(blocks_[free = least]);
        if (free < 0 || size > kLargest) return std::free(block);
        blocks_[free] = block;
        sizes_[free] = size;
    }

    static Pool& of_thread() {
        static thread_local Pool pool;
        return pool;
    }
    ~Pool() {
        for (void* block : blocks_) std::free(block);
    }

private:
    static constexpr int kBlocks = 16;
    static constexpr size_t kLargest = size_t(1) << 21, kLeast = 4096, kSpare = 4;  // bytes; a block may be so much larger

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

    void* blocks_[kBlocks] = {};
    size_t sizes_[kBlocks] = {};
};

// A growing array. reserve() is false where an allocation failed; the old memory stays valid then.
template <class T>
class Buffer {
public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() {
        if (data_) Pool::of_thread().give(data_, bytes_);
    }

    // Make room for `size` elements; pointers into the buffer may move. Room is left beyond the end, so that whole
    // vectors may be read there.
    bool reserve(int64_t size) {
        if (size <= capacity_) return true;
        if (size > kLimit / int64_t(sizeof(T))) return false;
        size_t bytes = size_t(size + size / 2 + 2 * kBeyond) * sizeof(T);
        void* grown = Pool::of_thread().take(bytes);
        if (!grown) return false;
        if (data_) {
            std::memcpy(grown, data_, size_t(capacity_) * sizeof(T));
            Pool::of_thread().give(data_, bytes_);
        }
        data_ = static_cast<T*>(grown);
        bytes_ = bytes;
        capacity_ = int64_t(bytes / sizeof(T)) - kBeyond;
        return true;
    }
    T* data() { return data_; }
    T& operator[](int64_t i) { return data_[i]; }

private:
    static constexpr int64_t kLimit = int64_t(1) << 36;  // 64 GiB: delayed pivots without end stop here
    static constexpr int64_t kBeyond = 32;               // two of the widest vectors of float

    T* data_ = nullptr;
    size_t bytes_ = 0;
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

// eps: rounding; root: √eps, half of the digits; tiny: no smaller number is a pivot, since its inverse overflows; lost:
// the share of a sum, where all that was summed is known, from which down the sum may be noise.
template <class T>
struct Precision;
template <>
struct Precision<double> {
    static constexpr double eps = 2.220446049250313e-16, root = 1.5e-8, tiny = 1e-307, lost = 1e-9;
};
template <>
struct Precision<float> {
    static constexpr float eps = 1.1920929e-7f, root = 3.5e-4f, tiny = 2e-38f, lost = 1e-4f;
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
