// Stages of a chain: fronts that follow each other and look alike, as those of an optimal control problem do. A Stage
// knows where the sources of such a front are, loads them, and computes its part of the solution.
//
// Sizes may be compiled in: in small stages, loops and look-ups cost more than arithmetic. Called by quick.hpp, which
// finds stages, and by chain.hpp, which eliminates them.
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
    static constexpr int known = Q;        // rows to eliminate, if known
    static constexpr bool small = P <= 6;  // products are unrolled; those of larger matrices are faster as loops
};
struct Any {
    int64_t p, q;
    static constexpr int known = 0;
    static constexpr bool small = false;
};

// What the sums over the rows of F need of pairs: their weights [rows] and right-hand sides [rows].
template <class T>
struct PairVectors {
    const T *weight, *v;
};

// Sums over the rows of F, in VECTORS vectors of columns: rho = Fᵀv, and size[j] = Σ_i weight[i] F[i, j]². For a
// definite PP these sizes bound all that cancels in Fᵀ PP F.
template <class T, int VECTORS>
struct Sums {
    Vec<T> sizes[VECTORS] = {}, carried[VECTORS] = {};

    GNEWT_INLINE void add(int64_t rows, PairVectors<T> pairs, ConstView<T> from) {
        const T* f = from.at;
#pragma GCC unroll 8
        for (int64_t i = 0; i < rows; ++i, f += from.ld)
#pragma GCC unroll 4
            for (int k = 0; k < VECTORS; ++k) add(k, pairs.weight[i], pairs.v[i], load(f + k * kWidth<T>));
    }
    // The same, and a copy of F; `mask` is for the last vector of each row.
    GNEWT_INLINE void copy(int64_t rows, PairVectors<T> pairs, ConstView<T> from, const Lanes<T>& mask,
                           T* __restrict to, int64_t ld) {
        const T* f = from.at;
        for (int64_t i = 0; i < rows; ++i, f += from.ld, to += ld)
#pragma GCC unroll 4
            for (int k = 0; k < VECTORS; ++k) {
                Vec<T> y = load(f + k * kWidth<T>);
                if (k == VECTORS - 1) y = (Vec<T>)((Lanes<T>)y & mask);
                store(to + k * kWidth<T>, y);
                add(k, pairs.weight[i], pairs.v[i], y);
            }
    }
    GNEWT_INLINE void put(T* size, T* rho) const {
        for (int k = 0; k < VECTORS; ++k) store(size + k * kWidth<T>, sizes[k]), store(rho + k * kWidth<T>, carried[k]);
    }

private:
    GNEWT_INLINE void add(int k, T d, T x, Vec<T> y) {
        sizes[k] += (d * y) * y;
        carried[k] += x * y;
    }
};

// Whether states can begin with a vector without taking more vectors, where sizes are known to the compiler; else -1.
template <class T, int P, int Q>
constexpr int known_apart(Fixed<P, Q>) {
    return padded<T>(Q) + padded<T>(P) == padded<T>(P + Q);
}
template <class T>
constexpr int known_apart(Any) {
    return -1;
}

// A front whose only child's separator is its p pairs, with q inputs and a separator of p slots: a dense Jacobian, and
// Hessians that are whole packed triangles, of which there may be several.
template <class T, class Sizes>
struct Stage {
    static constexpr int kMost = 4;  // Hessians of one part at most: a front with more is no stage
    Sizes sizes;

    // Columns of F and R are [u | x]. States begin with a vector where no more vectors are needed then: `apart`.
    int64_t width() const { return padded<T>(sizes.p + sizes.q); }
    int64_t states() const { return apart() ? padded<T>(sizes.q) : sizes.q; }
    bool apart() const { return padded<T>(sizes.q) + padded<T>(sizes.p) == width(); }

