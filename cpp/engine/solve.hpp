// Triangular solves with a factor: up the tree for another right-hand side, down it for the solution.
#pragma once
#include "blocks.hpp"
#include "gemm.hpp"
#include "records.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// A z for four rows of A, whose sums are taken together at the end.
template <class T>
struct FourSums {
    Quad<T> s{}, t{}, u{}, v{}, rest{};

    GNEWT_INLINE
    void add_quad(const T* a, const T* b, const T* c, const T* d, Quad<T> z) {
        s += load4(a) * z;
        t += load4(b) * z;
        u += load4(c) * z;
        v += load4(d) * z;
    }
    GNEWT_INLINE
    void add_column(const T* a, const T* b, const T* c, const T* d, T z) { rest += Quad<T>{*a, *b, *c, *d} * z; }
    GNEWT_INLINE
    void add(int64_t cols, const T* a, const T* b, const T* c, const T* d, const T* z) {
        int64_t j = 0;
        for (; j + 4 <= cols; j += 4) add_quad(a + j, b + j, c + j, d + j, load4(z + j));
        for (; j < cols; ++j) add_column(a + j, b + j, c + j, d + j, z[j]);
    }
    GNEWT_INLINE
    Quad<T> total() {
        transpose<T>(s, t, u, v);
        return rest + ((s + t) + (u + v));
    }
};
template <class T>
GNEWT_INLINE
Quad<T> four_rows_times(int64_t cols, const T* a, const T* b, const T* c, const T* d, const T* z) {
    FourSums<T> sums;
    sums.add(cols, a, b, c, d, z);
    return sums.total();
}

// y (=, +=, -=) A z for a row-major A.
template <class T, int UPDATE>
GNEWT_INLINE
void rows_times(int64_t rows, int64_t cols, const T* a, int64_t step, const T* z, T* y) {
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4, a += 4 * step) {
        const Quad<T> sum = four_rows_times(cols, a, a + step, a + 2 * step, a + 3 * step, z);
        store4(y + i, UPDATE == kSet ? sum : UPDATE == kAdd ? load4(y + i) + sum : load4(y + i) - sum);
    }
    if (i == rows) return;
    const int64_t left = rows - i;
    const Quad<T> sum = four_rows_times(cols, a, a + (left > 1 ? step : 0), a + (left > 2 ? 2 * step : 0), a, z);
    for (int64_t k = 0; k < left; ++k)
        y[i + k] = UPDATE == kSet ? sum[k] : UPDATE == kAdd ? y[i + k] + sum[k] : y[i + k] - sum[k];
}

// z[0..M) -= L z with a unit upper triangle of M rows, whose numbers are kept in registers.
template <class T, int M>
GNEWT_INLINE
void back_substitute_block(const T* l, int64_t n, T* z) {
    T x[M];
#pragma GCC unroll 4
    for (int k = 0; k < M; ++k) x[k] = z[k];
#pragma GCC unroll 4
    for (int k = M - 1; k > 0; --k)
#pragma GCC unroll 4
        for (int i = 0; i < k; ++i) x[i] -= l[i * n + k] * x[k];
#pragma GCC unroll 4
    for (int k = 0; k < M; ++k) z[k] = x[k];
}

// Solve for the first q of z[n], given the others, by the rows L [q, step] with a unit diagonal, of which n columns count: four rows at a time, from the last.
template <class T>
GNEWT_INLINE
void back_substitute_rows(int64_t q, int64_t n, const T* l, int64_t step, T* z) {
    int64_t k = q;
    if (q % 4) {
        k -= q % 4;
        rows_times<T, kSubtract>(q - k, n - q, l + k * step + q, step, z + q, z + k);
        if (q % 4 == 1) back_substitute_block<T, 1>(l + k * step + k, step, z + k);
        if (q % 4 == 2) back_substitute_block<T, 2>(l + k * step + k, step, z + k);
        if (q % 4 == 3) back_substitute_block<T, 3>(l + k * step + k, step, z + k);
    }
    for (; k > 0;) {
        const int64_t end = k;
        k -= 4;
        rows_times<T, kSubtract>(4, n - end, l + k * step + end, step, z + end, z + k);
        back_substitute_block<T, 4>(l + k * step + k, step, z + k);
    }
}

// Solve for M unknowns u, which are right-hand sides at first, by the rows L [M, n] with a unit diagonal, given the others, x. They stay in registers.
template <class T, int M>
GNEWT_INLINE
void back_substitute_few(int64_t n, const T* l, const T* x, T (&u)[M]) {
#pragma GCC unroll 2
    for (int i = 0; i < M; i += 4) {
        const T* row = l + i * n + M;
        const Quad<T> sums = four_rows_times(n - M, row, row + (M > i + 1 ? n : 0), row + (M > i + 2 ? 2 * n : 0),
                                             row + (M > i + 3 ? 3 * n : 0), x);
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k)
            if (i + k < M) u[i + k] -= sums[k];
    }
