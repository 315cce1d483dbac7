// Stages of a chain, with their sizes compiled in: there, loops and look-ups cost more than arithmetic.
#pragma once
#include "blocks.hpp"
#include "gemm.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// A front whose only child's separator is its P pairs, with Q inputs and a separator of P slots, as the stages of an optimal control problem
// are: dense Jacobians, and Hessians that are whole packed triangles, of which there may be several.
template <class T, int P, int Q>
struct Stage {
    static constexpr int kMost = 4;
    static constexpr int64_t n = P + Q, ld = padded<T>(n), ldp = padded<T>(P);

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
        if (s.p != P || s.q != Q || s.b != P || (s.flags & (wanted | kCross | kNested)) != wanted || !s.num_set) return false;
        bool all = true, f[2] = {false, false};
        for (int32_t k = 0; k < s.num_blocks && all; ++k) {
            const Block& b = s.blocks[k];
            const Part part{k, b.step, b.dstep};
            const bool whole = b.row == 0 && b.dlen == 0 && (!b.transposed || b.rows == 1);
            const bool triangle = b.row == b.col && b.row == 0 && (b.rows == 1 ? b.len == 1 : b.transposed && b.len == 1 && b.dlen == 1);
            if (b.kind == kF && whole && !b.transposed && b.rows == P && b.len == Q && b.col == 0)
                on_inputs = part, f[0] = true;
            else if (b.kind == kF && whole && !b.transposed && b.rows == P && b.len == P && b.col == Q)
                on_states = part, f[1] = true;
            else if (b.kind == kPP && triangle && b.rows == P && num_pairs < kMost)
                pairs[num_pairs++] = part;
            else if (b.kind == kR && whole && !b.transposed && b.rows == Q && b.len == P && b.col == Q && num_cross < kMost)
                cross[num_cross++] = part;
            else if (b.kind == kR && triangle && b.rows == Q && num_inputs < kMost)
                inputs[num_inputs++] = part;
            else
                all = false;
        }
        return all && f[0] && f[1] && num_cross && num_inputs;
    }

    // F, the first Q rows of R, and what sources add to PP; `weight` and `size` get the magnitudes on the diagonals.
    GNEWT_INLINE void load(const T* sources, const int32_t* starts, T* __restrict f, T* __restrict h, T* __restrict pp, T* __restrict weight,
                           T* __restrict size) const {
        const T *u = sources + starts[on_inputs.block], *x = sources + starts[on_states.block];
        for (int64_t i = 0; i < P; ++i) {
            put_row<Q>(u + on_inputs.row(i), false, f + i * ld);
            put_row<P>(x + on_states.row(i), false, f + i * ld + Q);
        }
        for (int32_t k = 0; k < num_inputs; ++k) {
            const T* from = sources + starts[inputs[k].block];
            for (int64_t i = 0; i < Q; ++i) {
                const T* row = from + inputs[k].row(i);
                for (int64_t j = 0; j <= i; ++j) h[j * ld + i] = k ? h[j * ld + i] + row[j] : row[j];
                size[i] = k ? size[i] + abs(row[i]) : abs(row[i]);
            }
        }
        for (int32_t k = 0; k < num_cross; ++k) {
            const T* from = sources + starts[cross[k].block];
            for (int64_t i = 0; i < Q; ++i) put_row<P>(from + cross[k].row(i), k > 0, h + i * ld + Q);
        }
        for (int32_t k = 0; k < num_pairs; ++k) {
            const T* from = sources + starts[pairs[k].block];
            const Part& part = pairs[k];
            for (int64_t i = 0; i < P; ++i) weight[i] += abs(from[part.row(i) + i]);
            for (int64_t i = 0; i + 4 <= P; i += 4) {
                const T *a = from + part.row(i), *b = from + part.row(i + 1), *c = from + part.row(i + 2), *d = from + part.row(i + 3);
                for (int64_t j = 0; j < i; j += 4) {
                    Quad<T> s = load4(a + j), t = load4(b + j), v = load4(c + j), w = load4(d + j);
                    transpose<T>(s, t, v, w);
                    add_quad(s, pp + j * ldp + i);
                    add_quad(t, pp + (j + 1) * ldp + i);
                    add_quad(v, pp + (j + 2) * ldp + i);
                    add_quad(w, pp + (j + 3) * ldp + i);
                }
                // A block on the diagonal: nothing behind the last row of a triangle may be read.
                add_quad(Quad<T>{a[i], b[i], c[i], d[i]}, pp + i * ldp + i);
                add_quad(Quad<T>{0, b[i + 1], c[i + 1], d[i + 1]}, pp + (i + 1) * ldp + i);
                add_quad(Quad<T>{0, 0, c[i + 2], d[i + 2]}, pp + (i + 2) * ldp + i);
                pp[(i + 3) * ldp + i + 3] += d[i + 3];
            }
            for (int64_t i = P / 4 * 4; i < P; ++i)
                for (int64_t j = 0; j <= i; ++j) pp[j * ldp + i] += from[part.row(i) + j];
        }
    }

    // z_u -= L z_x etc., then z_p = F [z_u; z_x]: `z` is [u | x], and x becomes the pairs'.
    GNEWT_INLINE void descend(const T* sources, const int32_t* starts, const T* l, T* __restrict z) const {
        for (int64_t k = Q - 1; k >= 0; --k) z[k] -= dot(l + k * n + k + 1, z + k + 1, n - k - 1);
        const T *u = sources + starts[on_inputs.block], *x = sources + starts[on_states.block];
        T next[P + 4];
        int64_t i = 0;
        for (; i + 4 <= P; i += 4) {
            const T *a = x + on_states.row(i), *b = x + on_states.row(i + 1), *c = x + on_states.row(i + 2), *d = x + on_states.row(i + 3);
            Quad<T> s{}, t{}, v{}, w{};
            int64_t j = 0;
            for (; j + 4 <= P; j += 4) {
                const Quad<T> y = load4(z + Q + j);
                s += load4(a + j) * y;
                t += load4(b + j) * y;
                v += load4(c + j) * y;
                w += load4(d + j) * y;
            }
            transpose<T>(s, t, v, w);
            Quad<T> sum = (s + t) + (v + w);
            for (; j < P; ++j) sum += Quad<T>{a[j], b[j], c[j], d[j]} * z[Q + j];
            a = u + on_inputs.row(i), b = u + on_inputs.row(i + 1), c = u + on_inputs.row(i + 2), d = u + on_inputs.row(i + 3);
            for (j = 0; j < Q; ++j) sum += Quad<T>{a[j], b[j], c[j], d[j]} * z[j];
            store4(next + i, sum);
        }
        for (; i < P; ++i) next[i] = dot(x + on_states.row(i), z + Q, P) + dot(u + on_inputs.row(i), z, Q);
        __builtin_memcpy(z + Q, next, P * sizeof(T));
    }

private:
    template <int64_t N>
    static GNEWT_INLINE void put_row(const T* from, bool add, T* to) {
        int64_t j = 0;
        for (; j + 4 <= N; j += 4) store4(to + j, add ? load4(to + j) + load4(from + j) : load4(from + j));
        for (; j < N; ++j) to[j] = add ? to[j] + from[j] : from[j];
    }
    static GNEWT_INLINE void add_quad(Quad<T> x, T* to) { store4(to, load4(to) + x); }
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
