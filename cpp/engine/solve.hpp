// Triangular solves with a factor: up the tree for another right-hand side, down the tree for the solution.
//
// Unknowns are named by slots (free plans: by their numbers); z [unknowns, columns] holds the right-hand sides as rows
// of L where unknowns were eliminated, and the solution above them. Called by elimination.hpp, quick.hpp, stage.hpp,
// isa.inc.
#pragma once
#include "blocks.hpp"
#include "gemm.hpp"
#include "records.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// Four rows of a matrix.
template <class T>
struct FourRows {
    const T *a, *b, *c, *d;
    GNEWT_INLINE FourRows from(int64_t j) const { return {a + j, b + j, c + j, d + j}; }
};
// The first `count` of four rows from `at` on; behind them stands the first row again.
template <class T>
GNEWT_INLINE FourRows<T> four_rows(const T* at, int64_t step, int64_t count = 4) {
    return {at, at + (count > 1 ? step : 0), at + (count > 2 ? 2 * step : 0), at + (count > 3 ? 3 * step : 0)};
}

// A z for four rows of A, whose sums are taken together at the end.
template <class T>
struct FourSums {
    Quad<T> s{}, t{}, u{}, v{}, rest{};

    GNEWT_INLINE void add_quad(const FourRows<T>& row, Quad<T> z) {
        s += load4(row.a) * z;
        t += load4(row.b) * z;
        u += load4(row.c) * z;
        v += load4(row.d) * z;
    }
    GNEWT_INLINE void add_column(const FourRows<T>& row, T z) { rest += Quad<T>{*row.a, *row.b, *row.c, *row.d} * z; }
    GNEWT_INLINE void add(int64_t cols, const FourRows<T>& row, const T* z) {
        int64_t j = 0;
        for (; j + 4 <= cols; j += 4) add_quad(row.from(j), load4(z + j));
        for (; j < cols; ++j) add_column(row.from(j), z[j]);
    }
    GNEWT_INLINE Quad<T> total() {
        transpose<T>(s, t, u, v);
        return rest + ((s + t) + (u + v));
    }
};
template <class T>
GNEWT_INLINE Quad<T> four_rows_times(int64_t cols, const FourRows<T>& row, const T* z) {
    FourSums<T> sums;
    sums.add(cols, row, z);
    return sums.total();
}

// y (=, +=, -=) A z for a row-major A.
template <class T, int UPDATE>
GNEWT_INLINE void rows_times(int64_t rows, int64_t cols, ConstView<T> a, const T* z, T* y) {
    int64_t i = 0;
    const T* at = a.at;
    for (; i + 4 <= rows; i += 4, at += 4 * a.ld) {
        const Quad<T> sum = four_rows_times(cols, four_rows(at, a.ld), z);
        store4(y + i, UPDATE == kSet ? sum : UPDATE == kAdd ? load4(y + i) + sum : load4(y + i) - sum);
    }
    if (i == rows) return;
    const Quad<T> sum = four_rows_times(cols, four_rows(at, a.ld, rows - i), z);
    for (int64_t k = 0; k < rows - i; ++k)
        y[i + k] = UPDATE == kSet ? sum[k] : UPDATE == kAdd ? y[i + k] + sum[k] : y[i + k] - sum[k];
}

// Solve with a unit upper triangle of M rows, whose numbers are kept in registers: L z = z, in place.
template <class T, int M>
GNEWT_INLINE void back_substitute_block(const T* l, int64_t n, T* z) {
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

// Solve for the first q of z[n], given the others, by the rows L [q, n] with a unit diagonal: four rows at a time, from
// the last row to the first.
template <class T>
GNEWT_INLINE void back_substitute_rows(int64_t q, int64_t n, ConstView<T> l, T* z) {
    int64_t k = q;
    if (q % 4) {
        k -= q % 4;
        const ConstView<T> block = l.from(k, k);
        rows_times<T, kSubtract>(q - k, n - q, l.from(k, q), z + q, z + k);
        if (q % 4 == 1) back_substitute_block<T, 1>(block.at, block.ld, z + k);
        if (q % 4 == 2) back_substitute_block<T, 2>(block.at, block.ld, z + k);
        if (q % 4 == 3) back_substitute_block<T, 3>(block.at, block.ld, z + k);
    }
    for (; k > 0;) {
        const int64_t end = k;
        k -= 4;
        rows_times<T, kSubtract>(4, n - end, l.from(k, end), z + end, z + k);
        back_substitute_block<T, 4>(l.from(k, k).at, l.ld, z + k);
    }
}

// Solve for M unknowns u, given the others, x, by the rows L [M, n] with a unit diagonal. `u` holds right-hand sides at
// first, and stays in registers.
template <class T, int M>
GNEWT_INLINE void back_substitute_few(int64_t n, const T* l, const T* x, T (&u)[M]) {
#pragma GCC unroll 2
    for (int i = 0; i < M; i += 4) {
        const Quad<T> sums = four_rows_times(n - M, four_rows(l + i * n + M, n, M - i), x);
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
                    rows_times<T, kAdd>(block.rows, len, {src, block.step}, z + block.col, x + block.row);
                });
        } else {
            for_each(block, src,
                     [&](int64_t i, int64_t j, T v) { axpy(x + i * columns, v, z + j * columns, columns); });
        }
    }
    if (!(shape.flags & kNested)) return;
    // The last pair reads no other pair; each pair reads later pairs only.
    for (int32_t row = shape.p - 1; row >= 0; --row)
        for_reads(front, sources, row, [&](int64_t j, T v) { axpy(x + row * columns, v, x + j * columns, columns); });
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