    // Where a block begins (its number among those of the front), and how its rows follow each other.
    struct Part {
        int32_t block;
        int64_t step, dstep;
        int64_t row(int64_t i) const { return i * step + dstep * i * (i - 1) / 2; }
        bool even() const { return step >= 0 && dstep == 0; }
        bool ascends() const { return step >= 0 && dstep >= 0; }
    };
    Part on_inputs, on_states;  // F = [F_u | F_x]
    int32_t num_pairs = 0, num_cross = 0, num_inputs = 0;
    Part pairs[kMost], cross[kMost], inputs[kMost];

    // Whether a shape is such a front; and where its blocks are.
    bool matches(const Shape& s) {
        constexpr int32_t wanted = kChildIsPairs | kDenseJacobian;
        const int64_t p = sizes.p;
        if (s.p != p || s.q != sizes.q || s.b != p || !s.num_set) return false;
        if ((s.flags & (wanted | kCross | kNested)) != wanted) return false;
        bool f_u = false, f_x = false;
        for (int32_t k = 0; k < s.num_blocks; ++k) {
            const Part part{k, s.blocks[k].step, s.blocks[k].dstep};
            switch (role_of(s.blocks[k])) {
                case Role::kJacobianOfInputs: on_inputs = part, f_u = true; break;
                case Role::kJacobianOfStates: on_states = part, f_x = true; break;
                case Role::kPairs:
                    if (num_pairs == kMost) return false;
                    pairs[num_pairs++] = part;
                    break;
                case Role::kCrossTerms:
                    if (num_cross == kMost) return false;
                    cross[num_cross++] = part;
                    break;
                case Role::kInputs:
                    if (num_inputs == kMost) return false;
                    inputs[num_inputs++] = part;
                    break;
                case Role::kOther: return false;
            }
        }
        return f_u && f_x && num_cross && num_inputs;
    }

    GNEWT_INLINE void load_jacobian(const T* sources, const int32_t* starts, T* __restrict f) const {
        const int64_t p = sizes.p, q = sizes.q, ld = width();
        put_rows<false>(sources, starts, on_inputs, p, q, f, ld);
        put_rows<false>(sources, starts, on_states, p, p, f + states(), ld);
    }

    // Whether F may be read by whole vectors, where the sources of this stage begin at `starts`.
    GNEWT_INLINE bool has_room(int64_t num_sources, const int32_t* starts) const {
        const int64_t p = sizes.p, q = sizes.q;
        const auto end = [&](const Part& part, int64_t len)
                             GNEWT_LAMBDA { return starts[part.block] + (p - 1) * part.step + padded<T>(len); };
        return apart() && on_inputs.even() && on_states.even() && end(on_inputs, q) <= num_sources &&
               end(on_states, p) <= num_sources;
    }
    // Whether all sources may be read in place. Numbers behind the inputs' columns are computed with, but nothing comes
    // of them; states must fill their vectors.
    GNEWT_INLINE bool in_place(int64_t num_sources, const int32_t* starts) const {
        const int64_t q = sizes.q;
        return sizes.p % kWidth<T> == 0 && num_inputs == 1 && num_cross == 1 && has_room(num_sources, starts) &&
               inputs[0].ascends() && cross[0].ascends() &&
               starts[inputs[0].block] + inputs[0].row(q - 1) + padded<T>(q) <= num_sources;
    }
    GNEWT_INLINE Strided<T> rows_of(const Part& part, const T* sources, const int32_t* starts) const {
        return {sources + starts[part.block], part.step, part.dstep};
    }

    // Load F and take its sums (see Sums) with one look at F.
    GNEWT_INLINE void carry_jacobian(const T* sources, const int32_t* starts, PairVectors<T> of_pairs, T* __restrict f,
                                     T* __restrict size, T* __restrict rho) const {
        const int64_t p = sizes.p, q = sizes.q;
        const auto carry = [&](const Part& part, int64_t len, int64_t at) GNEWT_LAMBDA {
            const auto mask = first_lanes<T>(len - floor_to_vector<T>(len - 1));
            const int64_t cols = padded<T>(len);
            over_columns<T, 4>(cols, [&](int64_t j, const auto width) GNEWT_LAMBDA {
                constexpr int vectors = int(decltype(width)::value);
                Sums<T, vectors> sums;
                sums.copy(p, of_pairs, {sources + starts[part.block] + j, part.step},
                          j + vectors * kWidth<T> == cols ? mask : Lanes<T>{} - 1, f + at + j, this->width());
                sums.put(size + at + j, rho + at + j);
            });
        };
        carry(on_inputs, q, 0);
        carry(on_states, p, states());
    }

