// Selected inversion and draws as XLA custom calls, which src/gnewt/kkt/engines/native/inverse.py makes.
// Leading axes are batch axes: on each of them an operand has the size of the batch, or one.
#include <cstring>

#include "../plan_format.hpp"
#include "batched.hpp"
#include "inverse_call.hpp"

namespace gnewt::engine {
namespace {

const Inverter& chosen_inverter() {
    static const Inverter* chosen = [] {
#ifdef GNEWT_X86
        const char* isa = chosen_engine().isa;
        if (std::strcmp(isa, "avx512") == 0) return avx512_inverter();
        if (std::strcmp(isa, "avx2") == 0) return avx2_inverter();
#endif
        return baseline_inverter();
    }();
    return *chosen;
}

void run_one(const InverseCall<double>& call) { chosen_inverter().invert_f64(call); }
void run_one(const InverseCall<float>& call) { chosen_inverter().invert_f32(call); }
void run_one(const DrawCall<double>& call) { chosen_inverter().draw_f64(call); }
void run_one(const DrawCall<float>& call) { chosen_inverter().draw_f32(call); }

struct Each {
    template <class C>
    void operator()(const C* calls, int count) const {
        for (int i = 0; i < count; ++i) run_one(calls[i]);
    }
};

// The operands that both calls have: a plan, and the factor that was made with it.
template <ffi::DataType D>
struct Factor {
    Factor(ffi::Buffer<ffi::S32>& plan_, ffi::Buffer<D>& sources_, ffi::Buffer<D>& factor, ffi::Buffer<ffi::S32>& index,
           ffi::Buffer<ffi::S32>& info)
        : plan(plan_, 1), sources(sources_, 1), numbers(factor, 1), integers(index, 1), infos(info, 1) {}

    bool fits(ffi::Span<const int64_t> batch) const {
        return plan.fits(batch) && sources.fits(batch) && numbers.fits(batch) && integers.fits(batch) &&
               infos.fits(batch) && infos.size() == kInfoSize && integers.size() >= 4;
    }

    Batched<ffi::Buffer<ffi::S32>> plan;
    Batched<ffi::Buffer<D>> sources, numbers;
    Batched<ffi::Buffer<ffi::S32>> integers, infos;
};

template <ffi::DataType D, bool SENSITIVITIES>
ffi::Error invert(ffi::ThreadPool pool, ffi::Buffer<ffi::S32> plan, ffi::Buffer<D> sources, ffi::Buffer<D> factor,
                  ffi::Buffer<ffi::S32> index, ffi::Buffer<ffi::S32> info, ffi::ResultBuffer<D> found) {
    using T = ffi::NativeType<D>;
    const auto shape = found->dimensions();
    if (shape.size() < 1) return ffi::Error::InvalidArgument("gnewt: the inverse has no axis");
    const ffi::Span<const int64_t> batch(shape.begin(), shape.size() - 1);
    const Factor<D> given(plan, sources, factor, index, info);
    const Batched out(*found, 1);
    const bool whole = given.plan.size() >= plan_format::kHeaderSize;
    if (!given.fits(batch) || !whole || (SENSITIVITIES && out.size() != given.sources.size()))
        return ffi::Error::InvalidArgument("gnewt: operands of a selected inversion do not fit together");
    const auto make = [&](int64_t e) {
        const int32_t* p = given.plan.at(e, batch);
        T* to = out.at(e, batch);
        return InverseCall<T>{p,
                              given.plan.size(),
                              given.sources.at(e, batch),
                              given.sources.size(),
                              given.numbers.at(e, batch),
                              given.numbers.size(),
                              given.integers.at(e, batch),
                              given.integers.size(),
                              given.infos.at(e, batch),
                              SENSITIVITIES ? nullptr : to,
                              SENSITIVITIES ? to : nullptr,
                              SENSITIVITIES ? p[plan_format::kNumSlots] : out.size()};
    };
    run_all(pool, all(product(batch)), given.sources.size(), make, Each{});
    return ffi::Error::Success();
}

template <ffi::DataType D>
ffi::Error draw(ffi::ThreadPool pool, ffi::Buffer<ffi::S32> plan, ffi::Buffer<D> sources, ffi::Buffer<D> factor,
                ffi::Buffer<ffi::S32> index, ffi::Buffer<ffi::S32> info, ffi::Buffer<D> noise,
                ffi::ResultBuffer<D> draws) {
    using T = ffi::NativeType<D>;
    const auto shape = draws->dimensions();
    if (shape.size() < 2) return ffi::Error::InvalidArgument("gnewt: noise must have shape [..., N, columns]");
    const ffi::Span<const int64_t> batch(shape.begin(), shape.size() - 2);
    const int64_t n = shape[shape.size() - 2], columns = shape[shape.size() - 1];
    const Factor<D> given(plan, sources, factor, index, info);
    const Batched in(noise, 2), out(*draws, 2);
    if (!given.fits(batch) || !in.fits(batch) || in.size() != n * columns)
        return ffi::Error::InvalidArgument("gnewt: operands of draw do not fit together");
    const auto make = [&](int64_t e) {
        return DrawCall<T>{given.plan.at(e, batch),
                           given.plan.size(),
                           given.sources.at(e, batch),
                           given.sources.size(),
                           given.numbers.at(e, batch),
                           given.numbers.size(),
                           given.integers.at(e, batch),
                           given.integers.size(),
                           given.infos.at(e, batch),
                           in.at(e, batch),
                           n,
                           columns,
                           out.at(e, batch)};
    };
    run_all(pool, all(product(batch)), given.sources.size(), make, Each{});
    return ffi::Error::Success();
}

// The operands that both calls have.
template <ffi::DataType D>
auto factor_binding() {
    return ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .template Arg<ffi::Buffer<ffi::S32>>()
        .template Arg<ffi::Buffer<D>>()
        .template Arg<ffi::Buffer<D>>()
        .template Arg<ffi::Buffer<ffi::S32>>()
        .template Arg<ffi::Buffer<ffi::S32>>();
}
template <ffi::DataType D>
auto invert_binding() {
    return factor_binding<D>().template Ret<ffi::Buffer<D>>();
}
template <ffi::DataType D>
auto draw_binding() {
    return factor_binding<D>().template Arg<ffi::Buffer<D>>().template Ret<ffi::Buffer<D>>();
}

}  // namespace
}  // namespace gnewt::engine

using namespace gnewt::engine;

// The macro declares extern "C" functions; the pragma makes them visible in a library that hides its symbols.
#pragma GCC visibility push(default)
// Names, since a macro takes no comma.
constexpr auto variances_f64 = invert<ffi::F64, false>;
constexpr auto variances_f32 = invert<ffi::F32, false>;
constexpr auto sensitivities_f64 = invert<ffi::F64, true>;
constexpr auto sensitivities_f32 = invert<ffi::F32, true>;
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_variances_f64, variances_f64, invert_binding<ffi::F64>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_variances_f32, variances_f32, invert_binding<ffi::F32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_sensitivities_f64, sensitivities_f64, invert_binding<ffi::F64>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_sensitivities_f32, sensitivities_f32, invert_binding<ffi::F32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_draw_f64, draw<ffi::F64>, draw_binding<ffi::F64>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_draw_f32, draw<ffi::F32>, draw_binding<ffi::F32>());
#pragma GCC visibility pop
