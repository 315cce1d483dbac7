// Custom calls under vmap: leading axes of operands are batch axes; elements are run in packs, by several threads.
#pragma once
#include "pack_call.hpp"
#include "threads.hpp"
#include "xla/ffi/api/ffi.h"

namespace gnewt::engine {

namespace ffi = xla::ffi;

// Where the numbers of an operand for one element of a batch begin; axes of size one are repeated.
template <class B>
struct Batched {
    explicit Batched(B& buffer, int64_t core_axes)
        : buffer_(buffer), axes_(int64_t(buffer.dimensions().size()) - core_axes) {
        for (size_t i = size_t(axes_ < 0 ? 0 : axes_); i < buffer.dimensions().size(); ++i)
            size_ *= buffer.dimensions()[i];
    }

    // Leading axes that an operand lacks count as axes of size one.
    bool fits(ffi::Span<const int64_t> batch) const {
        if (axes_ < 0 || axes_ > int64_t(batch.size())) return false;
        for (int64_t i = 0; i < axes_; ++i) {
            const int64_t d = buffer_.dimensions()[size_t(i)], want = batch[batch.size() - size_t(axes_ - i)];
            if (d != 1 && d != want) return false;
        }
        return true;
    }

    auto* at(int64_t element, ffi::Span<const int64_t> batch) const {
        int64_t offset = 0, stride = size_;
        for (int64_t i = axes_ - 1; i >= 0; --i) {
            const int64_t d = buffer_.dimensions()[size_t(i)], want = batch[batch.size() - size_t(axes_ - i)];
            if (d != 1) offset += element % want * stride;
            stride *= d;
            element /= want;
        }
        return buffer_.typed_data() + offset;
    }

    int64_t size() const { return size_; }

private:
    B& buffer_;
    int64_t axes_, size_ = 1;
};

template <class B>
Batched(B&, int64_t) -> Batched<B>;

constexpr int64_t kWorthThreads = 30000;  // numbers of a batch from which on threads gain more than they cost

inline int64_t product(ffi::Span<const int64_t> dims) {
    int64_t size = 1;
    for (int64_t d : dims) size *= d;
    return size;
}

// The elements of a batch for which something is wanted, in chunks that are run together.
template <class Wanted>
std::vector<int64_t> chosen(int64_t size, Wanted wanted) {
    std::vector<int64_t> found;
    for (int64_t e = 0; e < size; ++e)
        if (wanted(e)) found.push_back(e);
    return found;
}

inline std::vector<int64_t> all(int64_t size) {
    return chosen(size, [](int64_t) { return true; });
}

// Make the calls of the given elements, a few at a time, by several threads where that is worth it. `numbers`: read by
// a call; run(calls, count): makes up to kMostInPack calls.
template <class Make, class Run>
void run_all(ffi::ThreadPool& pool, const std::vector<int64_t>& elements, int64_t numbers, Make make, Run run) {
    const int64_t count = int64_t(elements.size()), threads = count * numbers < kWorthThreads ? 1 : usable_cores();
    // No more in a chunk than leaves work for all threads, but for what fits the lanes of vectors.
    const int64_t size = count >= threads * kMostInPack / 2 ? kMostInPack : 1, chunks = (count + size - 1) / size;
    const auto run_chunk = [&](int64_t chunk) {
        std::vector<decltype(make(0))> calls;
        calls.reserve(size_t(size));
        for (int64_t i = chunk * size; i < count && i < (chunk + 1) * size; ++i)
            calls.push_back(make(elements[size_t(i)]));
        run(calls.data(), int(calls.size()));
    };
    if (threads > 1)
        share(pool, chunks, run_chunk);
    else
        for (int64_t chunk = 0; chunk < chunks; ++chunk) run_chunk(chunk);
}

}  // namespace gnewt::engine
