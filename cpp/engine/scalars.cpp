// Scalar programs as an XLA custom call, which src/gnewt/kkt/derivatives/machine.py makes.
#include "scalars.hpp"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace gnewt::scalars {
namespace {

// Leading axes are batch axes, which inputs and outputs have alike; programs and constants serve a whole batch.
template <ffi::DataType D>
ffi::Error evaluate(ffi::Buffer<ffi::S32> program, ffi::Buffer<D> constants, ffi::Buffer<D> inputs,
                    ffi::ResultBuffer<D> outputs) {
    const auto shape = inputs.dimensions(), found = outputs->dimensions();
    const Program steps{program.typed_data(), int64_t(program.element_count())};
    if (!steps.valid() || int64_t(constants.element_count()) != steps.at(kNumConstants))
        return ffi::Error::InvalidArgument("gnewt: not a scalar program");
    if (shape.size() < 2 || found.size() != shape.size() || shape[shape.size() - 2] != steps.at(kNumInputs) ||
        found[shape.size() - 2] != steps.at(kNumOutputs) || shape[shape.size() - 1] != found[found.size() - 1])
        return ffi::Error::InvalidArgument("gnewt: the numbers do not fit the scalar program");
    const int64_t n = shape[shape.size() - 1], ins = steps.at(kNumInputs) * n, outs = steps.at(kNumOutputs) * n;
    int64_t batch = 1;
    for (size_t i = 0; i + 2 < shape.size(); ++i) {
        if (shape[i] != found[i]) return ffi::Error::InvalidArgument("gnewt: batches of different sizes");
        batch *= shape[i];
    }
    for (int64_t e = 0; e < batch; ++e)
        run(steps, constants.typed_data(), inputs.typed_data() + e * ins, n, outputs->typed_data() + e * outs);
    return ffi::Error::Success();
}

}  // namespace
}  // namespace gnewt::scalars

using namespace gnewt::scalars;

// The macro declares extern "C" functions; the pragma makes them visible in a library that hides its symbols.
#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_scalars_f64, evaluate<ffi::F64>);
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_scalars_f32, evaluate<ffi::F32>);
#pragma GCC visibility pop
