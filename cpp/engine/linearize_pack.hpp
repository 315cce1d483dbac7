// Duals and local derivatives of up to eight problems with one structure, side by side: every number of linearize.hpp is
// a vector with a lane for each problem. A block of a program holds all lanes of a few instances, and the reverse sweep,
// which goes instance by instance, does all lanes at once.
#pragma once
#include "linearize.hpp"
#include "pack_call.hpp"
#include "pack_memory.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T>
class PackedModels {
    using V = Eight<T>;

public:
    PackedModels(const LinearizeCall<T>* calls, int count) : calls_(calls), call_(calls[0]), count_(count) {}

    // Whether the calls may go side by side: they have the same integers, and the numbers fit into the cache.
    bool fits() const {
        if (call_.num_sources + call_.num_slots > kMostNumbers) return false;
        for (int i = 1; i < count_; ++i)
            if (calls_[i].tables != call_.tables || calls_[i].code != call_.code ||
                calls_[i].constants != call_.constants)
                return false;
        return LocalModels<T>(call_).fits();
    }

    // False where there is no memory.
    bool run() {
        if (!reserve() || !take_operands()) return false;
        read(slots_, call_.num_slots, [](const LinearizeCall<T>& call) { return call.slots; });
        std::memset(duals_.data(), 0, size_t(call_.num_slots) * sizeof(V));
        value_ = V{};
        int64_t saved = 0;
        for (int64_t f = 0; f < num_families(); saved += saved_of(f++))
            if (!first_derivatives(f, saved)) return false;
        if (call_.given) {
            read(given_, call_.num_slots, [](const LinearizeCall<T>& call) { return call.given; });
            pull_given(call_.tables, sources_.data(), given_.data(), duals_.data());
        } else if (!sweep_duals(call_.tables, sources_.data(), duals_.data())) {
            return false;
        }
        saved = 0;
        for (int64_t f = 0; f < num_families(); saved += saved_of(f++))
            if (!second_derivatives(f, saved)) return false;
        write();
        return true;
    }

private:
    static constexpr int64_t kMostNumbers = int64_t(1) << 17;
    static constexpr int64_t kLanes = kLanesOfPack;

    // An operand: the same for all lanes, or a vector for each number.
    struct Operand {
        const T* shared;
        const V* own;
        GNEWT_INLINE V operator[](int64_t i) const { return own ? own[i] : V{} + shared[i]; }
    };

    int64_t num_families() const { return call_.tables[kFamilies]; }
    FamilyView family(int64_t f) const { return FamilyView(call_.tables, f); }
    const int32_t* code(int64_t f) const { return call_.code + kCodeHeader + f * kCodeSize; }
    int64_t saved_of(int64_t f) const { return code(f)[kNumSaved] * family(f).n(); }

    bool reserve() {
        int64_t saved = 1, commons = 1;
        for (int64_t f = 0; f < num_families(); ++f)
            saved += saved_of(f), commons = max<int64_t>(commons, code(f)[kNumCommons]);
        return slots_.reserve(call_.num_slots) && duals_.reserve(call_.num_slots) &&
               sources_.reserve(call_.num_sources + 1) && saved_.reserve(saved) && commons_.reserve(commons) &&
               (!call_.given || given_.reserve(call_.num_slots)) && operands_.reserve(call_.num_operands + 1);
    }

    template <class Of>
    void read(Buffer<V>& to, int64_t n, Of of) {
        LanePointers<const T> from;
        for (int lane = 0; lane < kLanes; ++lane) from.at[lane] = of(calls_[lane < count_ ? lane : 0]);
        interleave(from, n, to.data());
    }

