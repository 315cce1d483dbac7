// Blocks of sources: how the numbers of a block are visited, and moved into the parts of a front. Called by all that
// loads a front (load.hpp, fronts.hpp, gathering.hpp), and by solve.hpp, where Jacobians are read from the sources.
#pragma once
#include "plan_view.hpp"
#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// Call visit(row, col, offset) for every number of a block: where it goes, and where it is, counted from the first.
template <class Visit>
GNEWT_INLINE void for_places(const Block& k, Visit visit) {
    int64_t at = 0, step = k.step, len = k.len;
    for (int32_t i = 0; i < k.rows; ++i) {
        for (int64_t j = 0; j < len; ++j) {
            if (k.transposed)
                visit(k.row + j, k.col + i, at + j);
            else
                visit(k.row + i, k.col + j, at + j);
        }
        at += step;
        step += k.dstep;
        len += k.dlen;
    }
}
// Call visit(row, col, value) for every number of a block.
template <class T, class Visit>
GNEWT_INLINE void for_each(const Block& k, const T* src, Visit visit) {
    for_places(k, [&](int64_t i, int64_t j, int64_t at) GNEWT_LAMBDA { visit(i, j, src[at]); });
}

// Offset of row i of a block, and its length.
GNEWT_INLINE int64_t row_start(const Block& k, int64_t i) { return i * k.step + int64_t(k.dstep) * i * (i - 1) / 2; }
GNEWT_INLINE int64_t row_length(const Block& k, int64_t i) { return k.len + i * k.dlen; }

// Call visit(col, value) for every number of a block in one row of its part.
template <class T, class Visit>
GNEWT_INLINE void for_row(const Block& k, const T* src, int64_t row, Visit visit) {
    const int64_t i = row - k.row;
    if (i < 0) return;
    if (!k.transposed) {
        if (i >= k.rows) return;
        src += row_start(k, i);
        for (int64_t j = 0; j < row_length(k, i); ++j) visit(k.col + j, src[j]);
    } else {
        for (int64_t j = 0; j < k.rows; ++j)
            if (i < row_length(k, j)) visit(k.col + j, src[row_start(k, j) + i]);
    }
}

// Call visit(j, value) for the pairs j that pair `row` of a front reads, with the entries of G.
template <class T, class Visit>
GNEWT_INLINE void for_reads(const Front& front, const T* sources, int64_t row, Visit visit) {
    for (int32_t k = 0; k < front.shape.num_blocks; ++k)
        if (front.shape.blocks[k].kind == kG) for_row(front.shape.blocks[k], sources + front.sources[k], row, visit);
}

// Call run(length), with the length as a constant where the length is common: short loops are slower than their bodies.
template <class Run>
GNEWT_INLINE void with_length(int64_t len, Run run) {
    if (len == 4) return run(Length<4>{});
    if (len == 1) return run(Length<1>{});
    if (len == 2) return run(Length<2>{});
    if (len == 6) return run(Length<6>{});
    if (len == 8) return run(Length<8>{});
    if (len == 12) return run(Length<12>{});
    if (len == 24) return run(Length<24>{});
    run(len);
}

// Call visit(i, length, offset) for every row of a block.
template <class Visit>
GNEWT_INLINE void rows_of(const Block& k, Visit visit) {
    int64_t step = k.step, len = k.len, at = 0;
    if (k.dlen == 0)
        return with_length(len, [&](const auto length) {
            for (int32_t i = 0; i < k.rows; ++i, at += step, step += k.dstep) visit(i, length, at);
        });
    for (int32_t i = 0; i < k.rows; ++i, at += step, step += k.dstep, len += k.dlen) visit(i, len, at);
}

