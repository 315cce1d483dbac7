// Runs of stages that follow each other: eliminated one after the other, with the Schur complement staying where it is.
#pragma once
#include "course.hpp"
#include "prefetch.hpp"
#include "stage.hpp"
#include "stage_ldl.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// The sums over F (see Sums) in all of its columns.
template <class T>
GNEWT_INLINE
void sum_columns(int64_t rows, int64_t cols, const T* weight, const T* v, const Strided<T>& f, T* size, T* rho) {
    over_columns<T, 3>(cols, [&](int64_t j, const auto width) GNEWT_LAMBDA {
        Sums<T, int(decltype(width)::value)> sums;
        sums.add(rows, weight, v, f.at + j, f.step);
        sums.put(size + j, rho + j);
    });
}

template <class T>
class Chain {
public:
    explicit Chain(Course<T>& course) : course_(course), call_(course.call), plan_(course.plan), z_(course.z.data()) {}

    // The next fronts that look alike, each the only child of the one behind it, up to the first that is in doubt. Whether there was none.
    // `sum`: room for a message.
    template <class Sizes>
    bool eliminate(const Stage<T, Sizes>& stage, T* __restrict work, T* __restrict sum) {
        const int64_t p = stage.sizes.p, q = stage.sizes.q, n = p + q, ld = stage.width(), at = stage.states(),
                      ldp = padded<T>(p);
        constexpr bool early = Sizes::small;  // a small stage is loaded while the one before it waits for pivots
        constexpr bool late = !early && Sizes::known > 2 &&
                              known_apart<T>(Sizes{}) > 0;  // sums are taken while this one waits for pivots
        T *f = work, *h = f + p * ld, *next_f = early ? h + q * ld : f, *next_h = next_f + p * ld, *w = next_h + q * ld;
        T *r = w + p * ld, *rho = r + n * ld + kWidth<T>, *size = rho + ld, *y = size + ld, *g = y + ld;
        Message& message = course_.waiting[course_.num_waiting - 1];
        T *before = course_.stack.data() + message.at, *weight_before = before + p * ldp,
          *v = weight_before + ldp, *__restrict factor = course_.factor;
        T *pp = sum, *weight = sum + p * ldp, *diag = weight + ldp + 4;
        std::memset(work, 0, size_t(w - work) * sizeof(T));  // columns that fill up vectors are computed with, too
        fill_triangle(p, before, 1, ldp);
        int32_t k = course_.next;
        const int32_t *fronts = plan_.data + plan_.data[kFrontsAt] + 4 * int64_t(k), kind = fronts[0],
                      num_fronts = plan_.num_fronts();
        const int32_t *all_slots = plan_.data + plan_.data[kSlotsAt], *all_starts = plan_.data + plan_.data[kSourcesAt];
        const Shape shape = plan_.front(k).shape;
        const Ahead<T> ahead(shape, 0, shape.num_blocks, all_starts + fronts[2]);
        const bool split = stage.apart() && q <= kBlock;
        const int64_t reach[2] = {
            ahead.in_steps(0, split ? steps_of_multiply<T>(p, q, p) : steps_of_multiply<T>(p, p, ld)),
            ahead.in_steps(1, steps_of_multiply<T>(p, p, ld - at))};
        const auto load_inputs = [&](const int32_t* starts, T* to) GNEWT_LAMBDA {
            if (split)
                stage.template load_inputs<true>(call_.sources, starts, to);
            else
                stage.template load_inputs<false>(call_.sources, starts, to);
        };
        if (early) {
            stage.load_jacobian(call_.sources, all_starts + fronts[2], f);
            load_inputs(all_starts + fronts[2], h);
        }
        bool good = true;
        for (; k < num_fronts && fronts[0] == kind; ++k, fronts += 4, factor += q * n) {
            const bool more = k + 1 < num_fronts && fronts[4] == kind;
            const int32_t *slots = all_slots + fronts[1] + p, *starts = all_starts + fronts[2],
                          *next = all_starts + fronts[more ? 6 : 2];
            if (!Sizes::small) ask_for<true>(factor + q * n, more ? q * n : 0);
            stage.add_pairs(call_.sources, starts, before, weight_before, pp, diag, weight);
            auto above = Quad<T>{} == 0, large = above;
            for (int64_t i = 0; i < p; i += 4) {
                const Quad<T> d = load4(diag + i), magnitude = abs4<T>(d);
                above &= d > 0;
                large &= magnitude >= T(kDoubtful) * load4(weight + i);
                store4(diag + i, magnitude);
            }
            const bool definite = all4(above), all = all4(large);
            if (all)
                swap(weight, diag);
            else
                course_.lost = !renew_weights(p, pp, ldp, weight);
            good = !course_.lost && (definite || !bare_row(p, pp, ldp));
            if (!good) break;
            // Where the sources are laid out well they are read in place.
            Strided<T> f_u{f, ld}, f_x{f + at, ld}, h_u{h, ld}, h_x{h + at, ld};
            const bool in_place = !early && split && stage.in_place(call_.sources_len, starts);
            if (in_place) {
                f_u = stage.rows_of(stage.on_inputs, call_.sources, starts),
                f_x = stage.rows_of(stage.on_states, call_.sources, starts);
                h_u = stage.rows_of(stage.inputs[0], call_.sources, starts),
                h_x = stage.rows_of(stage.cross[0], call_.sources, starts);
            } else if (!early) {
                load_inputs(starts, h);
            }
            // What goes into the diagonal and the right-hand sides, but for the terms of FᵀW.
            const auto sum_inputs = [&]() GNEWT_LAMBDA { sum_columns<T>(p, at, weight, v, f_u, size, rho); };
            const auto sum_states = [&]() GNEWT_LAMBDA {
                sum_columns<T>(p, ld - at, weight, v, f_x, size + at, rho + at);
            };
            const auto add_given = [&]() GNEWT_LAMBDA {
                stage.add_magnitudes(call_.sources, starts, abs(call_.shift), size);
                for (int64_t i = 0; i < q; ++i) rho[i] += call_.rhs[slots[i]];
            };
            if constexpr (late) {
                if (!in_place) stage.load_jacobian(call_.sources, starts, f);
            } else {
                if (in_place) {
                    sum_inputs();
                    sum_states();
                } else if (!early && stage.has_room(call_.sources_len, starts)) {
                    stage.carry_jacobian(call_.sources, starts, weight, v, f, size, rho);
                } else {
                    if (!early) stage.load_jacobian(call_.sources, starts, f);
                    sum_columns<T>(p, ld, weight, v, f_u, size, rho);
                }
                add_given();
            }
            const Rows<T> rows{r, ld, n, rho, 1, size, factor, y, at - q};
            const auto load_next = [&]() GNEWT_LAMBDA {
                if (!early) return;
                stage.load_jacobian(call_.sources, next, next_f);
                load_inputs(next, next_h);
            };
            // W = PP·F in the columns [first, last), which are those of `from`. Meanwhile the next stage's sources are asked for.
            const auto multiply_pairs = [&](const Strided<T>& from, int64_t first, int64_t last,
                                            int range) GNEWT_LAMBDA {
                const Asking ask{ahead.begin(call_.sources, next, range), reach[range]};
                multiply_asking<T, Sizes::small>(p, p, last - first, pp, ldp, from.at, from.step, w + first, ld, ask);
            };
            // Where PP is not definite, the terms of FᵀW count as well.
            const auto add_terms = [&](const Strided<T>& from, int64_t first, int64_t last) GNEWT_LAMBDA {
                if (definite) return;
                for (int64_t i = 0; i < p; ++i)
                    for (int64_t j = first; j < last; ++j) size[j] += abs(from.row(i)[j - first] * w[i * ld + j]);
            };
            // Generic, so that only what is called is compiled.
            const auto eliminate_apart = [&](auto) GNEWT_LAMBDA {
                // G = F_uᵀ·PP
                multiply_asking<T, Sizes::small>(p, q, p, f_u.at, f_u.step, pp, ldp, g, ldp,
                                                 {ahead.begin(call_.sources, next, 0), reach[0]});
                const Product<T> block{p, g, ldp, f_u, h_u}, beside{p, g, ldp, f_x, h_x, at};
                const auto between = [&](const auto number) GNEWT_LAMBDA {
                    constexpr int64_t done = decltype(number)::value;
                    if constexpr (late && done == 0) sum_inputs();
                    if constexpr (late && done == 2) sum_states(), add_given();
                };
                const auto meanwhile = [&]() GNEWT_LAMBDA {
                    multiply_pairs(f_x, at, ld, 1);
                    add_terms(f_x, at, at + p);
                    for (int64_t i = 0; !definite && i < p; ++i)
                        for (int64_t j = 0; j < q; ++j) size[j] += abs(f_u.row(i)[j] * g[j * ldp + i]);
                    if (!Sizes::small) ahead.ask(call_.sources, next, 2);
                    load_next();
                };
                return eliminate_stage<T, Sizes::known, Sizes::small>(rows, q, block, call_.shift, beside, f_x, w + at,
                                                                      ld, before, ldp, course_.tally, between,
                                                                      meanwhile);
            };
            const auto eliminate_joined = [&](auto) GNEWT_LAMBDA {
                for (int64_t i = 0; i < q; ++i) h[i * ld + i] += call_.shift;
                multiply_pairs(f_u, 0, ld, 0);
                add_terms(f_u, 0, ld);
                if (!Sizes::small) ahead.ask(call_.sources, next, 1);
                multiply<T, kAdd, Sizes::small>(p, 0, q, kUpper, ld, f, ld, w, ld, h, ld, r, ld);
                return eliminate_rows<T, Sizes::known,
                                      Sizes::small>(rows, q, kLower, before, ldp, course_.tally, [&]() GNEWT_LAMBDA {
                    T* rest = r + q * ld + at;
                    if (ld ==
                        kWidth<T>)  // with the columns before q: what was just stored as one vector is loaded as one
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
            int64_t i = 0;
            for (; i + 4 <= p; i += 4) {
                const T* d = before + i * (ldp + 1);
                const Quad<T> left = diagonal<T>(load4(d), load4(d + ldp), load4(d + 2 * ldp), load4(d + 3 * ldp));
                store4(weight_before + i, max4<T>(load4(size + at + i), abs4<T>(left)));
                store4(v + i, load4(rho + at + i));
            }
            for (; i < p; ++i) weight_before[i] = max(size[at + i], abs(before[i * (ldp + 1)])), v[i] = rho[at + i];
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
        const int32_t *all_slots = plan_.data + plan_.data[kSlotsAt], *all_starts = plan_.data + plan_.data[kSourcesAt],
                      *slots = nullptr;
        int32_t k = last;
        for (; k > record && fronts[0] == shape; --k, fronts -= 4) {
            slots = all_slots + fronts[1];
            factor -= q * n;
            stage.descend(call_.sources, all_starts + fronts[2], factor, slots + p, z_, x, u, next);
            swap(x, next);
        }
        for (int64_t i = 0; i < p; ++i) z_[slots[i]] = x[i];
        return k;
    }

private:
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
