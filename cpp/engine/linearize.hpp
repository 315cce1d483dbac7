// Duals and local derivatives of all families by one call: gradients of losses, Jacobians, the reverse sweep, Hessians.
// Numbers go to where the elimination reads them.
#pragma once
#include "local_sweep.hpp"
#include "scalars.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T>
class LocalModels {
public:
    explicit LocalModels(const LinearizeCall<T>& call) : call_(call) {}

    bool run() {
        if (!fits()) return false;
        *call_.value = 0;
        std::memset(call_.duals, 0, size_t(call_.num_slots) * sizeof(T));
        int64_t saved = 0;
        for (int64_t f = 0; f < num_families(); ++f) saved += code(f)[kNumSaved] * family(f).n();
        if (!saved_.reserve(saved + 1)) return false;
        saved = 0;
        for (int64_t f = 0; f < num_families(); ++f) {
            if (!first_derivatives(f, saved)) return false;
            saved += code(f)[kNumSaved] * family(f).n();
        }
        if (call_.given && !given_.reserve(call_.num_slots)) return false;
        if (call_.given) {
            std::memcpy(given_.data(), call_.given, size_t(call_.num_slots) * sizeof(T));
            pull_given(call_.tables, call_.sources, given_.data(), call_.duals);
        } else if (!sweep_duals(call_.tables, call_.sources, call_.duals)) {
            return false;
        }
        saved = 0;
        for (int64_t f = 0; f < num_families(); ++f) {
            if (!second_derivatives(f, saved)) return false;
            saved += code(f)[kNumSaved] * family(f).n();
        }
        return true;
    }

    bool fits() const {
        if (call_.tables_len < kTablesHeader || call_.code_len < kCodeHeader) return false;
        if (call_.tables[kSlots] != call_.num_slots || call_.tables[kSources] != call_.num_sources) return false;
        if (call_.code[0] != num_families() || call_.code_len < kCodeHeader + num_families() * kCodeSize) return false;
        const int64_t items = call_.tables[kItems], end = items + kItemSize * int64_t(call_.tables[kNumItems]);
        if (call_.tables_len < kTablesHeader + num_families() * kFamilySize || end > call_.tables_len) return false;
        for (int64_t f = 0; f < num_families(); ++f) {
            if (code(f)[kFirst] == kGiven) {
                if (code(f)[kOperand] < 0 || code(f)[kOperand] >= call_.num_operands) return false;
                if (call_.operand_sizes[code(f)[kOperand]] != family(f).n() * family(f).num_jac()) return false;
            }
            for (int field = kPrologue; field <= kSecond; ++field)
                if (code(f)[field] >= 0 && !valid(f, code(f)[field])) return false;
        }
        return true;
    }

private:
    int64_t num_families() const { return call_.tables[kFamilies]; }
    FamilyView family(int64_t f) const { return FamilyView(call_.tables, f); }
    const int32_t* code(int64_t f) const { return call_.code + kCodeHeader + f * kCodeSize; }

    // Whether all places, operations and operands of a program exist.
    bool valid(int64_t f, int64_t at) const {
        if (at + kProgramHeader > call_.code_len) return false;
        const int32_t* p = call_.code + at;
        for (int i = 0; i < kProgramHeader; ++i)
            if (p[i] < 0) return false;
        const int64_t loads = int64_t(p[kNumLoads]) * kLoadSize, steps = int64_t(p[kNumSteps]) * kStepSize,
                      stores = int64_t(p[kNumStores]) * kStoreSize, places = p[kNumPlaces];
        if (at + kProgramHeader + loads + steps + stores > call_.code_len || p[kNumConstants] > places) return false;
        if (int64_t(p[kFirstConstant]) + p[kNumConstants] > call_.constants_len) return false;
        const int32_t *load = p + kProgramHeader, *step = load + loads, *store = step + steps;
        for (int64_t i = 0; i < loads; i += kLoadSize)
            if (!valid_load(f, load + i, places)) return false;
        for (int64_t i = 0; i < steps; i += kStepSize)
            if (!valid_step(step + i, places)) return false;
        for (int64_t i = 0; i < stores; i += kStoreSize)
            if (!valid_store(f, store + i, places)) return false;
        return true;
    }

