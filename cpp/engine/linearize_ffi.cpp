// Local models as an XLA custom call, which src/gnewt/kkt/derivatives/native.py makes.
// Leading axes are batch axes: on each of them an operand has the size of the batch, or one.
#include <atomic>
#include <cstring>
#include <vector>

#include "batched.hpp"
#include "call.hpp"
#include "linearize_call.hpp"

namespace gnewt::engine {
namespace {

const Linearizer& chosen_linearizer() {
    static const Linearizer* chosen = [] {
#ifdef GNEWT_X86
        const char* isa = chosen_engine().isa;
        if (std::strcmp(isa, "avx512") == 0) return avx512_linearizer();
        if (std::strcmp(isa, "avx2") == 0) return avx2_linearizer();
#endif
        return baseline_linearizer();
    }();
    return *chosen;
}

bool run(const LinearizeCall<double>& call) { return chosen_linearizer().run_f64(call); }
bool run(const LinearizeCall<float>& call) { return chosen_linearizer().run_f32(call); }
bool run(const LinearizeCall<double>* calls, int count) { return chosen_linearizer().run_many_f64(calls, count); }
bool run(const LinearizeCall<float>* calls, int count) { return chosen_linearizer().run_many_f32(calls, count); }

// A call with the operands that it points to.
template <class T>
struct OwnCall {
    std::vector<const T*> operands;
    LinearizeCall<T> call;
};

// HAS_GIVEN: the first operand after the slots holds multipliers of the nodes, one for each slot.
template <ffi::DataType D, bool HAS_GIVEN>
ffi::Error linearize(ffi::ThreadPool pool, ffi::Buffer<ffi::S32> tables, ffi::Buffer<ffi::S32> code,
                     ffi::Buffer<D> constants, ffi::Buffer<D> slots, ffi::RemainingArgs rest,
                     ffi::ResultBuffer<D> value, ffi::ResultBuffer<D> duals, ffi::ResultBuffer<D> sources) {
    using T = ffi::NativeType<D>;
    auto refuse = [](const char* what) { return ffi::Error::InvalidArgument(what); };
    const auto shape = duals->dimensions();
    if (shape.size() < 1) return refuse("gnewt: duals without an axis");
    const ffi::Span<const int64_t> batch(shape.begin(), shape.size() - 1);
    const Batched at(slots, 1), values(*value, 0), lam(*duals, 1), found(*sources, 1), given_tables(tables, 1),
        given_code(code, 1), given_constants(constants, 1);
    std::vector<ffi::Buffer<D>> buffers;
    if (HAS_GIVEN && rest.size() == 0) return refuse("gnewt: no multipliers were given");
    for (size_t i = 0; i < rest.size(); ++i) {
        const auto operand = rest.get<ffi::Buffer<D>>(i);
        if (!operand.has_value()) return refuse("gnewt: an operand of another precision");
        buffers.push_back(*operand);
    }
    std::vector<Batched<ffi::Buffer<D>>> operands;
    std::vector<int64_t> sizes;
    bool fits = at.fits(batch) && values.fits(batch) && found.fits(batch) && at.size() == lam.size() &&
                given_tables.fits(batch) && given_code.fits(batch) && given_constants.fits(batch);
    for (auto& buffer : buffers) {
        operands.emplace_back(buffer, 1);
        sizes.push_back(operands.back().size());
        fits = fits && operands.back().fits(batch);
    }
    if (HAS_GIVEN) fits = fits && sizes[0] == lam.size();
    if (!fits) return refuse("gnewt: operands of linearize do not fit together");
    constexpr int64_t first = HAS_GIVEN ? 1 : 0;
    const auto make = [&](int64_t e) {
        OwnCall<T> own{std::vector<const T*>(operands.size()), {}};
        for (size_t i = 0; i < operands.size(); ++i) own.operands[i] = operands[i].at(e, batch);
        const T* const* pointers = own.operands.data();  // which stay where they are when the vector is moved
        own.call = {given_tables.at(e, batch),
                    given_tables.size(),
                    given_code.at(e, batch),
                    given_code.size(),
                    given_constants.at(e, batch),
                    given_constants.size(),
                    at.at(e, batch),
                    pointers + first,
                    sizes.data() + first,
                    int64_t(sizes.size()) - first,
                    values.at(e, batch),
                    lam.at(e, batch),
                    lam.size(),
                    found.at(e, batch),
                    found.size(),
                    HAS_GIVEN ? pointers[0] : nullptr};
        return own;
    };
    std::atomic<bool> good{true};
    const auto run_many = [&](const OwnCall<T>* own, int size) {
        LinearizeCall<T> calls[kMostInPack];
        for (int i = 0; i < size; ++i) calls[i] = own[i].call;
        if (!(size == 1 ? run(calls[0]) : run(calls, size))) good = false;
    };
    run_all(pool, all(product(batch)), found.size() + lam.size(), make, run_many);
    if (!good) return refuse("gnewt: the integers of a linearisation do not fit its numbers");
    return ffi::Error::Success();
}

template <ffi::DataType D>
auto binding() {
    return ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .template Arg<ffi::Buffer<ffi::S32>>()
        .template Arg<ffi::Buffer<ffi::S32>>()
        .template Arg<ffi::Buffer<D>>()
        .template Arg<ffi::Buffer<D>>()
        .RemainingArgs()
        .template Ret<ffi::Buffer<D>>()
        .template Ret<ffi::Buffer<D>>()
        .template Ret<ffi::Buffer<D>>();
}

}  // namespace
}  // namespace gnewt::engine

using namespace gnewt::engine;

// The linearisation without XLA. `call` is a LinearizeCall of double, or of float if `single`; zero where it fails.
extern "C" __attribute__((visibility("default"))) int gnewt_linearize(int single, const void* call) {
    return single ? run(*static_cast<const LinearizeCall<float>*>(call))
                  : run(*static_cast<const LinearizeCall<double>*>(call));
}

// The macro declares extern "C" functions; the pragma makes them visible in a library that hides its symbols.
#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_linearize_f64, (linearize<ffi::F64, false>), binding<ffi::F64>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_linearize_f32, (linearize<ffi::F32, false>), binding<ffi::F32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_linearize_given_f64, (linearize<ffi::F64, true>), binding<ffi::F64>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_linearize_given_f32, (linearize<ffi::F32, true>), binding<ffi::F32>());
#pragma GCC visibility pop