// The solution in one front without a record: `l` are its rows of L. `local`: [p + q + b, columns] work space.
template <class T>
inline void descend(const Front& front, const T* sources, const T* l, T* z, int64_t columns, T* local) {
    const int64_t p = front.shape.p, q = front.shape.q, n = q + front.shape.b;
    if (q == 0 && !front.num_children) return;  // no one reads the pairs of a leaf
    T *x = local, *rest = local + p * columns;
    gather(rest, z, front.slots + p, n, columns);
    if (columns == 1)
        back_substitute_rows(q, n, {l, n}, rest);
    else
        for (int64_t k = q - 1; k >= 0; --k)
            subtract_rows(rest + k * columns, l + k * n + k + 1, rest + (k + 1) * columns, n - k - 1, columns);
    scatter(rest, z, front.slots + p, q, columns);
    if (!p || !front.num_children) return;
    substitute_pairs(front, sources, x, rest, columns);
    scatter(x, z, front.slots, p, columns);
}

// The solution in one front with a record.
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

// Solutions from the roots down. `factor_end`: behind the rows of L that stand where the plan has room for them.
template <class T>
inline void back_substitute(const PlanView& plan, const T* sources, const T* factor_end, const Records<T>& records,
                            T* z, int64_t columns, T* local) {
    RecordWalk<T> record(records, true);
    record.previous();
    for (int64_t f = int64_t(plan.num_fronts()) - 1; f >= 0; --f) {
        const Front front = plan.front(f);
        const int64_t q = front.shape.q, n = q + front.shape.b;
        factor_end -= q * n;
        if (record.front != f) {
            descend(front, sources, factor_end, z, columns, local);
            continue;
        }
        descend_record(front, record, record.rows(factor_end), sources, z, columns, local);
        record.previous();
    }
}

// What the pairs of a front pass to the rest on the way up: z_rest += Fᵀ(I - G)⁻ᵀ z_p, for `x` = z_p.
template <class T>
inline void lift_pairs(const Front& front, const T* sources, T* x, T* rest, int64_t columns) {
    const Shape& shape = front.shape;
    if (shape.flags & kNested)
        for (int32_t row = 0; row < shape.p; ++row)
            for_reads(front, sources, row,
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

// u := P⁻¹u for a 2×2 pivot P = [[a, b], [b, c]] and two rows of right-hand sides.
template <class T>
inline void divide_pair(T a, T b, T c, T* u, int64_t columns) {
    const T x = a / b, y = c / b, t = 1 / ((x * y - 1) * b);
    for (int64_t k = 0; k < columns; ++k) {
        const T i = u[k], j = u[columns + k];
        u[k] = (y * i - j) * t;
        u[columns + k] = (x * j - i) * t;
    }
}

// Eliminate a state and its dual, whose rows of L begin at `l`, in right-hand sides of `left` rows. The entry between
// the two stands below the diagonal.
template <class T>
inline void lift_twins(const T* l, int64_t n, int64_t left, T* u, int64_t columns) {
    for (int64_t i = 0; i < 2; ++i)
        subtract_multiples(u + 2 * columns, l + i * n + 2, u + i * columns, left - 2, columns);
    divide_pair(l[0], l[n], l[n + 1], u, columns);
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
        divide_pair(a, b, l[(k + 1) * record.n + k + 1], u, columns);
        ++k;
    }
}

// Eliminate the rows of a record, whose L is `l`, in right-hand sides.
template <class T>
inline void lift_record(const RecordWalk<T>& record, const T* l, T* z, int64_t columns, T* rest) {
    gather(rest, z, record.ids, record.n, columns);
    for (int64_t k = 0; k < record.taken; ++k)
        subtract_multiples(rest + (k + 1) * columns, l + k * record.n + k + 1, rest + k * columns, record.n - k - 1,
                           columns);
    divide(record, l, rest, columns);
    scatter(rest, z, record.ids, record.n, columns);
}

// Another right-hand side: up with Fᵀ and L, then down by back_substitute. `z` starts with the right-hand sides at the
// inputs.
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
            lift_record(record, record.rows(factor), z, columns, rest);
            record.next();
        } else {
            if (!p) gather(rest, z, front.slots, n, columns);
            const int64_t twins = 2 * front.shape.num_twins;
            for (int64_t k = 0; k < twins; k += 2) lift_twins(factor + k * (n + 1), n, n - k, rest + k * columns, columns);
            for (int64_t k = twins; k < q; ++k) {
                T* u = rest + k * columns;
                subtract_multiples(u + columns, factor + k * n + k + 1, u, n - k - 1, columns);
                for (int64_t c = 0; c < columns; ++c) u[c] /= factor[k * n + k];
            }
            scatter(rest, z, front.slots + p, n, columns);
        }
        factor += q * n;
    }
    zero_null(records, z, columns);
    back_substitute(plan, sources, factor, records, z, columns, local);
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