    bool valid_load(int64_t f, const int32_t* load, int64_t places) const {
        if (load[0] < 0 || load[0] >= places || load[2] < 0) return false;
        const FamilyView shape = family(f);
        if (load[1] != kLoadData && load[1] != kLoadShared) {
            const int64_t ends[] = {shape.k(), 0, 0, code(f)[kNumCommons], shape.m(), code(f)[kNumSaved]};
            return load[1] >= 0 && load[1] <= kLoadSaved && load[2] < ends[load[1]];
        }
        const int64_t operand = int64_t(code(f)[kOperand]) + load[2];
        if (operand >= call_.num_operands || load[3] < 0) return false;
        const int64_t size = call_.operand_sizes[operand];
        return load[1] == kLoadShared ? load[3] < size : shape.n() * load[4] <= size && load[3] < load[4];
    }

    static bool valid_step(const int32_t* step, int64_t places) {
        if (step[0] < 0 || step[0] >= kNumOperations) return false;
        for (int i = 1; i < kStepSize; ++i)
            if ((step[i] < 0 || step[i] >= places) && !(step[0] == kPower && i == 3)) return false;
        return true;
    }

    bool valid_store(int64_t f, const int32_t* store, int64_t places) const {
        if (store[0] < 0 || store[0] >= places || store[1] < 0 || store[1] > kStoreSaved) return false;
        const FamilyView shape = family(f);
        const int64_t ends[] = {
            1, shape.k(), shape.num_jac(), shape.num_hess(), code(f)[kNumCommons], code(f)[kNumSaved]};
        return store[2] >= 0 && store[2] < ends[store[1]];
    }

    bool first_derivatives(int64_t f, int64_t saved) {
        const FamilyView shape = family(f);
        const int32_t* c = code(f);
        if (c[kFirst] == kGiven) {
            take_given(shape, call_.operands[c[kOperand]]);
            return true;
        }
        if (c[kNumCommons] && !commons_.reserve(c[kNumCommons])) return false;
        if (c[kPrologue] >= 0 && !run_program(f, c[kPrologue], 1, saved)) return false;
        return run_program(f, c[kFirst], shape.n(), saved);
    }

    bool second_derivatives(int64_t f, int64_t saved) {
        const FamilyView shape = family(f);
        const int32_t* c = code(f);
        if (c[kSecond] == kZeroHessian) {
            T* to = call_.sources + shape.field[kHessAt];
            std::memset(to, 0, size_t(shape.n() * shape.num_hess()) * sizeof(T));
        }
        if (c[kSecond] < 0) return true;
        if (c[kPrologue] >= 0 && !run_program(f, c[kPrologue], 1, saved)) return false;
        return run_program(f, c[kSecond], shape.n(), saved);
    }

    void take_given(const FamilyView& shape, const T* rows) {
        if (!shape.is_loss()) {
            std::memcpy(call_.sources + shape.field[kJacAt], rows, size_t(shape.n() * shape.num_jac()) * sizeof(T));
            return;
        }
        const int32_t *ends = shape.ends(), *entries = shape.entries();
        for (int64_t a = 0; a < shape.k(); ++a)
            for (int32_t e = ends[a]; e < ends[a + 1]; ++e) {
                const Column column = shape.arg(a);
                const T* from = rows + entries[2 * e];
                for (int64_t i = 0; i < shape.n(); ++i) call_.duals[column.at(i)] += from[i * shape.num_jac()];
            }
    }

    // Programs

    bool run_program(int64_t f, int64_t at, int64_t n, int64_t saved) {
        const int32_t* p = call_.code + at;
        const int64_t places = p[kNumPlaces], room = 32768 / int64_t(sizeof(T));
        const int64_t fit = max<int64_t>(room / max<int64_t>(places, 1) / 16 * 16, 32);
        const int64_t block = min<int64_t>(kBlock, fit);
        const int64_t pitch = min<int64_t>(block, padded<T>(n));
        if (!places_.reserve(places * pitch)) return false;
        T* memory = places_.data();
        for (int64_t c = 0; c < p[kNumConstants]; ++c)
            fill(call_.constants[p[kFirstConstant] + c], pitch, memory + c * pitch);
        const int32_t* loads = p + kProgramHeader;
        const int32_t* steps = loads + int64_t(p[kNumLoads]) * kLoadSize;
        const int32_t* stores = steps + int64_t(p[kNumSteps]) * kStepSize;
        for (int64_t first = 0; first < n; first += block) {
            const int64_t count = min<int64_t>(block, n - first);
            for (int64_t i = 0; i < p[kNumLoads]; ++i)
                load_place(f, loads + i * kLoadSize, first, count, saved, memory, pitch);
            run_steps(steps, p[kNumSteps], memory, pitch, count);
            for (int64_t i = 0; i < p[kNumStores];) {
                const int32_t* store = stores + i * kStoreSize;
                i += store[1] == kStoreJacobian || store[1] == kStoreHessian
                         ? store_rows(f, store, p[kNumStores] - i, first, count, memory, pitch)
                         : store_place(f, store, first, count, saved, memory, pitch);
            }
        }
        return true;
    }