// Add a block to (or, where ADD is false, write it into) a row-major matrix.
template <class T, bool ADD>
inline void place(const Block& k, const T* __restrict src, T* __restrict to, int64_t ld) {
    to += k.row * ld + k.col;
    if (k.rows == 1 && k.len == 1) {
        *to = ADD ? *to + *src : *src;
        return;
    }
    if (k.transposed) {
        int64_t step = k.step, len = k.len;
        for (int32_t i = 0; i < k.rows; ++i, src += step, step += k.dstep, len += k.dlen, ++to)
            for (int64_t j = 0; j < len; ++j) to[j * ld] = ADD ? to[j * ld] + src[j] : src[j];
        return;
    }
    rows_of(k, [&](int32_t i, const auto len, int64_t at) {
        T* row = to + i * ld;
        const T* from = src + at;
        int64_t j = 0;
        for (; j + 4 <= len; j += 4) store4(row + j, ADD ? load4(row + j) + load4(from + j) : load4(from + j));
        for (; j < len; ++j) row[j] = ADD ? row[j] + from[j] : from[j];
    });
}

// The same where only the upper triangle of the matrix counts. Hessians come as packed lower triangles: these go by
// 4 × 4 transposes, and numbers behind their rows land below the diagonal. `room`: number of sources from `src` on.
template <class T, bool ADD>
inline void place_upper(const Block& k, const T* __restrict src, int64_t room, T* __restrict to, int64_t ld) {
    const bool triangle = k.transposed && k.len == 1 && k.dlen == 1 && k.row == k.col;
    const int64_t n = k.rows / 4 * 4;
    if (!triangle || n == 0 || room < row_start(k, n - 1) + n) return place<T, ADD>(k, src, to, ld);
    to += k.row * ld + k.col;
    for (int64_t i = 0; i < n; i += 4) {
        const T *a = src + row_start(k, i), *b = src + row_start(k, i + 1), *c = src + row_start(k, i + 2),
                *d = src + row_start(k, i + 3);
        for (int64_t j = 0; j <= i; j += 4) {
            Quad<T> x = load4(a + j), y = load4(b + j), z = load4(c + j), w = load4(d + j);
            transpose<T>(x, y, z, w);
            T* out = to + j * ld + i;
            store4(out, ADD ? load4(out) + x : x);
            store4(out + ld, ADD ? load4(out + ld) + y : y);
            store4(out + 2 * ld, ADD ? load4(out + 2 * ld) + z : z);
            store4(out + 3 * ld, ADD ? load4(out + 3 * ld) + w : w);
        }
    }
    for (int64_t i = n; i < k.rows; ++i) {
        const T* row = src + row_start(k, i);
        for (int64_t j = 0; j <= i; ++j) to[j * ld + i] = ADD ? to[j * ld + i] + row[j] : row[j];
    }
}

// Add the magnitudes that a block brings to the diagonal of its part.
template <class T>
GNEWT_INLINE void place_diagonal(const Block& k, const T* src, T* to) {
    const int64_t outer = k.transposed ? k.col : k.row, inner = k.transposed ? k.row : k.col;
    if (outer == inner && k.len > 0 && k.len + (k.rows - 1) * k.dlen >= k.rows) {
        int64_t at = 0, step = k.step + 1;
        for (int64_t i = 0; i < k.rows; ++i, at += step, step += k.dstep) to[outer + i] += abs(src[at]);
        return;
    }
    for (int64_t i = 0; i < k.rows; ++i) {
        const int64_t j = outer + i - inner;
        if (j >= 0 && j < row_length(k, i)) to[outer + i] += abs(src[row_start(k, i) + j]);
    }
}

// The magnitude that a block brings to entry (row, col) of its part.
template <class T>
inline T magnitude_at(const Block& k, const T* src, int64_t row, int64_t col) {
    const int64_t i = k.transposed ? col - k.col : row - k.row, j = k.transposed ? row - k.row : col - k.col;
    if (i < 0 || i >= k.rows || j < 0 || j >= row_length(k, i)) return 0;
    return abs(src[row_start(k, i) + j]);
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
