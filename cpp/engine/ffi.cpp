// The engine as XLA custom calls, which src/gnewt/kkt/engines/native/engine.py makes.
// Leading axes are batch axes: on each of them an operand has the size of the batch, or one.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../plan_format.hpp"
#include "batched.hpp"
#include "pack_call.hpp"

namespace ffi = xla::ffi;

namespace gnewt::engine {
namespace {

// The axes of a solution: [batch..., N, columns].
struct Axes {
    explicit Axes(ffi::Span<const int64_t> dims)
        : valid(dims.size() >= 2),
          batch(dims.begin(), valid ? dims.size() - 2 : 0),
          n(valid ? dims[dims.size() - 2] : 0),
          columns(valid ? dims[dims.size() - 1] : 0) {}

    int64_t batch_size() const { return product(batch); }

    bool valid;
    ffi::Span<const int64_t> batch;
    int64_t n, columns;
};

ffi::Error refuse(const char* what) { return ffi::Error::InvalidArgument(what); }
constexpr char kBadAxes[] = "gnewt: the right-hand side must have shape [..., N, columns]";

// Nothing is wanted: the status says so, and the solution is NaN.
template <class T>
void leave_out(const Call<T>& call) {
    std::memset(call.info, 0, kInfoSize * sizeof(int32_t));
    call.info[kStatus] = kNonFinite;
    for (int64_t i = 0; i < kRealSize; ++i) call.real[i] = T(NAN);
    for (int64_t i = 0; i < call.num_inputs * call.columns; ++i) call.solution[i] = T(NAN);
}

template <ffi::DataType D>
ffi::Error factor_solve(ffi::ThreadPool pool, ffi::Buffer<ffi::S32> plan, ffi::Buffer<D> sources, ffi::Buffer<D> shift,
                        ffi::Buffer<D> rhs, ffi::ResultBuffer<D> solution, ffi::ResultBuffer<D> factor,
                        ffi::ResultBuffer<ffi::S32> index, ffi::ResultBuffer<ffi::S32> info, ffi::ResultBuffer<D> real,
                        ffi::ResultBuffer<ffi::S8> null) {
    using T = ffi::NativeType<D>;
    const Axes axes(solution->dimensions());
    if (!axes.valid) return refuse(kBadAxes);
    const auto& batch = axes.batch;
    const int64_t n = axes.n, columns = axes.columns;
    const Batched plans(plan, 1), source(sources, 1), shifts(shift, 0), given(rhs, 2), out(*solution, 2),
        numbers(*factor, 1), integers(*index, 1), infos(*info, 1), reals(*real, 1), nulls(*null, 1);
    if (!plans.fits(batch) || plans.size() != int64_t(plan.element_count()))
        return refuse("gnewt: one plan serves a whole batch");
    if (!source.fits(batch) || !shifts.fits(batch) || !given.fits(batch) || given.size() != n * columns ||
        infos.size() != kInfoSize || reals.size() != kRealSize || integers.size() < 4)
        return refuse("gnewt: operands of factor_solve do not fit together");
    const int32_t* p = plan.typed_data();
    if (plans.size() < plan_format::kHeaderSize ||
        nulls.size() != 2 * int64_t(p[plan_format::kNumSlots]) - p[plan_format::kNumInputs])
        return refuse("gnewt: the plan does not fit the results");
    const auto make = [&](int64_t e) {
        return Call<T>{p,
                       plans.size(),
                       source.at(e, batch),
                       source.size(),
                       *shifts.at(e, batch),
                       given.at(e, batch),
                       n,
                       columns,
                       out.at(e, batch),
                       numbers.at(e, batch),
                       numbers.size(),
                       integers.at(e, batch),
                       integers.size(),
                       infos.at(e, batch),
                       reals.at(e, batch),
                       nulls.at(e, batch)};
    };
    const auto elements = chosen(axes.batch_size(), [&](int64_t e) {
        const T mu = *shifts.at(e, batch);
        const bool wanted = mu == mu;  // a shift of NaN asks for nothing
        const Call<T> call = make(e);
        if (!wanted) leave_out(call);
        return wanted;
    });
    run_all(pool, elements, source.size(), make, [](const Call<T>* calls, int size) { factor_many(calls, size); });
    return ffi::Error::Success();
}

// WHOLE: right-hand sides and solutions are over all unknowns.
template <ffi::DataType D, bool WHOLE>
ffi::Error solve(ffi::ThreadPool pool, ffi::Buffer<ffi::S32> plan, ffi::Buffer<D> sources, ffi::Buffer<D> factor,
                 ffi::Buffer<ffi::S32> index, ffi::Buffer<ffi::S32> info, ffi::Buffer<D> real, ffi::Buffer<D> rhs,
                 ffi::ResultBuffer<D> solution) {
    using T = ffi::NativeType<D>;
    const Axes axes(solution->dimensions());
    if (!axes.valid) return refuse(kBadAxes);
    const auto& batch = axes.batch;
    const int64_t n = axes.n, columns = axes.columns;
    const Batched plans(plan, 1), source(sources, 1), numbers(factor, 1), integers(index, 1), infos(info, 1),
        reals(real, 1), given(rhs, 2), out(*solution, 2);
    if (!plans.fits(batch) || plans.size() != int64_t(plan.element_count()) || !source.fits(batch) ||
        !numbers.fits(batch) || !integers.fits(batch) || !infos.fits(batch) || !reals.fits(batch) ||
        !given.fits(batch) || given.size() != n * columns || infos.size() != kInfoSize || reals.size() != kRealSize ||
        integers.size() < 4)
        return refuse("gnewt: operands of solve do not fit together");
    const int32_t* p = plan.typed_data();
    if (plans.size() < plan_format::kHeaderSize) return refuse("gnewt: the plan does not fit the results");
    const int64_t num_inputs = WHOLE ? p[plan_format::kNumInputs] : n;
    if (WHOLE && n != 2 * int64_t(p[plan_format::kNumSlots]) - num_inputs)
        return refuse("gnewt: the right-hand side must have a row for every unknown");
    const auto make = [&](int64_t e) {
        return SolveCall<T>{p,
                            plans.size(),
                            source.at(e, batch),
                            source.size(),
                            numbers.at(e, batch),
                            numbers.size(),
                            integers.at(e, batch),
                            integers.size(),
                            infos.at(e, batch),
                            reals.at(e, batch),
                            given.at(e, batch),
                            num_inputs,
                            columns,
                            out.at(e, batch)};
    };
    // Where there is no factor, solutions are NaN, which takes no time.
    const auto has_factor = [&](int64_t e) { return infos.at(e, batch)[kStatus] <= kSingular; };
    const auto run = [](const SolveCall<T>* calls, int size) {
        if (!WHOLE) return solve_many(calls, size);
        for (int i = 0; i < size; ++i) solve_whole(calls[i]);
    };
    run_all(pool, chosen(axes.batch_size(), has_factor), source.size(), make, run);
    const auto without = chosen(axes.batch_size(), [&](int64_t e) { return !has_factor(e); });
    for (int64_t e : without) std::fill_n(out.at(e, batch), n * columns, T(NAN));
    return ffi::Error::Success();
}

template <ffi::DataType D>
auto factor_solve_binding() {
    return ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .template Arg<ffi::Buffer<ffi::S32>>()
        .template Arg<ffi::Buffer<D>>()
        .template Arg<ffi::Buffer<D>>()
        .template Arg<ffi::Buffer<D>>()
        .template Ret<ffi::Buffer<D>>()
        .template Ret<ffi::Buffer<D>>()
        .template Ret<ffi::Buffer<ffi::S32>>()
        .template Ret<ffi::Buffer<ffi::S32>>()
        .template Ret<ffi::Buffer<D>>()
        .template Ret<ffi::Buffer<ffi::S8>>();
}
template <ffi::DataType D>
auto solve_binding() {
    return ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .template Arg<ffi::Buffer<ffi::S32>>()
        .template Arg<ffi::Buffer<D>>()
        .template Arg<ffi::Buffer<D>>()
        .template Arg<ffi::Buffer<ffi::S32>>()
        .template Arg<ffi::Buffer<ffi::S32>>()
        .template Arg<ffi::Buffer<D>>()
        .template Arg<ffi::Buffer<D>>()
        .template Ret<ffi::Buffer<D>>();
}

}  // namespace
}  // namespace gnewt::engine

#if defined(_WIN32)
#define GNEWT_EXPORT __declspec(dllexport)
#else
#define GNEWT_EXPORT __attribute__((visibility("default")))
#endif

using namespace gnewt::engine;

extern "C" GNEWT_EXPORT const char* gnewt_engine_isa() { return chosen_engine().isa; }

// The macro declares extern "C" functions; the pragma makes them visible in a library that hides its symbols.
#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_factor_solve_f64, factor_solve<ffi::F64>, factor_solve_binding<ffi::F64>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_factor_solve_f32, factor_solve<ffi::F32>, factor_solve_binding<ffi::F32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_solve_f64, (solve<ffi::F64, false>), solve_binding<ffi::F64>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_solve_f32, (solve<ffi::F32, false>), solve_binding<ffi::F32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_solve_whole_f64, (solve<ffi::F64, true>), solve_binding<ffi::F64>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(gnewt_solve_whole_f32, (solve<ffi::F32, true>), solve_binding<ffi::F32>());
#pragma GCC visibility pop
