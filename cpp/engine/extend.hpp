// Messages of the children: Schur complements that wait on a stack, and are added to parts of their parent.
#pragma once
#include "plan_view.hpp"
#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// A message is [m, ld] upper with the right-hand sides in its last columns, then the m bounds of its diagonal. Its first
// `delayed` rows are unknowns that the child could not eliminate, the others the separator of the plan.
struct Waiting {
    int64_t at, end;  // in the stack of numbers
    int64_t ids_at;   // where the names of the delayed begin
    int32_t front, delayed;
};

template <class T>
struct Children {
    const PlanView& plan;
    const Waiting* first;
    int32_t count;
    const T* stack;
    int64_t columns, late;

    // Where a child's unknowns stand in the parent: PP and C get what touches pairs. `runs` count in the plan's coordinates [p | q | b],
    // the delayed stand at `at` in [late | q | b].
    void add_to_pairs(int64_t p, T* pp, int64_t ldp, T* c, int64_t ld, T* bound) const {
        int64_t at = 0;
        for (int32_t k = 0; k < count; ++k) {
            const Shape child = plan.front(first[k].front).shape;
            const int64_t d = first[k].delayed, m = d + child.b, ldb = padded<T>(m + columns);
            const T* schur = stack + first[k].at;
            for (int32_t x = 0; x < child.num_runs; ++x) {
                const int32_t* rows = child.runs + 3 * x;
                const int64_t row = d + rows[0];
                for (int32_t y = x; y < child.num_runs; ++y) {
                    const int32_t* cols = child.runs + 3 * y;
                    const bool flipped = cols[1] < rows[1];
                    const int64_t low = flipped ? cols[1] : rows[1], high = flipped ? rows[1] : cols[1];
                    if (low >= p) continue;
                    T* to = high < p ? pp + low * ldp + high : c + low * ld + late + high - p;
                    add(schur + row * ldb + d + cols[0], ldb, rows[2], cols[2], x == y, flipped, to, high < p ? ldp : ld);
                }
                if (rows[1] >= p) continue;
                for (int32_t i = 0; i < rows[2]; ++i) {
                    for (int64_t j = 0; j < columns; ++j) pp[(rows[1] + i) * ldp + p + j] += schur[(row + i) * ldb + m + j];
                    for (int64_t j = 0; j < d; ++j) c[(rows[1] + i) * ld + at + j] += schur[j * ldb + row + i];
                    bound[rows[1] + i] += schur[m * ldb + row + i];
                }
            }
            at += d;
        }
    }

    // R and its bounds get the rest.
    void add_to_rest(int64_t p, int64_t n, T* r, int64_t ld, T* bound) const {
        int64_t at = 0;
        for (int32_t k = 0; k < count; ++k) {
            const Shape child = plan.front(first[k].front).shape;
            const int64_t d = first[k].delayed, m = d + child.b, ldb = padded<T>(m + columns);
            const T* schur = stack + first[k].at;
            for (int64_t i = 0; i < d; ++i) {
                T* to = r + (at + i) * ld;
                const T* from = schur + i * ldb;
                for (int64_t j = i; j < d; ++j) to[at + j] += from[j];
                for (int64_t j = 0; j < columns; ++j) to[n + j] += from[m + j];
                bound[at + i] += schur[m * ldb + i];
            }
            for (int32_t x = 0; x < child.num_runs; ++x) {
                const int32_t* rows = child.runs + 3 * x;
                if (rows[1] < p) continue;
                const int64_t row = d + rows[0], home = late + rows[1] - p;
                for (int64_t i = 0; i < d; ++i)
                    for (int32_t j = 0; j < rows[2]; ++j) r[(at + i) * ld + home + j] += schur[i * ldb + row + j];
                for (int32_t y = x; y < child.num_runs; ++y) {
                    const int32_t* cols = child.runs + 3 * y;
                    if (cols[1] < p) continue;
                    const bool flipped = cols[1] < rows[1];
                    const int64_t other = late + cols[1] - p;
                    T* to = flipped ? r + other * ld + home : r + home * ld + other;
                    add(schur + row * ldb + d + cols[0], ldb, rows[2], cols[2], x == y, flipped, to, ld);
                }
                for (int32_t i = 0; i < rows[2]; ++i) {
                    for (int64_t j = 0; j < columns; ++j) r[(home + i) * ld + n + j] += schur[(row + i) * ldb + m + j];
                    bound[home + i] += schur[m * ldb + row + i];
                }
            }
            at += d;
        }
    }

private:
    // Add a rectangle, its upper triangle, or its transpose.
    static void add(const T* from, int64_t ldb, int32_t rows, int32_t cols, bool triangle, bool flipped, T* to, int64_t ld) {
        for (int32_t i = 0; i < rows; ++i, from += ldb) {
            if (flipped)
                for (int32_t j = 0; j < cols; ++j) to[j * ld + i] += from[j];
            else
                for (int32_t j = triangle ? i : 0; j < cols; ++j) to[i * ld + j] += from[j];
        }
    }
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