    // What sources bring to the first q rows of R, with one triangle of their block on the diagonal.
    template <bool LOWER>
    GNEWT_INLINE void load_inputs(const T* sources, const int32_t* starts, T* __restrict h) const {
        const int64_t p = sizes.p, q = sizes.q, ld = width();
        put_inputs<false, LOWER>(sources + starts[inputs[0].block], inputs[0], h, ld);
        for (int32_t k = 1; k < num_inputs; ++k)
            put_inputs<true, LOWER>(sources + starts[inputs[k].block], inputs[k], h, ld);
        put_rows<false>(sources, starts, cross[0], q, p, h + states(), ld);
        for (int32_t k = 1; k < num_cross; ++k) put_rows<true>(sources, starts, cross[k], q, p, h + states(), ld);
    }

    // The magnitudes that sources, and `shift`, bring to the diagonal of these rows.
    GNEWT_INLINE void add_magnitudes(const T* sources, const int32_t* starts, T shift, T* __restrict size) const {
        for (int32_t k = 0; k < num_inputs; ++k, shift = 0) {
            const T* row = sources + starts[inputs[k].block];
            for (int64_t i = 0, step = inputs[k].step; i < sizes.q; ++i, row += step, step += inputs[k].dstep)
                size[i] += abs(row[i]) + shift;
        }
    }

    // PP of this stage, whole: `pp`, which the child passes on and of which the lower triangle is given, and what
    // sources add. Its diagonal, filled up to fours with ones; and the magnitudes that went into the diagonal, of which
    // the child passes on `weight`, filled up to fours with zeros.
    GNEWT_INLINE void add_pairs(const T* sources, const int32_t* starts, const T* pp, const T* weight,
                                T* __restrict sum, T* __restrict diag, T* __restrict weight_sum) const {
        const int64_t p = sizes.p;
        for (int32_t k = 0; k < max(num_pairs, 1); ++k, pp = sum, weight = weight_sum) {
            const Part part = num_pairs ? pairs[k] : Part{};
            Packed from{num_pairs ? sources + starts[part.block] : nullptr, part.step, part.dstep};
            int64_t i = 0;
            // Numbers behind a row land above the diagonal, where nothing counts yet; behind the last row of all there
            // may be no numbers.
            for (; num_pairs && i + 4 <= p; i += 4) add_four_pairs(i, from, pp, weight, sum, diag, weight_sum);
            for (; i < p; ++i) add_pair(i, from, pp, weight, sum, diag, weight_sum);
        }
        for (int64_t i = p; i % 4; ++i) diag[i] = 1, weight_sum[i] = 0;
    }

    // One stage of the solution: where its numbers are.
    struct Descent {
        const T *sources, *l;           // all sources; the rows of L of this stage
        const int32_t *starts, *slots;  // where its sources begin; the slots of its inputs
    };

