// The reverse sweep: λ_v = ∂l/∂x_v + Σ_w (∂Φ_w/∂x_v)ᵀ λ_w, from given Jacobians. It needs the gradient of the losses at
// every slot, and completes it.
#pragma once
#include "local_tables.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// What the sweep reads of a family again and again.
template <class T>
struct Pulled {
    FamilyView shape;
    const T* jacobian;
    bool affine;
};

// Instances one after the other, from the last to the first. at(column, i): the slot of instance i.
template <class T, class At>
GNEWT_INLINE void pull_in_turn(const Pulled<T>& family, int64_t first, int64_t count, T* lam, T* duals, At at) {
    const FamilyView& shape = family.shape;
    const int64_t k = shape.k(), m = shape.m(), width = shape.num_jac();
    const int32_t *ends = shape.ends(), *entries = shape.entries();
    for (int64_t i = first + count - 1; i >= first; --i) {
        const T* row = family.jacobian + i * width;
        for (int64_t o = 0; o < m; ++o) lam[o] = duals[at(shape.out(o), i)];
        for (int64_t a = 0; a < k; ++a) {
            if (ends[a] == ends[a + 1]) continue;
            T total{};
            for (int32_t e = ends[a]; e < ends[a + 1]; ++e) total += row[entries[2 * e]] * lam[entries[2 * e + 1]];
            duals[at(shape.arg(a), i)] += total;
        }
    }
}

// duals[a + i · by] += j[i · width] · duals[o + i · step] for all i; places may repeat only where `by` is zero.
template <class T>
GNEWT_INLINE void pull_strided(int64_t count, const T* j, int64_t width, T* to, int64_t by, const T* lam,
                               int64_t step) {
    if (by == 0) {
        T total{};
        for (int64_t i = 0; i < count; ++i) total += j[i * width] * lam[i * step];
        *to += total;
    } else if (step == 0 && by == 1 && width == 1) {
        const T weight = *lam;
        for (int64_t i = 0; i < count; ++i) to[i] += j[i] * weight;
    } else {
        for (int64_t i = 0; i < count; ++i) to[i * by] += j[i * width] * lam[i * step];
    }
}

// Instances that do not depend on each other: entry by entry of their Jacobians. row(i): the number of instance i.
template <class T, class Row>
GNEWT_INLINE void pull_at_once(const Pulled<T>& family, int64_t first, int64_t count, T* duals, bool in_order,
                               Row row) {
    const FamilyView& shape = family.shape;
    const int64_t width = shape.num_jac();
    const int32_t *ends = shape.ends(), *entries = shape.entries();
    for (int64_t a = 0; a < shape.k(); ++a)
        for (int32_t e = ends[a]; e < ends[a + 1]; ++e) {
            const Column arg = shape.arg(a), out = shape.out(entries[2 * e + 1]);
            const T* j = family.jacobian + entries[2 * e];
            if (in_order && arg.affine() && out.affine())
                pull_strided(count, j + first * width, width, duals + arg.at(first), arg.stride(),
                             duals + out.at(first), out.stride());
            else
                for (int64_t i = 0; i < count; ++i) {
                    const int64_t r = row(i);
                    duals[arg.at(r)] += j[r * width] * duals[out.at(r)];
                }
        }
}

// duals += Jᵀ λ, from the last instance to the first. `lam` holds the multipliers that are given, NaN for those that are
// found by the time that a node is reached.
template <class T>
void pull_given(const int32_t* tables, const T* sources, T* lam, T* duals) {
    const int32_t* items = tables + tables[kItems];
    for (int64_t i = int64_t(tables[kNumItems]) - 1; i >= 0; --i) {
        const int32_t* item = items + i * kItemSize;
        const FamilyView shape(tables, item[0]);
        const int32_t *ends = shape.ends(), *entries = shape.entries();
        const T* jacobian = sources + shape.field[kJacAt];
        for (int64_t r = int64_t(item[1]) + item[2] - 1; r >= item[1]; --r) {
            const int64_t row = item[3] >= 0 ? tables[item[3] + r - item[1]] : r;
            for (int64_t o = 0; o < shape.m(); ++o) {
                const int64_t slot = shape.out(o).at(row);
                const T known = lam[slot];
                lam[slot] = known != known ? duals[slot] : known;
            }
            for (int64_t a = 0; a < shape.k(); ++a) {
                T total{};
                for (int32_t e = ends[a]; e < ends[a + 1]; ++e)
                    total +=
                        jacobian[row * shape.num_jac() + entries[2 * e]] * lam[shape.out(entries[2 * e + 1]).at(row)];
                if (ends[a] < ends[a + 1]) duals[shape.arg(a).at(row)] += total;
            }
        }
    }
}

// False where there is no memory. T: numbers, or vectors of them.
template <class T>
bool sweep_duals(const int32_t* tables, const T* sources, T* duals) {
    const int64_t num_families = tables[kFamilies];
    Buffer<T> lam;
    Buffer<Pulled<T>> families;
    int64_t most = 1;
    if (!families.reserve(num_families)) return false;
    for (int64_t f = 0; f < num_families; ++f) {
        const FamilyView shape(tables, f);
        most = max(most, shape.m());
        families[f] = Pulled<T>{shape, sources + shape.field[kJacAt], !shape.is_loss() && shape.affine()};
    }
    if (!lam.reserve(most)) return false;
    for (int64_t i = tables[kNumItems] - 1; i >= 0; --i) {
        const int32_t* item = tables + tables[kItems] + i * kItemSize;
        const Pulled<T>& family = families[item[0]];
        const int64_t first = item[1], count = item[2];
        if (!family.shape.num_jac()) continue;
        if (item[3] >= 0)
            pull_at_once(family, first, count, duals, false,
                         [rows = tables + item[3]](int64_t j) GNEWT_LAMBDA { return int64_t(rows[j]); });
        else if (item[3] == kAtOnce)
            pull_at_once(family, first, count, duals, true, [first](int64_t j) GNEWT_LAMBDA { return first + j; });
        else if (family.affine)
            pull_in_turn(family, first, count, lam.data(), duals,
                         [](const Column& c, int64_t j) GNEWT_LAMBDA { return c.start() + c.stride() * j; });
        else
            pull_in_turn(family, first, count, lam.data(), duals,
                         [](const Column& c, int64_t j) GNEWT_LAMBDA { return c.at(j); });
    }
    return true;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
