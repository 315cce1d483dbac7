// Triangular solves with a factor: up the tree for another right-hand side, down it for the solution.
#pragma once
#include "blocks.hpp"
#include "records.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// x += A z, four rows at a time: their sums are taken together.
template <class T>
GNEWT_INLINE void add_products(const Block& block, const T* src, T* x, const T* z) {
    if (block.dlen || block.dstep || block.rows < 4)
        return rows_of(block, [&](int32_t i, const auto len, int64_t at) { x[i] += dot(src + at, z, len); });
    with_length(block.len, [&](const auto len) {
        const int64_t step = block.step, rows = block.rows;
        int64_t i = 0;
        for (; i + 4 <= rows; i += 4) {
            const T *a = src + i * step, *b = a + step, *c = b + step, *d = c + step;
            Quad<T> s{}, t{}, u{}, v{};
            int64_t j = 0;
            for (; j + 4 <= len; j += 4) {
                const Quad<T> y = load4(z + j);
                s += load4(a + j) * y;
                t += load4(b + j) * y;
                u += load4(c + j) * y;
                v += load4(d + j) * y;
            }
            transpose<T>(s, t, u, v);
            Quad<T> sum = (s + t) + (u + v);
            for (; j < len; ++j) sum += Quad<T>{a[j], b[j], c[j], d[j]} * z[j];
            store4(x + i, load4(x + i) + sum);
        }
        for (; i < rows; ++i) x[i] += dot(src + i * step, z, len);
    });
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
            add_products(block, src, x + block.row, z + block.col);
        } else {
            for_each(block, src, [&](int64_t i, int64_t j, T v) { axpy(x + i * columns, v, z + j * columns, columns); });
        }
    }
    if (!(shape.flags & kNested)) return;
    // The last pair reads no other; each one before it reads later ones only.
    for (int32_t row = shape.p - 1; row >= 0; --row)
        for (int32_t k = 0; k < shape.num_blocks; ++k)
            if (shape.blocks[k].kind == kG)
                for_row(shape.blocks[k], sources + front.sources[k], row, [&](int64_t j, T v) {
                    axpy(x + row * columns, v, x + j * columns, columns);
                });
}

// x -= Σ_j l[j] z[j], over `n` rows of z.
template <class T>
GNEWT_INLINE void subtract_rows(T* x, const T* l, const T* z, int64_t n, int64_t columns) {
    if (columns == 1)
        x[0] -= dot(l, z, n);
    else
        for (int64_t j = 0; j < n; ++j) axpy(x, -l[j], z + j * columns, columns);
}

// z[j] -= l[j] x, over `n` rows of z.
template <class T>
GNEWT_INLINE void subtract_multiples(T* z, const T* l, const T* x, int64_t n, int64_t columns) {
    if (columns == 1)
        axpy(z, -x[0], l, n);
    else
        for (int64_t j = 0; j < n; ++j) axpy(z + j * columns, -l[j], x, columns);
}

template <class T>
GNEWT_INLINE void gather(T* to, const T* z, const int32_t* ids, int64_t n, int64_t columns) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t c = 0; c < columns; ++c) to[i * columns + c] = z[ids[i] * columns + c];
}
template <class T>
GNEWT_INLINE void scatter(const T* from, T* z, const int32_t* ids, int64_t n, int64_t columns) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t c = 0; c < columns; ++c) z[ids[i] * columns + c] = from[i * columns + c];
}

// The solution in one front that has no record: `l` are its rows of L. z[slots, columns] holds the right-hand sides as rows of L at the pivots.
template <class T>
inline void descend(const Front& front, const T* sources, const T* l, T* z, int64_t columns, T* local) {
    const int64_t p = front.shape.p, q = front.shape.q, n = q + front.shape.b;
    T *x = local, *rest = local + p * columns;
    gather(rest, z, front.slots + p, n, columns);
    for (int64_t k = q - 1; k >= 0; --k)
        subtract_rows(rest + k * columns, l + k * n + k + 1, rest + (k + 1) * columns, n - k - 1, columns);
    scatter(rest, z, front.slots + p, q, columns);
    if (!p) return;
    substitute_pairs(front, sources, x, rest, columns);
    scatter(x, z, front.slots, p, columns);
}

// ... and in one that has.
template <class T>
inline void descend_record(const Front& front, const RecordWalk<T>& record, const T* sources, T* z, int64_t columns, T* local) {
    const int64_t p = front.shape.p, n = front.shape.q + front.shape.b;
    T *x = local, *rest = local + p * columns;
    gather(rest, z, record.ids, record.n, columns);
    for (int64_t k = record.taken - 1; k >= 0; --k)
        subtract_rows(rest + k * columns, record.l + k * record.n + k + 1, rest + (k + 1) * columns, record.n - k - 1, columns);
    scatter(rest, z, record.ids, record.taken, columns);
    if (!p) return;
    gather(rest, z, front.slots + p, n, columns);
    substitute_pairs(front, sources, x, rest, columns);
    scatter(x, z, front.slots, p, columns);
}

// Solutions from the roots down. `factor_end`: behind the rows of the fronts that have no record.
template <class T>
inline void back_substitute(const PlanView& plan, const T* sources, const T* factor_end, const Records<T>& records, T* z,
                            int64_t columns, T* local) {
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
        descend_record(front, record, sources, z, columns, local);
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
                    for_row(shape.blocks[k], sources + front.sources[k], row, [&](int64_t j, T v) {
                        axpy(x + j * columns, v, x + row * columns, columns);
                    });
    for (int32_t k = 0; k < shape.num_blocks; ++k) {
        const Block& block = shape.blocks[k];
        if (block.kind != kF) break;  // blocks are sorted by kind
        const T* src = sources + front.sources[k];
        if (columns == 1 && !block.transposed)
            rows_of(block, [&](int32_t i, const auto len, int64_t at) {
                axpy(rest + block.col, x[block.row + i], src + at, len);
            });
        else
            for_each(block, src, [&](int64_t i, int64_t j, T v) { axpy(rest + j * columns, v, x + i * columns, columns); });
    }
}

// Divide the rows of a record by its pivots.
template <class T>
inline void divide(const RecordWalk<T>& record, T* z, int64_t columns) {
    for (int64_t k = 0; k < record.taken; ++k) {
        T* u = z + k * columns;
        const T a = record.l[k * record.n + k], b = record.off[k];
        if (b == 0) {
            for (int64_t c = 0; c < columns; ++c) u[c] /= a;
            continue;
        }
        const T x = a / b, y = record.l[(k + 1) * record.n + k + 1] / b, t = 1 / ((x * y - 1) * b);
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
inline void solve_again(const PlanView& plan, const T* sources, const T* factor, const Records<T>& records, T* z, int64_t columns,
                        T* local) {
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
            gather(rest, z, record.ids, record.n, columns);
            for (int64_t k = 0; k < record.taken; ++k)
                subtract_multiples(rest + (k + 1) * columns, record.l + k * record.n + k + 1, rest + k * columns, record.n - k - 1,
                                   columns);
            divide(record, rest, columns);
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