    bool take_operands() {
        const auto is_shared = [&](int64_t o) {
            bool all = true;
            for (int i = 1; i < count_; ++i) all &= calls_[i].operands[o] == call_.operands[o];
            return all;
        };
        int64_t size = 1;
        for (int64_t o = 0; o < call_.num_operands; ++o) size += is_shared(o) ? 0 : call_.operand_sizes[o];
        if (!numbers_.reserve(size)) return false;
        V* own = numbers_.data();
        for (int64_t o = 0; o < call_.num_operands; ++o) {
            operands_[o] = {call_.operands[o], nullptr};
            if (is_shared(o)) continue;
            LanePointers<const T> from;
            for (int lane = 0; lane < kLanes; ++lane) from.at[lane] = calls_[lane < count_ ? lane : 0].operands[o];
            interleave(from, call_.operand_sizes[o], own);
            operands_[o].own = own;
            own += call_.operand_sizes[o];
        }
        return true;
    }

    void write() {
        LanePointers<T> duals, sources;
        for (int lane = 0; lane < count_; ++lane) {
            *calls_[lane].value = value_[lane];
            duals.at[lane] = calls_[lane].duals, sources.at[lane] = calls_[lane].sources;
        }
        separate(duals_.data(), call_.num_slots, duals);
        separate(sources_.data(), call_.num_sources, sources);
    }

    bool first_derivatives(int64_t f, int64_t saved) {
        const FamilyView shape = family(f);
        const int32_t* c = code(f);
        if (c[kFirst] == kGiven) {
            take_given(shape, operands_[c[kOperand]]);
            return true;
        }
        if (c[kPrologue] >= 0 && !run_program(f, c[kPrologue], 1, saved)) return false;
        return run_program(f, c[kFirst], shape.n(), saved);
    }

    bool second_derivatives(int64_t f, int64_t saved) {
        const FamilyView shape = family(f);
        const int32_t* c = code(f);
        // Hessians that are not computed here are put among the sources by the caller.
        if (c[kSecond] < 0 && c[kFirst] != kGiven && c[kSecond] != kZeroHessian) return true;
        if (c[kSecond] < 0) {
            std::memset(sources_.data() + shape.field[kHessAt], 0, size_t(shape.n() * shape.num_hess()) * sizeof(V));
            return true;
        }
        if (c[kPrologue] >= 0 && !run_program(f, c[kPrologue], 1, saved)) return false;
        return run_program(f, c[kSecond], shape.n(), saved);
    }

    void take_given(const FamilyView& shape, const Operand& rows) {
        const int64_t n = shape.n(), width = shape.num_jac();
        if (!shape.is_loss()) {
            V* to = sources_.data() + shape.field[kJacAt];
            for (int64_t i = 0; i < n * width; ++i) to[i] = rows[i];
            return;
        }
        const int32_t *ends = shape.ends(), *entries = shape.entries();
        for (int64_t a = 0; a < shape.k(); ++a)
            for (int32_t e = ends[a]; e < ends[a + 1]; ++e) {
                const Column column = shape.arg(a);
                for (int64_t i = 0; i < n; ++i) duals_[column.at(i)] += rows[entries[2 * e] + i * width];
            }
    }

    // Programs: as in LocalModels, with kLanes numbers in place of one.

    bool run_program(int64_t f, int64_t at, int64_t n, int64_t saved) {
        const int32_t* p = call_.code + at;
        const int64_t room = 32768 / int64_t(sizeof(T)), fit = room / max<int64_t>(p[kNumPlaces], 1) / 16 * 16;
        const int64_t block = min<int64_t>(kBlock, max<int64_t>(fit, 4 * kLanes)) / kLanes;
        const int64_t pitch = padded<T>(min(block, n) * kLanes);
        if (!places_.reserve(p[kNumPlaces] * pitch)) return false;
        T* memory = places_.data();
        for (int64_t c = 0; c < p[kNumConstants]; ++c)
            fill(call_.constants[p[kFirstConstant] + c], pitch, memory + c * pitch);
        const int32_t* loads = p + kProgramHeader;
        const int32_t* steps = loads + int64_t(p[kNumLoads]) * kLoadSize;
        const int32_t* stores = steps + int64_t(p[kNumSteps]) * kStepSize;
        for (int64_t first = 0; first < n; first += block) {
            const int64_t count = min(block, n - first);
            for (int64_t i = 0; i < p[kNumLoads]; ++i) {
                T* to = memory + loads[i * kLoadSize] * pitch;
                load_place(f, loads + i * kLoadSize, first, count, saved, to, pitch);
            }
            run_steps(steps, p[kNumSteps], memory, pitch, count * kLanes);
            for (int64_t i = 0; i < p[kNumStores]; ++i) {
                const int32_t* store = stores + i * kStoreSize;
                store_place(f, store, first, count, saved, memory + store[0] * pitch);
            }
        }
        return true;
    }

