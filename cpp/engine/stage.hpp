// Stages of a chain: a front that follows another just like it. Sizes may be compiled in, for there loops and look-ups cost more than arithmetic.
#pragma once
#include "blocks.hpp"
#include "gemm.hpp"
#include "solve.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// The sizes of a stage, known to the compiler or not.
template <int P, int Q>
struct Fixed {
    static constexpr int64_t p = P, q = Q;
    static constexpr int known = Q;         // rows to eliminate, if known
    static constexpr bool small = P <= 6;  // products of larger matrices are better left in loops
};
struct Any {
    int64_t p, q;
    static constexpr int known = 0;
    static constexpr bool small = false;
};

// Whether states can begin with a vector without taking more vectors, where that is known to the compiler; else -1.
template <class T, int P, int Q>
constexpr int known_apart(Fixed<P, Q>) {
    return padded<T>(Q) + padded<T>(P) == padded<T>(P + Q);
}
template <class T>
constexpr int known_apart(Any) {
    return -1;
}

// A front whose only child's separator is its p pairs, with q inputs and a separator of p slots, as the stages of an optimal control problem
// are: dense Jacobians, and Hessians that are whole packed triangles, of which there may be several.
template <class T, class Sizes>
struct Stage {
    static constexpr int kMost = 4;
    Sizes sizes;

    // Columns of F and R are [u | x]. States begin with a vector where that takes no more vectors.
    int64_t width() const { return padded<T>(sizes.p + sizes.q); }
    int64_t states() const { return apart() ? padded<T>(sizes.q) : sizes.q; }
    bool apart() const { return padded<T>(sizes.q) + padded<T>(sizes.p) == width(); }

    // Where a block begins (its number among those of the front), and how its rows follow each other.
    struct Part {
        int32_t block;
        int64_t step, dstep;
        int64_t row(int64_t i) const { return i * step + dstep * i * (i - 1) / 2; }
    };
    Part on_inputs, on_states;  // F = [F_u | F_x]
    int32_t num_pairs = 0, num_cross = 0, num_inputs = 0;
    Part pairs[kMost], cross[kMost], inputs[kMost];

    // Whether a shape is such a front. `blocks` are not looked at again.
    bool matches(const Shape& s) {
        constexpr int32_t wanted = kChildIsPairs | kDenseJacobian;
        const int64_t p = sizes.p, q = sizes.q;
        if (s.p != p || s.q != q || s.b != p || (s.flags & (wanted | kCross | kNested)) != wanted || !s.num_set) return false;
        bool all = true, f[2] = {false, false};
        for (int32_t k = 0; k < s.num_blocks && all; ++k) {
            const Block& b = s.blocks[k];
            const Part part{k, b.step, b.dstep};
            const bool whole = b.row == 0 && b.dlen == 0 && (!b.transposed || b.rows == 1);
            const bool triangle = b.row == b.col && b.row == 0 && (b.rows == 1 ? b.len == 1 : b.transposed && b.len == 1 && b.dlen == 1);
            if (b.kind == kF && whole && !b.transposed && b.rows == p && b.len == q && b.col == 0)
                on_inputs = part, f[0] = true;
            else if (b.kind == kF && whole && !b.transposed && b.rows == p && b.len == p && b.col == q)
                on_states = part, f[1] = true;
            else if (b.kind == kPP && triangle && b.rows == p && (p == 1 || (b.step > 0 && b.dstep > 0)) && num_pairs < kMost)
                pairs[num_pairs++] = part;
            else if (b.kind == kR && whole && !b.transposed && b.rows == q && b.len == p && b.col == q && num_cross < kMost)
                cross[num_cross++] = part;
            else if (b.kind == kR && triangle && b.rows == q && num_inputs < kMost)
                inputs[num_inputs++] = part;
            else
                all = false;
        }
        return all && f[0] && f[1] && num_cross && num_inputs;
    }

    GNEWT_INLINE void load_jacobian(const T* sources, const int32_t* starts, T* __restrict f) const {
        const int64_t p = sizes.p, q = sizes.q, ld = width();
        put_rows<false>(sources, starts, on_inputs, p, q, f, ld);
        put_rows<false>(sources, starts, on_states, p, p, f + states(), ld);
    }

    // Whether F may be read by whole vectors, as carry_jacobian does.
    GNEWT_INLINE bool has_room(int64_t num_sources, const int32_t* starts) const {
        const int64_t p = sizes.p, q = sizes.q;
        const auto end = [&](const Part& part, int64_t len) GNEWT_LAMBDA { return starts[part.block] + (p - 1) * part.step + padded<T>(len); };
        return apart() && on_inputs.dstep == 0 && on_states.dstep == 0 && end(on_inputs, q) <= num_sources && end(on_states, p) <= num_sources;
    }