#pragma GCC unroll 8
    for (int k = M - 1; k > 0; --k)
#pragma GCC unroll 8
        for (int i = 0; i < k; ++i) u[i] -= l[i * n + k] * u[k];
}

// x_p = F [u; ξ], with F read from the sources: `x` is [p, columns], `z` [q + b, columns].
template <class T>
inline void substitute_pairs(const Front& front, const T* sources, T* x, const T* z, int64_t columns) {
    const Shape& shape = front.shape;
    std::memset(x, 0, size_t(shape.p * columns) * sizeof(T));
    for (int32_t k = 0; k < shape.num_blocks; ++k) {
        const Block& block = shape.blocks[k];
        if (block.kind != kF) break;  // blocks are sorted by kind
        const T* src = sources + front.sources[k];
        if (columns == 1 && !block.transposed) {
            if (block.dlen || block.dstep)
                rows_of(block, [&](int32_t i, const auto len, int64_t at) {
                    x[block.row + i] += dot(src + at, z + block.col, len);
                });
            else
                with_length(block.len, [&](const auto len) {
                    rows_times<T, kAdd>(block.rows, len, src, block.step, z + block.col, x + block.row);
                });
        } else {
            for_each(block, src,
                     [&](int64_t i, int64_t j, T v) { axpy(x + i * columns, v, z + j * columns, columns); });
        }
    }
    if (!(shape.flags & kNested)) return;
    // The last pair reads no other; each one before it reads later ones only.
    for (int32_t row = shape.p - 1; row >= 0; --row)
        for (int32_t k = 0; k < shape.num_blocks; ++k)
            if (shape.blocks[k].kind == kG)
                for_row(shape.blocks[k], sources + front.sources[k], row,
                        [&](int64_t j, T v) { axpy(x + row * columns, v, x + j * columns, columns); });
}

// x -= Σ_j l[j] z[j], over `n` rows of z.
template <class T>
GNEWT_INLINE
void subtract_rows(T* x, const T* l, const T* z, int64_t n, int64_t columns) {
    if (columns == 1)
        x[0] -= dot(l, z, n);
    else
        for (int64_t j = 0; j < n; ++j) axpy(x, -l[j], z + j * columns, columns);
}

// z[j] -= l[j] x, over `n` rows of z.
template <class T>
GNEWT_INLINE
void subtract_multiples(T* z, const T* l, const T* x, int64_t n, int64_t columns) {
    if (columns == 1)
        axpy(z, -x[0], l, n);
    else
        for (int64_t j = 0; j < n; ++j) axpy(z + j * columns, -l[j], x, columns);
}

template <class T>
GNEWT_INLINE
void gather(T* to, const T* z, const int32_t* ids, int64_t n, int64_t columns) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t c = 0; c < columns; ++c) to[i * columns + c] = z[ids[i] * columns + c];
}
template <class T>
GNEWT_INLINE
void scatter(const T* from, T* z, const int32_t* ids, int64_t n, int64_t columns) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t c = 0; c < columns; ++c) z[ids[i] * columns + c] = from[i * columns + c];
}

// The solution in one front that has no record: `l` are its rows of L. z[slots, columns] holds the right-hand sides as rows of L at the pivots.
template <class T>
inline void descend(const Front& front, const T* sources, const T* l, T* z, int64_t columns, T* local) {
    const int64_t p = front.shape.p, q = front.shape.q, n = q + front.shape.b;
    if (q == 0 && !front.num_children) return;  // no one reads the pairs of a leaf
    T *x = local, *rest = local + p * columns;
    gather(rest, z, front.slots + p, n, columns);
    if (columns == 1)
        back_substitute_rows(q, n, l, n, rest);
    else
        for (int64_t k = q - 1; k >= 0; --k)
            subtract_rows(rest + k * columns, l + k * n + k + 1, rest + (k + 1) * columns, n - k - 1, columns);
    scatter(rest, z, front.slots + p, q, columns);
    if (!p || !front.num_children) return;
    substitute_pairs(front, sources, x, rest, columns);
    scatter(x, z, front.slots, p, columns);
}

// ... and in one that has.
template <class T>
inline void descend_record(const Front& front, const RecordWalk<T>& record, const T* l, const T* sources, T* z,
                           int64_t columns, T* local) {
    const int64_t p = front.shape.p, n = front.shape.q + front.shape.b;
    T *x = local, *rest = local + p * columns;
    gather(rest, z, record.ids, record.n, columns);
    for (int64_t k = record.taken - 1; k >= 0; --k)
        subtract_rows(rest + k * columns, l + k * record.n + k + 1, rest + (k + 1) * columns, record.n - k - 1,
                      columns);
    scatter(rest, z, record.ids, record.taken, columns);
    if (!p) return;
    gather(rest, z, front.slots + p, n, columns);
    substitute_pairs(front, sources, x, rest, columns);
    scatter(x, z, front.slots, p, columns);
}

