// Messages: Schur complements that wait on a stack; and how the quick elimination adds them to parts of their parent.
#pragma once
#include "plan_view.hpp"
#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// A message is the upper triangle of [m, ld], what was summed into its diagonal [ld], and the right-hand sides [m, columns]. Its first
// `delayed` rows are unknowns that the child could not eliminate, the others the separator of the plan.
struct Message {
    int64_t at, end;  // in the stack of numbers
    int32_t front, delayed = 0;
};

template <class T>
inline int64_t message_size(int64_t m, int64_t columns) {
    return (m + 1) * padded<T>(m) + padded<T>(m * columns);
}

// Add a rectangle, its upper triangle, or its transpose (by strips, so that what is written stays in the cache).
template <class T>
inline void add_rectangle(const T* from, int64_t ldb, int32_t rows, int32_t cols, bool triangle, bool flipped, T* to,
                          int64_t ld) {
    constexpr int32_t strip = 8;
    for (int32_t first = 0; flipped && first < cols; first += strip)
        for (int32_t i = 0; i < rows; ++i)
            for (int32_t j = first; j < min(first + strip, cols); ++j) to[j * ld + i] += from[i * ldb + j];
    for (int32_t i = 0; !flipped && i < rows; ++i, from += ldb)
        for (int32_t j = triangle ? i : 0; j < cols; ++j) to[i * ld + j] += from[j];
}

template <class T>
struct Messages {
    const PlanView& plan;
    const Message* first;
    int32_t count;
    const T* stack;
    int64_t columns;

    // PP, C, the right-hand sides of the pairs and the magnitudes of their diagonal get what touches pairs.
    void add_to_pairs(int64_t p, T* pp, int64_t ldp, T* v, T* c, int64_t ld, T* weight) const {
        for (int32_t k = 0; k < count; ++k) {
            const Shape child = plan.front(first[k].front).shape;
            const int64_t ldb = padded<T>(child.b);
            const T *schur = stack + first[k].at, *sizes = schur + child.b * ldb, *carried = sizes + ldb;
            for (int32_t x = 0; x < child.num_runs; ++x) {
                const int32_t* rows = child.runs + 3 * x;
                for (int32_t y = x; y < child.num_runs; ++y) {
                    const int32_t* cols = child.runs + 3 * y;
                    const bool flipped = cols[1] < rows[1];
                    const int64_t low = flipped ? cols[1] : rows[1], high = flipped ? rows[1] : cols[1];
                    if (low >= p) continue;
                    T* to = high < p ? pp + low * ldp + high : c + low * ld + high - p;
                    add_rectangle(schur + rows[0] * ldb + cols[0], ldb, rows[2], cols[2], x == y, flipped, to,
                                  high < p ? ldp : ld);
                }
                if (rows[1] >= p) continue;
                add(v + rows[1] * columns, carried + rows[0] * columns, rows[2] * columns);
                for (int32_t i = 0; i < rows[2]; ++i) weight[rows[1] + i] += sizes[rows[0] + i];
            }
        }
    }

    // R, its right-hand sides [columns, ldr] and the magnitudes of its diagonal get the rest.
    void add_to_rest(int64_t p, T* r, int64_t ld, T* rho, int64_t ldr, T* size) const {
        for (int32_t k = 0; k < count; ++k) {
            const Shape child = plan.front(first[k].front).shape;
            const int64_t ldb = padded<T>(child.b);
            const T *schur = stack + first[k].at, *sizes = schur + child.b * ldb, *carried = sizes + ldb;
            for (int32_t x = 0; x < child.num_runs; ++x) {
                const int32_t* rows = child.runs + 3 * x;
                if (rows[1] < p) continue;
                const int64_t home = rows[1] - p;
                for (int32_t y = x; y < child.num_runs; ++y) {
                    const int32_t* cols = child.runs + 3 * y;
                    if (cols[1] < p) continue;
                    const bool flipped = cols[1] < rows[1];
                    const int64_t other = cols[1] - p;
                    T* to = flipped ? r + other * ld + home : r + home * ld + other;
                    add_rectangle(schur + rows[0] * ldb + cols[0], ldb, rows[2], cols[2], x == y, flipped, to, ld);
                }
                for (int32_t i = 0; i < rows[2]; ++i) {
                    const int64_t from = rows[0] + i;
                    for (int64_t j = 0; j < columns; ++j) rho[j * ldr + home + i] += carried[from * columns + j];
                    size[home + i] += sizes[from];
                }
            }
        }
    }

    // What messages bring to the diagonal of a front without pairs.
    void add_diagonals(T* diagonal) const {
        for (int32_t k = 0; k < count; ++k) {
            const Shape child = plan.front(first[k].front).shape;
            const T* schur = stack + first[k].at;
            for (int32_t x = 0; x < child.num_runs; ++x) {
                const int32_t* rows = child.runs + 3 * x;
                for (int64_t i = 0; i < rows[2]; ++i)
                    diagonal[rows[1] + i] += schur[(rows[0] + i) * (padded<T>(child.b) + 1)];
            }
        }
    }

    // The first column of C that may get something.
    int64_t first_column(int64_t p, int64_t columns_of_c) const {
        int64_t least = columns_of_c;
        for (int32_t k = 0; k < count; ++k) {
            const Shape child = plan.front(first[k].front).shape;
            for (int32_t x = 0; x < child.num_runs; ++x)
                if (child.runs[3 * x + 1] >= p) least = min(least, child.runs[3 * x + 1] - p);
        }
        return least;
    }

private:
    static void add(T* to, const T* from, int64_t n) {
        for (int64_t i = 0; i < n; ++i) to[i] += from[i];
    }
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