    // The same, and size[j] = Σ_i weight[i] F[i, j]²: for a definite PP this bounds all that cancels in Fᵀ PP F. And rho = Fᵀv.
    GNEWT_INLINE void carry_jacobian(const T* sources, const int32_t* starts, const T* weight, const T* v, T* __restrict f, T* __restrict size,
                                     T* __restrict rho) const {
        const int64_t p = sizes.p, q = sizes.q;
        const auto carry = [&](const Part& part, int64_t len, int64_t at) GNEWT_LAMBDA {
            const auto mask = first_lanes<T>(len - floor_to_vector<T>(len - 1));
            const int64_t cols = padded<T>(len);
            over_columns<T, 4>(cols, [&](int64_t j, const auto width) GNEWT_LAMBDA {
                constexpr int vectors = int(decltype(width)::value);
                carry_strip<vectors>(sources + starts[part.block] + j, part.step, j + vectors * kWidth<T> == cols, mask, weight, v, f + at + j, size + at + j, rho + at + j);
            });
        };
        carry(on_inputs, q, 0);
        carry(on_states, p, states());
    }

    // What sources bring to the first q rows of R ...
    GNEWT_INLINE void load_inputs(const T* sources, const int32_t* starts, T* __restrict h) const {
        const int64_t p = sizes.p, q = sizes.q, ld = width();
        put_inputs<false>(sources + starts[inputs[0].block], inputs[0], h, ld);
        for (int32_t k = 1; k < num_inputs; ++k) put_inputs<true>(sources + starts[inputs[k].block], inputs[k], h, ld);
        put_rows<false>(sources, starts, cross[0], q, p, h + states(), ld);
        for (int32_t k = 1; k < num_cross; ++k) put_rows<true>(sources, starts, cross[k], q, p, h + states(), ld);
    }

    // ... and the magnitudes on their diagonal.
    GNEWT_INLINE void add_magnitudes(const T* sources, const int32_t* starts, T* __restrict size) const {
        for (int32_t k = 0; k < num_inputs; ++k) {
            const T* row = sources + starts[inputs[k].block];
            for (int64_t i = 0, step = inputs[k].step; i < sizes.q; ++i, row += step, step += inputs[k].dstep) size[i] += abs(row[i]);
        }
    }

    // The lower triangle of PP, `pp` and what sources add to it, and the magnitudes that went into its diagonal.
    GNEWT_INLINE void add_pairs(const T* sources, const int32_t* starts, const T* pp, const T* weight, T* __restrict sum, T* __restrict sizes_of) const {
        const int64_t p = sizes.p, ldp = padded<T>(p);
        if (num_pairs == 0) {
            std::memcpy(sum, pp, size_t(p * ldp) * sizeof(T));
            std::memcpy(sizes_of, weight, size_t(p) * sizeof(T));
        }
        for (int32_t k = 0; k < num_pairs; ++k, pp = sum, weight = sizes_of) {
            const T* row = sources + starts[pairs[k].block];
            int64_t step = pairs[k].step, dstep = pairs[k].dstep, i = 0;
            // What lies behind a row lands above the diagonal, where nothing counts; behind the last there may be nothing.
            for (; i + 4 <= p; i += 4) {
                const T *a = row, *b = a + step, *c = b + step + dstep, *d = c + step + 2 * dstep, *from = pp + i * ldp;
                T* to = sum + i * ldp;
                for (int64_t j = 0; j <= i; j += 4, from += 4, to += 4) {
                    store4(to, load4(from) + load4(a + j));
                    store4(to + ldp, load4(from + ldp) + load4(b + j));
                    store4(to + 2 * ldp, load4(from + 2 * ldp) + load4(c + j));
                    store4(to + 3 * ldp, load4(from + 3 * ldp) + load4(d + j));
                }
                sizes_of[i] = weight[i] + abs(a[i]), sizes_of[i + 1] = weight[i + 1] + abs(b[i + 1]);
                sizes_of[i + 2] = weight[i + 2] + abs(c[i + 2]), sizes_of[i + 3] = weight[i + 3] + abs(d[i + 3]);
                row = d + step + 3 * dstep;
                step += 4 * dstep;
            }
            for (; i < p; row += step, step += dstep, ++i) {
                put_sum(pp + i * ldp, row, i + 1, sum + i * ldp);
                sizes_of[i] = weight[i] + abs(row[i]);
            }
        }
    }

    // The inputs, whose right-hand sides are at `slots` of z, by their rows of L, given the states x; and the pairs, `next` = F [u; x].
    GNEWT_INLINE void descend(const T* sources, const int32_t* starts, const T* l, const int32_t* slots, T* __restrict z, const T* x, T* __restrict u,
                              T* __restrict next) const {
        const int64_t p = sizes.p, q = sizes.q;
        const T *fu = sources + starts[on_inputs.block], *fx = sources + starts[on_states.block];
        const bool even = on_states.dstep == 0 && on_inputs.dstep == 0;
        if (even && q <= kFew) {
            if constexpr (Sizes::known > 0)
                descend_few<Sizes::known>(fu, fx, l, slots, z, x, next);
            else
                with_rows<kFew>(q, [&](const auto m) GNEWT_LAMBDA { descend_few_call<int(decltype(m)::value)>(fu, fx, l, slots, z, x, next); });
            return;
        }
        gather(u, z, slots, q, 1);
        rows_times<T, kSubtract>(q, p, l + q, p + q, x, u);
        back_substitute_rows(q, q, l, p + q, u);
        scatter(u, z, slots, q, 1);
        if (even) {
            rows_times<T, kSet>(p, p, fx, on_states.step, x, next);
            rows_times<T, kAdd>(p, q, fu, on_inputs.step, u, next);
        } else {
            for (int64_t i = 0; i < p; ++i) next[i] = dot(fx + on_states.row(i), x, p) + dot(fu + on_inputs.row(i), u, q);
        }
    }

private:
    static constexpr int kFew = 8;

