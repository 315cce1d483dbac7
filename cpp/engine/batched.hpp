// Operands of a custom call under vmap: leading axes are batch axes.
#pragma once
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

}  // namespace gnewt::engine
