// Runs of stages that follow each other: eliminated one after the other, with the Schur complement staying where it is.
#pragma once
#include "course.hpp"
#include "ldl.hpp"
#include "prefetch.hpp"
#include "stage.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// Whether a row that is not zero has nothing on its diagonal, in a symmetric matrix whose lower triangle is given: nothing would betray noise in it.
template <class T>
inline bool bare_lower(int64_t n, const T* a, int64_t ld) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; a[i * ld + i] == 0 && j < n; ++j)
            if ((j < i ? a[i * ld + j] : a[j * ld + i]) != 0) return true;
    return false;
}

// size[j] = Σ_i weight[i] F[i, j]²: for a definite PP this bounds all that cancels in Fᵀ PP F. And rho = Fᵀv.
template <class T, int VECTORS>
GNEWT_INLINE void sum_sizes(int64_t p, const T* weight, const T* v, const T* f, int64_t ld, T* size, T* rho) {
    Vec<T> sums[VECTORS] = {}, carried[VECTORS] = {};
    for (int64_t i = 0; i < p; ++i, f += ld) {
        const T d = weight[i], x = v[i];
#pragma GCC unroll 4
        for (int k = 0; k < VECTORS; ++k) {
            const Vec<T> y = load(f + k * kWidth<T>);
            sums[k] += (d * y) * y;
            carried[k] += x * y;
        }
    }
    for (int k = 0; k < VECTORS; ++k) store(size + k * kWidth<T>, sums[k]), store(rho + k * kWidth<T>, carried[k]);
}

template <class T>
class Chain {
public:
    explicit Chain(Course<T>& course) : course_(course), call_(course.call), plan_(course.plan), z_(course.z.data()) {}