    template <int M>
    GNEWT_INLINE void descend_few(const T* fu, const T* fx, const T* l, const int32_t* slots, T* __restrict z, const T* x, T* __restrict next) const {
        const int64_t p = sizes.p, su = on_inputs.step, sx = on_states.step;
        T u[M];
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) u[k] = z[slots[k]];
        back_substitute_few<T, M>(p + M, l, x, u);
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) z[slots[k]] = u[k];
        for (int64_t i = 0; i < p; i += 4, fx += 4 * sx, fu += 4 * su) {
            const int64_t second = p > i + 1, third = p > i + 2 ? 2 : 0, fourth = p > i + 3 ? 3 : 0;  // rows that are not there: the first
            FourSums<T> sums;
            sums.add(p, fx, fx + second * sx, fx + third * sx, fx + fourth * sx, x);
            const T *a = fu, *b = fu + second * su, *c = fu + third * su, *d = fu + fourth * su;
#pragma GCC unroll 2
            for (int j = 0; j + 4 <= M; j += 4) sums.add_quad(a + j, b + j, c + j, d + j, Quad<T>{u[j], u[j + 1], u[j + 2], u[j + 3]});
#pragma GCC unroll 4
            for (int j = M / 4 * 4; j < M; ++j) sums.add_column(a + j, b + j, c + j, d + j, u[j]);
            store4(next + i, sums.total());
        }
    }
    template <int M>
    __attribute__((noinline)) void descend_few_call(const T* fu, const T* fx, const T* l, const int32_t* slots, T* __restrict z, const T* x, T* __restrict next) const {
        descend_few<M>(fu, fx, l, slots, z, x, next);
    }

    // VECTORS vectors of all rows of F; `mask` is for the last of them if it is the `last` of its rows.
    template <int VECTORS, class Mask>
    GNEWT_INLINE void carry_strip(const T* from, int64_t step, bool last, const Mask& mask, const T* weight, const T* v, T* __restrict f,
                                  T* __restrict size, T* __restrict rho) const {
        const int64_t ld = width();
        const Mask kept = last ? mask : Mask{} - 1;
        Vec<T> sums[VECTORS] = {}, carried[VECTORS] = {};
        for (int64_t i = 0; i < sizes.p; ++i, from += step, f += ld) {
            const T d = weight[i], x = v[i];
#pragma GCC unroll 4
            for (int k = 0; k < VECTORS; ++k) {
                Vec<T> y = load(from + k * kWidth<T>);
                if (k == VECTORS - 1) y = (Vec<T>)((Mask)y & kept);
                store(f + k * kWidth<T>, y);
                sums[k] += (d * y) * y;
                carried[k] += x * y;
            }
        }
        for (int k = 0; k < VECTORS; ++k) store(size + k * kWidth<T>, sums[k]), store(rho + k * kWidth<T>, carried[k]);
    }

    static GNEWT_INLINE void put_sum(const T* a, const T* b, int64_t n, T* to) {
        int64_t j = 0;
        for (; j + 4 <= n; j += 4) store4(to + j, load4(a + j) + load4(b + j));
        for (; j < n; ++j) to[j] = a[j] + b[j];
    }
    template <bool ADD>
    static GNEWT_INLINE void put(const T* from, int64_t n, T* to) {
        int64_t j = 0;
        for (; j + 4 <= n; j += 4) store4(to + j, ADD ? load4(to + j) + load4(from + j) : load4(from + j));
        for (; j < n; ++j) to[j] = ADD ? to[j] + from[j] : from[j];
    }
    template <bool ADD>
    static GNEWT_INLINE void put_rows(const T* sources, const int32_t* starts, const Part& part, int64_t rows, int64_t cols, T* __restrict to, int64_t ld) {
        const T* from = sources + starts[part.block];
        for (int64_t i = 0, step = part.step; i < rows; ++i, to += ld, from += step, step += part.dstep) put<ADD>(from, cols, to);
    }
    template <bool ADD>
    GNEWT_INLINE void put_inputs(const T* from, const Part& part, T* __restrict h, int64_t ld) const {
        const T* row = from;
        for (int64_t i = 0, step = part.step; i < sizes.q; ++i, row += step, step += part.dstep)
            for (int64_t j = 0; j <= i; ++j) h[j * ld + i] = ADD ? h[j * ld + i] + row[j] : row[j];
    }
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