    void load_place(int64_t f, const int32_t* load, int64_t first, int64_t count, int64_t saved, T* memory,
                    int64_t pitch) {
        const FamilyView shape = family(f);
        T* to = memory + load[0] * pitch;
        const bool given = load[1] == kLoadData || load[1] == kLoadShared;
        const T* operand = given ? call_.operands[code(f)[kOperand] + load[2]] : nullptr;
        switch (load[1]) {
            case kLoadSlot: return gather(shape.arg(load[2]), call_.slots, first, count, to);
            case kLoadDual:
                return gather(shape.out(load[2]), call_.given ? given_.data() : call_.duals, first, count, to);
            case kLoadData: {
                const T* from = operand + first * load[4] + load[3];
                for (int64_t i = 0; i < count; ++i) to[i] = from[i * load[4]];
                return pad(to, count);
            }
            case kLoadShared:
            case kLoadCommon: {
                if (first) return;  // still there from the first block
                return fill(given ? operand[load[3]] : commons_[load[2]], pitch, to);
            }
            case kLoadSaved:
                copy(saved_.data() + saved + load[2] * shape.n() + first, count, to);
                return pad(to, count);
            default: return;
        }
    }

    // Both return the number of stores that are done.
    int64_t store_place(int64_t f, const int32_t* store, int64_t first, int64_t count, int64_t saved, const T* memory,
                        int64_t pitch) {
        const FamilyView shape = family(f);
        const T* from = memory + store[0] * pitch;
        if (store[1] == kStoreValue) {
            T total = 0;
            for (int64_t i = 0; i < count; ++i) total += from[i];
            *call_.value += total;
        } else if (store[1] == kStoreGradient) {
            scatter_add(shape.arg(store[2]), from, first, count, call_.duals);
        } else if (store[1] == kStoreCommon) {
            commons_[store[2]] = from[0];
        } else {
            copy(from, count, saved_.data() + saved + store[2] * shape.n() + first);
        }
        return 1;
    }

    int64_t store_rows(int64_t f, const int32_t* store, int64_t left, int64_t first, int64_t count, const T* memory,
                       int64_t pitch) {
        const FamilyView shape = family(f);
        const bool is_jacobian = store[1] == kStoreJacobian;
        const int64_t width = is_jacobian ? shape.num_jac() : shape.num_hess();
        T* to = call_.sources + shape.field[is_jacobian ? kJacAt : kHessAt] + first * width;
        bool whole = width <= left && store[2] == 0;
        for (int64_t e = 1; whole && e < width; ++e)
            whole = store[e * kStoreSize + 1] == store[1] && store[e * kStoreSize + 2] == e;
        if (!whole) {
            const T* from = memory + store[0] * pitch;
            for (int64_t i = 0; i < count; ++i) to[i * width + store[2]] = from[i];
            return 1;
        }
        write_rows(store, width, count, memory, pitch, to);
        return width;
    }

    // Write rows of `width` numbers, given by columns, in squares of four by four. What a square has beyond the end of
    // a row goes to the next row, which is written later; near the end rows are written number by number.
    void write_rows(const int32_t* store, int64_t width, int64_t count, const T* memory, int64_t pitch, T* to) {
        auto column = [&](int64_t e) GNEWT_LAMBDA { return memory + store[min(e, width - 1) * kStoreSize] * pitch; };
        const int64_t last = (width - 1) / 4 * 4, end = count * width;
        int64_t i = 0;
        if (width == 1) return copy(column(0), count, to);
        for (; (i + 3) * width + last + 4 <= end; i += 4)
            for (int64_t e = last; e >= 0; e -= 4) {
                Quad<T> a = load4(column(e) + i), b = load4(column(e + 1) + i), c = load4(column(e + 2) + i),
                        d = load4(column(e + 3) + i);
                transpose<T>(a, b, c, d);
                T* at = to + i * width + e;
                store4(at, a);
                store4(at + width, b);
                store4(at + 2 * width, c);
                store4(at + 3 * width, d);
            }
        for (; i < count; ++i)
            for (int64_t e = 0; e < width; ++e) to[i * width + e] = column(e)[i];
    }

    const LinearizeCall<T>& call_;
    Buffer<T> places_, saved_, commons_, given_;  // given_: multipliers, those that were found among them
};

}  // namespace GNEWT_ISA

}  // namespace gnewt::engine
