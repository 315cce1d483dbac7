// Several calls at a time: packs where the plan is made for that, and every other call alone.
#include <cstring>

#include "pack_call.hpp"

namespace gnewt::engine {
namespace {

const Packer& chosen_packer() {
    static const Packer* chosen = [] {
#ifdef GNEWT_X86
        const char* isa = chosen_engine().isa;
        if (std::strcmp(isa, "avx512") == 0) return avx512_packer();
        if (std::strcmp(isa, "avx2") == 0) return avx2_packer();
#endif
        return baseline_packer();
    }();
    return *chosen;
}

unsigned pack(const Call<double>* calls, int count) { return chosen_packer().factor_f64(calls, count); }
unsigned pack(const Call<float>* calls, int count) { return chosen_packer().factor_f32(calls, count); }
bool pack(const SolveCall<double>* calls, int count) { return chosen_packer().solve_f64(calls, count); }
bool pack(const SolveCall<float>* calls, int count) { return chosen_packer().solve_f32(calls, count); }
void alone(const Call<double>& call) { chosen_engine().factor_f64(call); }
void alone(const Call<float>& call) { chosen_engine().factor_f32(call); }
void alone(const SolveCall<double>& call) { chosen_engine().solve_f64(call); }
void alone(const SolveCall<float>& call) { chosen_engine().solve_f32(call); }

template <class T>
void factor_all(const Call<T>* calls, int count) {
    const unsigned done = count < kFewestInPack ? 0 : pack(calls, count);
    for (int i = 0; i < count; ++i)
        if (!(done >> i & 1)) alone(calls[i]);
}
template <class T>
void solve_all(const SolveCall<T>* calls, int count) {
    if (count >= kFewestInPack && pack(calls, count)) return;
    for (int i = 0; i < count; ++i) alone(calls[i]);
}

}  // namespace

void factor_many(const Call<double>* calls, int count) { factor_all(calls, count); }
void factor_many(const Call<float>* calls, int count) { factor_all(calls, count); }
void solve_many(const SolveCall<double>* calls, int count) { solve_all(calls, count); }
void solve_many(const SolveCall<float>* calls, int count) { solve_all(calls, count); }

}  // namespace gnewt::engine

// Several calls of one plan at once, without XLA, for tests and for other hosts: arrays of Call, or of SolveCall.
extern "C" __attribute__((visibility("default"))) void gnewt_engine_factor_many(int single, const void* calls,
                                                                                int count) {
    using namespace gnewt::engine;
    if (single)
        factor_many(static_cast<const Call<float>*>(calls), count);
    else
        factor_many(static_cast<const Call<double>*>(calls), count);
}

extern "C" __attribute__((visibility("default"))) void gnewt_engine_solve_many(int single, const void* calls,
                                                                               int count) {
    using namespace gnewt::engine;
    if (single)
        solve_many(static_cast<const SolveCall<float>*>(calls), count);
    else
        solve_many(static_cast<const SolveCall<double>*>(calls), count);
}