    static GNEWT_INLINE V take(const T* from, int64_t i) { return engine::GNEWT_ISA::read<V>(from + i * kLanes); }
    static GNEWT_INLINE void put(T* to, int64_t i, V value) { __builtin_memcpy(to + i * kLanes, &value, sizeof value); }

    void load_place(int64_t f, const int32_t* load, int64_t first, int64_t count, int64_t saved, T* to, int64_t pitch) {
        const FamilyView shape = family(f);
        const auto operand = [&] { return operands_[code(f)[kOperand] + load[2]]; };
        const auto from_slots = [&](const Column& column, const V* from) {
            for (int64_t i = 0; i < count; ++i) put(to, i, from[column.at(first + i)]);
        };
        switch (load[1]) {
            case kLoadSlot: from_slots(shape.arg(load[2]), slots_.data()); break;
            case kLoadDual: from_slots(shape.out(load[2]), call_.given ? given_.data() : duals_.data()); break;
            case kLoadData: {
                const Operand from = operand();
                for (int64_t i = 0; i < count; ++i) put(to, i, from[(first + i) * load[4] + load[3]]);
                break;
            }
            case kLoadShared:
            case kLoadCommon: {
                if (first) return;  // still there from the first block
                const V value = load[1] == kLoadShared ? operand()[load[3]] : commons_[load[2]];
                for (int64_t i = 0; i < pitch / kLanes; ++i) put(to, i, value);
                return;
            }
            case kLoadSaved: {
                const V* from = saved_.data() + saved + load[2] * shape.n() + first;
                for (int64_t i = 0; i < count; ++i) put(to, i, from[i]);
                break;
            }
            default: return;
        }
        pad(to, count * kLanes);
    }

    void store_place(int64_t f, const int32_t* store, int64_t first, int64_t count, int64_t saved, const T* from) {
        const FamilyView shape = family(f);
        switch (store[1]) {
            case kStoreValue:
                for (int64_t i = 0; i < count; ++i) value_ += take(from, i);
                return;
            case kStoreGradient: {
                const Column column = shape.arg(store[2]);
                for (int64_t i = 0; i < count; ++i) duals_[column.at(first + i)] += take(from, i);
                return;
            }
            case kStoreCommon: commons_[store[2]] = take(from, 0); return;
            case kStoreSaved: {
                V* to = saved_.data() + saved + store[2] * shape.n() + first;
                for (int64_t i = 0; i < count; ++i) to[i] = take(from, i);
                return;
            }
            default: {
                const bool jacobian = store[1] == kStoreJacobian;
                const int64_t width = jacobian ? shape.num_jac() : shape.num_hess();
                V* to = sources_.data() + shape.field[jacobian ? kJacAt : kHessAt] + first * width + store[2];
                for (int64_t i = 0; i < count; ++i) to[i * width] = take(from, i);
            }
        }
    }

    const LinearizeCall<T>*const calls_, &call_;
    const int count_;
    V value_;
    Buffer<V> slots_, duals_, sources_, given_, saved_, commons_, numbers_;  // numbers_: operands of single lanes
    Buffer<Operand> operands_;
    Buffer<T> places_;
};

// False where the integers of a call do not fit its numbers, or memory is missing.
template <class T>
bool linearize_many(const LinearizeCall<T>* calls, int count) {
    PackedModels<T> pack(calls, count);
    if (count >= kFewestInPack && pack.fits()) return pack.run();
    bool good = true;
    for (int i = 0; i < count; ++i) good &= LocalModels<T>(calls[i]).run();
    return good;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
