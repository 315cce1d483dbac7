// Runs of stages that follow each other: eliminated one after the other, with the Schur complement staying where it is.
#pragma once
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
    Chain(const Call<T>& call, Tally& tally, T* z) : call_(call), plan_{call.plan}, tally_(tally), z_(z) {}

    // The fronts [begin, end), each the only child of the next. `message` is what the one before them passed on (messages.hpp), and then what they pass on.
    template <class Sizes>
    bool eliminate(const Stage<T, Sizes>& stage, int32_t begin, int32_t end, T* __restrict factor, T* __restrict message, T* __restrict work) {
        const int64_t p = stage.sizes.p, q = stage.sizes.q, n = p + q, ld = padded<T>(n), ldp = padded<T>(p);
        constexpr bool early = Sizes::small;  // a small stage is loaded while the one before it waits for pivots
        T *f = work, *h = f + p * ld, *next_f = early ? h + q * ld : f, *next_h = next_f + p * ld, *w = next_h + q * ld;
        T *r = w + p * ld, *rho = r + n * ld + kWidth<T>, *size = rho + ld, *y = size + ld;
        T *pp = message, *weight = pp + p * ldp, *v = weight + ldp;
        std::memset(work, 0, size_t(w - work) * sizeof(T));  // columns that fill up vectors are computed with, too
        transpose_triangle(p, pp, ldp);
        const int32_t* fronts = plan_.data + plan_.data[kFrontsAt] + 4 * int64_t(begin);
        const int32_t *all_slots = plan_.data + plan_.data[kSlotsAt], *all_starts = plan_.data + plan_.data[kSourcesAt];
        const Shape shape = plan_.front(begin).shape;
        const Ahead<T> ahead(shape, 0, shape.num_blocks, all_starts + fronts[2]);
        if (early) {
            stage.load_jacobian(call_.sources, all_starts + fronts[2], f);
            stage.load_inputs(call_.sources, all_starts + fronts[2], h);
        }
        for (int32_t k = begin; k < end; ++k, fronts += 4, factor += q * n) {
            const int32_t *slots = all_slots + fronts[1] + p, *starts = all_starts + fronts[2];
            const int32_t* next = all_starts + fronts[k + 1 < end ? 6 : 2];
            const auto ask = [&](int64_t part) GNEWT_LAMBDA {
                if (!Sizes::small) ahead.ask(call_.sources, next, part, 4);
            };
            ask(0);
            if (!Sizes::small) ask_to_write(factor + q * n, k + 1 < end ? q * n : 0);
            stage.add_pairs(call_.sources, starts, pp, weight);
            bool definite = true, good = true;
            for (int64_t i = 0; i < p; ++i) {
                const T d = pp[i * ldp + i];
                definite &= d > 0;
                good &= kept(d, weight[i]);
                weight[i] = abs(d);
            }
            if (!good || (!definite && bare_lower(p, pp, ldp))) return false;
            if (!early) stage.load_jacobian(call_.sources, starts, f);
            ask(1);
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
            multiply_symmetric<T, Sizes::small>(p, pp, ldp, n, f, ld, w, ld);
            ask(2);
            if (!definite)  // else the terms of FᵀW count as well
                for (int64_t i = 0; i < p * ld; i += ld)
                    for (int64_t j = 0; j < n; ++j) size[j] += abs(f[i + j] * w[i + j]);
            multiply<T, kAdd, Sizes::small>(p, 0, q, kUpper, n, f, ld, w, ld, h, ld, r, ld);
            ask(3);
            good = eliminate_rows<T, Sizes::known, Sizes::small>({r, ld, n, rho, 1, size, factor, y}, q, kLower, pp, ldp, tally_, [&]() GNEWT_LAMBDA {
                T* rest = r + q * (ld + 1);
                if (ld == kWidth<T>)  // with the columns before q: what was just stored as one vector is loaded as one
                    multiply<T, kSet, Sizes::small>(p, q, n, kLower, n, f, ld, w, ld, r, ld, r, ld);
                else
                    multiply<T, kSet, Sizes::small>(p, 0, p, kLower, p, f + q, ld, w + q, ld, rest, ld, rest, ld);
                if (!early) return;
                stage.load_jacobian(call_.sources, next, next_f);
                stage.load_inputs(call_.sources, next, next_h);
            });
            if (!good) return false;
            if (early) swap(f, next_f), swap(h, next_h);
            for (int64_t i = 0; i < q; ++i) z_[slots[i]] = y[i];
            for (int64_t i = 0; i < p; ++i) weight[i] = max(size[q + i], abs(pp[i * (ldp + 1)])), v[i] = rho[q + i];
        }
        for (int64_t i = 0; i < p; ++i)
            for (int64_t j = 0; j < i; ++j) pp[j * ldp + i] = pp[i * ldp + j];
        return true;
    }

    // ... and back, from the last to the first: what one hands to the next need not go through the slots. `factor` is behind that of the last.
    template <class Sizes>
    void descend(const Stage<T, Sizes>& stage, int32_t first, int32_t last, const T* factor, T* __restrict work) {
        const int64_t p = stage.sizes.p, q = stage.sizes.q, n = p + q;
        T *z = work, *next = work + n + 8;
        const Front top = plan_.front(last);
        for (int64_t i = 0; i < p; ++i) z[q + i] = z_[top.slots[n + i]];
        const int32_t* fronts = plan_.data + plan_.data[kFrontsAt] + 4 * int64_t(last);
        const int32_t *all_slots = plan_.data + plan_.data[kSlotsAt], *all_starts = plan_.data + plan_.data[kSourcesAt], *slots = nullptr;
        const Ahead<T> ahead(top.shape, 0, 2, all_starts + fronts[2]);  // of the sources, F alone is read
        for (int32_t k = last; k >= first; --k, fronts -= 4) {
            slots = all_slots + fronts[1];
            factor -= q * n;
            if (!Sizes::small && k - first >= kDistance) {
                ahead.ask(call_.sources, all_starts + fronts[2 - 4 * kDistance], 0, 1);
                ask_for(factor - kDistance * q * n, q * n);
            }
            for (int64_t i = 0; i < q; ++i) z[i] = z_[slots[p + i]];
            stage.descend(call_.sources, all_starts + fronts[2], factor, z, next);
            for (int64_t i = 0; i < q; ++i) z_[slots[p + i]] = z[i];
            for (int64_t i = 0; i < p; ++i) z[q + i] = next[i];
        }
        for (int64_t i = 0; i < p; ++i) z_[slots[i]] = z[q + i];
    }

private:
    static constexpr int32_t kDistance = 4;  // a stage is left behind sooner than memory answers

    // The lower triangle from the upper.
    static void transpose_triangle(int64_t n, T* a, int64_t ld) {
        for (int64_t i = 0; i < n; ++i)
            for (int64_t j = 0; j < i; ++j) a[i * ld + j] = a[j * ld + i];
    }

    const Call<T>& call_;
    PlanView plan_;
    Tally& tally_;
    T* z_;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