    // The next fronts that look alike, each the only child of the one behind it, up to the first that is in doubt. Whether there was none.
    // `sum`: room for a message.
    template <class Sizes>
    bool eliminate(const Stage<T, Sizes>& stage, T* __restrict work, T* __restrict sum) {
        const int64_t p = stage.sizes.p, q = stage.sizes.q, n = p + q, ld = stage.width(), at = stage.states(), ldp = padded<T>(p);
        constexpr bool early = Sizes::small;  // a small stage is loaded while the one before it waits for pivots
        T *f = work, *h = f + p * ld, *next_f = early ? h + q * ld : f, *next_h = next_f + p * ld, *w = next_h + q * ld;
        T *r = w + p * ld, *rho = r + n * ld + kWidth<T>, *size = rho + ld, *y = size + ld;
        Message& message = course_.waiting[course_.num_waiting - 1];
        T *before = course_.stack.data() + message.at, *weight_before = before + p * ldp, *v = weight_before + ldp, *__restrict factor = course_.factor;
        T *pp = sum, *weight = sum + p * ldp;
        std::memset(work, 0, size_t(w - work) * sizeof(T));  // columns that fill up vectors are computed with, too
        fill_triangle(p, before, 1, ldp);
        int32_t k = course_.next;
        const int32_t *fronts = plan_.data + plan_.data[kFrontsAt] + 4 * int64_t(k), kind = fronts[0], num_fronts = plan_.num_fronts();
        const int32_t *all_slots = plan_.data + plan_.data[kSlotsAt], *all_starts = plan_.data + plan_.data[kSourcesAt];
        const Shape shape = plan_.front(k).shape;
        const Ahead<T> ahead(shape, 0, shape.num_blocks, all_starts + fronts[2]);
        const bool split = stage.apart() && q <= kBlock;
        const int64_t reach[2] = {ahead.in_steps(0, steps_of_multiply_symmetric<T>(p, split ? at : ld)),
                                  ahead.in_steps(1, steps_of_multiply_symmetric<T>(p, ld - at))};
        if (early) {
            stage.load_jacobian(call_.sources, all_starts + fronts[2], f);
            stage.load_inputs(call_.sources, all_starts + fronts[2], h);
        }
        bool good = true;
        for (; k < num_fronts && fronts[0] == kind; ++k, fronts += 4, factor += q * n) {
            const bool more = k + 1 < num_fronts && fronts[4] == kind;
            const int32_t *slots = all_slots + fronts[1] + p, *starts = all_starts + fronts[2], *next = all_starts + fronts[more ? 6 : 2];
            if (!Sizes::small) ask_for<true>(factor + q * n, more ? q * n : 0);
            stage.add_pairs(call_.sources, starts, before, weight_before, pp, weight);
            bool definite = true, all = true;
            for (int64_t i = 0; i < p; ++i) {
                const T d = pp[i * ldp + i];
                definite &= d > 0;
                all &= kept(d, weight[i]);
            }
            for (int64_t i = 0; all && i < p; ++i) weight[i] = abs(pp[i * (ldp + 1)]);
            if (!all) {
                fill_triangle(p, pp, ldp, 1);
                course_.lost = !renew_weights(p, pp, ldp, weight);
            }
            good = !course_.lost && (definite || !bare_lower(p, pp, ldp));
            if (!good) break;
            bool carried = false;
            if constexpr (!early) {
                carried = stage.has_room(call_.sources_len, starts);
                if (carried)
                    stage.carry_jacobian(call_.sources, starts, weight, v, f, size, rho);
                else
                    stage.load_jacobian(call_.sources, starts, f);
            }
            if (!carried)
                over_columns<T, 3>(ld, [&](int64_t j, const auto width) GNEWT_LAMBDA {
                    sum_sizes<T, int(decltype(width)::value)>(p, weight, v, f + j, ld, size + j, rho + j);
                });
            if (!early) stage.load_inputs(call_.sources, starts, h);
            stage.add_magnitudes(call_.sources, starts, size);
            for (int64_t i = 0; i < q; ++i) {
                h[i * ld + i] += call_.shift;
                size[i] += abs(call_.shift);
                rho[i] += call_.rhs[slots[i]];
            }
            const Rows<T> rows{r, ld, n, rho, 1, size, factor, y, at - q};
            const auto load_next = [&]() GNEWT_LAMBDA {
                if (!early) return;
                stage.load_jacobian(call_.sources, next, next_f);
                stage.load_inputs(call_.sources, next, next_h);
            };
            // W = PP·F in the columns [first, last); where PP is not definite, the terms of FᵀW count as well. Meanwhile the next stage's sources are asked for.
            const auto multiply_pairs = [&](int64_t first, int64_t last, int range) GNEWT_LAMBDA {
                multiply_symmetric<T, Sizes::small>(p, pp, ldp, last - first, f + first, ld, w + first, ld, {ahead.begin(call_.sources, next, range), reach[range]});
                if (definite) return;
                for (int64_t i = 0; i < p * ld; i += ld)
                    for (int64_t j = first; j < last; ++j) size[j] += abs(f[i + j] * w[i + j]);
            };
            // Generic, so that only what is called is compiled.
            const auto eliminate_apart = [&](auto) GNEWT_LAMBDA {
                multiply_pairs(0, at, 0);
                multiply<T, kAdd, Sizes::small>(p, 0, q, kUpper, at, f, ld, w, ld, h, ld, r, ld);
                return eliminate_stage<T, Sizes::known, Sizes::small>(rows, q, {p, f, w, h, ld}, before, ldp, course_.tally, [&]() GNEWT_LAMBDA {
                    multiply_pairs(at, ld, 1);
                    if (!Sizes::small) ahead.ask(call_.sources, next, 2);
                    load_next();
                });
            };
            const auto eliminate_joined = [&](auto) GNEWT_LAMBDA {
                multiply_pairs(0, ld, 0);
                if (!Sizes::small) ahead.ask(call_.sources, next, 1);
                multiply<T, kAdd, Sizes::small>(p, 0, q, kUpper, ld, f, ld, w, ld, h, ld, r, ld);
                return eliminate_rows<T, Sizes::known, Sizes::small>(rows, q, kLower, before, ldp, course_.tally, [&]() GNEWT_LAMBDA {
                    T* rest = r + q * ld + at;
                    if (ld == kWidth<T>)  // with the columns before q: what was just stored as one vector is loaded as one
                        multiply<T, kSet, Sizes::small>(p, q, n, kLower, n, f, ld, w, ld, r, ld, r, ld);
                    else
                        multiply<T, kSet, Sizes::small>(p, 0, p, kLower, p, f + at, ld, w + at, ld, rest, ld, rest, ld);
                    load_next();
                });
            };
            if constexpr (known_apart<T>(Sizes{}) < 0)
                good = split ? eliminate_apart(0) : eliminate_joined(0);
            else if constexpr (known_apart<T>(Sizes{}))
                good = eliminate_apart(0);
            else
                good = eliminate_joined(0);
            if (!good) {
                course_.lost = lost_row(rows, q);
                break;
            }
            if (early) swap(f, next_f), swap(h, next_h);
            for (int64_t i = 0; i < q; ++i) z_[slots[i]] = y[i];
            for (int64_t i = 0; i < p; ++i) weight_before[i] = max(size[at + i], abs(before[i * (ldp + 1)])), v[i] = rho[at + i];
        }
        fill_triangle(p, before, ldp, 1);
        if (k > course_.next) message = {message.at, message.end, k - 1};
        course_.next = k;
        course_.factor = factor;
        return good;
    }