    // The inputs, whose right-hand sides are at their slots of z, by their rows of L, given the states x; and the
    // pairs, `next` = F [u; x]. `u`: [q] work space.
    GNEWT_INLINE void descend(const Descent& at, T* __restrict z, const T* x, T* __restrict u,
                              T* __restrict next) const {
        const int64_t p = sizes.p, q = sizes.q;
        const T *fu = at.sources + at.starts[on_inputs.block], *fx = at.sources + at.starts[on_states.block];
        const bool even = on_states.dstep == 0 && on_inputs.dstep == 0;
        if (even && q <= kFew) {
            if constexpr (Sizes::known > 0)
                descend_few<Sizes::known>(fu, fx, at.l, at.slots, z, x, next);
            else
                with_rows<kFew>(q, [&](const auto m) GNEWT_LAMBDA {
                    descend_few_call<int(decltype(m)::value)>(fu, fx, at.l, at.slots, z, x, next);
                });
            return;
        }
        gather(u, z, at.slots, q, 1);
        rows_times<T, kSubtract>(q, p, {at.l + q, p + q}, x, u);
        back_substitute_rows(q, q, {at.l, p + q}, u);
        scatter(u, z, at.slots, q, 1);
        if (even) {
            rows_times<T, kSet>(p, p, {fx, on_states.step}, x, next);
            rows_times<T, kAdd>(p, q, {fu, on_inputs.step}, u, next);
        } else {
            for (int64_t i = 0; i < p; ++i)
                next[i] = dot(fx + on_states.row(i), x, p) + dot(fu + on_inputs.row(i), u, q);
        }
    }

private:
    static constexpr int kFew = 8;  // inputs that registers hold

    enum class Role { kJacobianOfInputs, kJacobianOfStates, kPairs, kCrossTerms, kInputs, kOther };

    // The role of a block in a stage.
    Role role_of(const Block& b) const {
        const int64_t p = sizes.p, q = sizes.q;
        const bool whole = b.row == 0 && b.dlen == 0 && !b.transposed;
        const bool one = b.rows == 1 && b.len == 1;
        const bool triangle =
            b.row == 0 && b.col == 0 && (one || (b.rows > 1 && b.transposed && b.len == 1 && b.dlen == 1));
        if (b.kind == kF && whole && b.rows == p && b.len == q && b.col == 0) return Role::kJacobianOfInputs;
        if (b.kind == kF && whole && b.rows == p && b.len == p && b.col == q) return Role::kJacobianOfStates;
        const bool grows = p == 1 || (b.step > 0 && b.dstep > 0);
        if (b.kind == kPP && triangle && b.rows == p && grows) return Role::kPairs;
        if (b.kind == kR && whole && b.rows == q && b.len == p && b.col == q) return Role::kCrossTerms;
        if (b.kind == kR && triangle && b.rows == q) return Role::kInputs;
        return Role::kOther;
    }

    // The next row of a packed triangle, and the distance to the row behind that one.
    struct Packed {
        const T* row;
        int64_t step, dstep;
    };

    // Rows i to i + 3 of PP, by 4 × 4 blocks.
    GNEWT_INLINE void add_four_pairs(int64_t i, Packed& next, const T* pp, const T* weight, T* sum, T* diag,
                                     T* weight_sum) const {
        const int64_t ldp = padded<T>(sizes.p), step = next.step, dstep = next.dstep;
        const T *a = next.row, *b = a + step, *c = b + step + dstep, *d = c + step + 2 * dstep, *from = pp + i * ldp;
        for (int64_t j = 0; j < i; j += 4, from += 4) {
            Quad<T> e = load4(from) + load4(a + j), f = load4(from + ldp) + load4(b + j),
                    g = load4(from + 2 * ldp) + load4(c + j), h = load4(from + 3 * ldp) + load4(d + j);
            put_quads(e, f, g, h, {sum + i * ldp + j, ldp});
            transpose<T>(e, f, g, h);
            put_quads(e, f, g, h, {sum + j * ldp + i, ldp});
        }
        const Quad<T> x = load4(a + i), y = load4(b + i), z = load4(c + i), w = load4(d + i);
        Quad<T> e = load4(from) + x, f = load4(from + ldp) + y, g = load4(from + 2 * ldp) + z,
                h = load4(from + 3 * ldp) + w;
        store4(diag + i, diagonal<T>(e, f, g, h));
        store4(weight_sum + i, load4(weight + i) + abs4<T>(diagonal<T>(x, y, z, w)));
        symmetric<T>(e, f, g, h);
        put_quads(e, f, g, h, {sum + i * (ldp + 1), ldp});
        next = {d + step + 3 * dstep, step + 4 * dstep, dstep};
    }