// Solutions from the roots down. `factor_end`: behind the rows of the fronts that have no record.
template <class T>
inline void back_substitute(const PlanView& plan, const T* sources, const T* factor_end, const Records<T>& records,
                            T* z, int64_t columns, T* local) {
    RecordWalk<T> record(records, true);
    record.previous();
    for (int64_t f = int64_t(plan.num_fronts()) - 1; f >= 0; --f) {
        const Front front = plan.front(f);
        const int64_t q = front.shape.q, n = q + front.shape.b;
        if (plan.causal()) factor_end -= q * n;
        if (record.front != f) {
            descend(front, sources, factor_end, z, columns, local);
            continue;
        }
        descend_record(front, record, record.rows(factor_end), sources, z, columns, local);
        record.previous();
    }
}

// z[p | rest] on its way up: what a front's pairs pass to the rest, z_rest += Fᵀ(I - G)⁻ᵀ z_p.
template <class T>
inline void lift_pairs(const Front& front, const T* sources, T* x, T* rest, int64_t columns) {
    const Shape& shape = front.shape;
    if (shape.flags & kNested)
        for (int32_t row = 0; row < shape.p; ++row)
            for (int32_t k = 0; k < shape.num_blocks; ++k)
                if (shape.blocks[k].kind == kG)
                    for_row(shape.blocks[k], sources + front.sources[k], row,
                            [&](int64_t j, T v) { axpy(x + j * columns, v, x + row * columns, columns); });
    for (int32_t k = 0; k < shape.num_blocks; ++k) {
        const Block& block = shape.blocks[k];
        if (block.kind != kF) break;  // blocks are sorted by kind
        const T* src = sources + front.sources[k];
        if (columns == 1 && !block.transposed)
            rows_of(block, [&](int32_t i, const auto len, int64_t at) {
                axpy(rest + block.col, x[block.row + i], src + at, len);
            });
        else
            for_each(block, src,
                     [&](int64_t i, int64_t j, T v) { axpy(rest + j * columns, v, x + i * columns, columns); });
    }
}

// Divide the rows of a record by its pivots.
template <class T>
inline void divide(const RecordWalk<T>& record, const T* l, T* z, int64_t columns) {
    for (int64_t k = 0; k < record.taken; ++k) {
        T* u = z + k * columns;
        const T a = l[k * record.n + k], b = record.off[k];
        if (b == 0) {
            for (int64_t c = 0; c < columns; ++c) u[c] /= a;
            continue;
        }
        const T x = a / b, y = l[(k + 1) * record.n + k + 1] / b, t = 1 / ((x * y - 1) * b);
        for (int64_t c = 0; c < columns; ++c) {
            const T i = u[c], j = u[columns + c];
            u[c] = (y * i - j) * t;
            u[columns + c] = (x * j - i) * t;
        }
        ++k;
    }
}

// Another right-hand side: up with Fᵀ and L, then down as above. z[slots, columns] starts with b at the inputs.
template <class T>
inline void solve_again(const PlanView& plan, const T* sources, const T* factor, const Records<T>& records, T* z,
                        int64_t columns, T* local) {
    RecordWalk<T> record(records, false);
    record.next();
    for (int64_t f = 0; f < plan.num_fronts(); ++f) {
        const Front front = plan.front(f);
        const int64_t p = front.shape.p, q = front.shape.q, n = q + front.shape.b;
        T *x = local, *rest = local + p * columns;
        if (p) {
            gather(local, z, front.slots, p + n, columns);
            lift_pairs(front, sources, x, rest, columns);
            scatter(rest, z, front.slots + p, n, columns);
        }
        if (record.front == f) {
            const T* l = record.rows(factor);
            gather(rest, z, record.ids, record.n, columns);
            for (int64_t k = 0; k < record.taken; ++k)
                subtract_multiples(rest + (k + 1) * columns, l + k * record.n + k + 1, rest + k * columns,
                                   record.n - k - 1, columns);
            divide(record, l, rest, columns);
            scatter(rest, z, record.ids, record.n, columns);
            record.next();
        } else {
            if (!p) gather(rest, z, front.slots, n, columns);
            for (int64_t k = 0; k < q; ++k) {
                T* u = rest + k * columns;
                subtract_multiples(u + columns, factor + k * n + k + 1, u, n - k - 1, columns);
                for (int64_t c = 0; c < columns; ++c) u[c] /= factor[k * n + k];
            }
            scatter(rest, z, front.slots + p, n, columns);
        }
        if (plan.causal()) factor += q * n;
    }
    zero_null(records, z, columns);
    back_substitute(plan, sources, factor, records, z, columns, local);
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