    // ... and back, from `last` to the first that looks like it and has no record; the front before that is returned. What one hands to the
    // next need not go through the slots. `factor` is behind that of the last.
    template <class Sizes>
    int32_t descend(const Stage<T, Sizes>& stage, int32_t last, int32_t record, const T*& factor, T* __restrict work) {
        const int64_t p = stage.sizes.p, q = stage.sizes.q, n = p + q;
        T *x = work, *next = x + padded<T>(p) + 8, *u = next + padded<T>(p) + 8;
        const Front top = plan_.front(last);
        for (int64_t i = 0; i < p; ++i) x[i] = z_[top.slots[n + i]];
        const int32_t *fronts = plan_.data + plan_.data[kFrontsAt] + 4 * int64_t(last), shape = fronts[0];
        const int32_t *all_slots = plan_.data + plan_.data[kSlotsAt], *all_starts = plan_.data + plan_.data[kSourcesAt], *slots = nullptr;
        const Ahead<T> ahead(top.shape, 0, 2, all_starts + fronts[2]);  // of the sources, F alone is read
        int32_t k = last;
        for (; k > record && fronts[0] == shape; --k, fronts -= 4) {
            slots = all_slots + fronts[1];
            factor -= q * n;
            if (!Sizes::small && k - record > kDistance && fronts[-4 * kDistance] == shape) {
                ahead.ask(call_.sources, all_starts + fronts[2 - 4 * kDistance]);
                ask_for<false>(factor - kDistance * q * n, q * n);
            }
            stage.descend(call_.sources, all_starts + fronts[2], factor, slots + p, z_, x, u, next);
            swap(x, next);
        }
        for (int64_t i = 0; i < p; ++i) z_[slots[i]] = x[i];
        return k;
    }

private:
    static constexpr int32_t kDistance = 4;  // a stage is left behind sooner than memory answers

    // One triangle from the other; (i, j) with i > j is at i·row + j·col of that which is given.
    static void fill_triangle(int64_t n, T* a, int64_t row, int64_t col) {
        for (int64_t i = 0; i < n; ++i)
            for (int64_t j = 0; j < i; ++j) a[j * row + i * col] = a[i * row + j * col];
    }

    Course<T>& course_;
    const Call<T>& call_;
    const PlanView& plan_;
    T* z_;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