    // Row i of PP, number by number.
    GNEWT_INLINE void add_pair(int64_t i, Packed& next, const T* pp, const T* weight, T* sum, T* diag,
                               T* weight_sum) const {
        const int64_t ldp = padded<T>(sizes.p);
        const T* row = next.row;
        for (int64_t j = 0; j <= i; ++j)
            sum[i * ldp + j] = sum[j * ldp + i] = num_pairs ? pp[i * ldp + j] + row[j] : pp[i * ldp + j];
        diag[i] = sum[i * (ldp + 1)];
        weight_sum[i] = num_pairs ? weight[i] + abs(row[i]) : weight[i];
        if (num_pairs) next.row += next.step, next.step += next.dstep;
    }

    // descend() for M inputs, which stay in registers.
    template <int M>
    GNEWT_INLINE void descend_few(const T* fu, const T* fx, const T* l, const int32_t* slots, T* __restrict z,
                                  const T* x, T* __restrict next) const {
        const int64_t p = sizes.p, su = on_inputs.step, sx = on_states.step;
        T u[M];
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) u[k] = z[slots[k]];
        back_substitute_few<T, M>(p + M, l, x, u);
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) z[slots[k]] = u[k];
        for (int64_t i = 0; i < p; i += 4, fx += 4 * sx, fu += 4 * su) {
            FourSums<T> sums;
            sums.add(p, four_rows(fx, sx, p - i), x);
            const FourRows<T> rows = four_rows(fu, su, p - i);
#pragma GCC unroll 2
            for (int j = 0; j + 4 <= M; j += 4)
                sums.add_quad(rows.from(j), Quad<T>{u[j], u[j + 1], u[j + 2], u[j + 3]});
#pragma GCC unroll 4
            for (int j = M / 4 * 4; j < M; ++j) sums.add_column(rows.from(j), u[j]);
            store4(next + i, sums.total());
        }
    }
    template <int M>
    __attribute__((noinline)) void descend_few_call(const T* fu, const T* fx, const T* l, const int32_t* slots,
                                                    T* __restrict z, const T* x, T* __restrict next) const {
        descend_few<M>(fu, fx, l, slots, z, x, next);
    }

    static GNEWT_INLINE void put_quads(Quad<T> a, Quad<T> b, Quad<T> c, Quad<T> d, View<T> to) {
        store4(to.at, a), store4(to.at + to.ld, b), store4(to.at + 2 * to.ld, c), store4(to.at + 3 * to.ld, d);
    }
    template <bool ADD>
    static GNEWT_INLINE void put(const T* from, int64_t n, T* to) {
        int64_t j = 0;
        for (; j + 4 <= n; j += 4) store4(to + j, ADD ? load4(to + j) + load4(from + j) : load4(from + j));
        for (; j < n; ++j) to[j] = ADD ? to[j] + from[j] : from[j];
    }
    template <bool ADD>
    static GNEWT_INLINE void put_rows(const T* sources, const int32_t* starts, const Part& part, int64_t rows,
                                      int64_t cols, T* __restrict to, int64_t ld) {
        const T* from = sources + starts[part.block];
        for (int64_t i = 0, step = part.step; i < rows; ++i, to += ld, from += step, step += part.dstep)
            put<ADD>(from, cols, to);
    }
    template <bool ADD, bool LOWER>
    GNEWT_INLINE void put_inputs(const T* from, const Part& part, T* __restrict h, int64_t ld) const {
        const T* row = from;
        for (int64_t i = 0, step = part.step; i < sizes.q; ++i, row += step, step += part.dstep)
            for (int64_t j = 0; j <= i; ++j) {
                T& to = LOWER ? h[i * ld + j] : h[j * ld + i];
                to = ADD ? to + row[j] : row[j];
            }
    }
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
