// How the careful elimination adds messages, with delayed unknowns, to parts of their parent.
#pragma once
#include "messages.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T>
struct Children {
    const PlanView& plan;
    const Message* first;
    int32_t count;
    const T* stack;
    int64_t columns, late;

    // Where a child's unknowns stand in the parent: PP and C get what touches pairs. `runs` count in the plan's coordinates [p | q | b],
    // the delayed stand at `at` in [late | q | b].
    void add_to_pairs(int64_t p, T* pp, int64_t ldp, T* c, int64_t ld, T* bound) const {
        int64_t at = 0;
        for (int32_t k = 0; k < count; ++k) {
            const Shape child = plan.front(first[k].front).shape;
            const int64_t d = first[k].delayed, m = d + child.b, ldb = padded<T>(m);
            const T *schur = stack + first[k].at, *sizes = schur + m * ldb, *carried = sizes + ldb;
            for (int32_t x = 0; x < child.num_runs; ++x) {
                const int32_t* rows = child.runs + 3 * x;
                const int64_t row = d + rows[0];
                for (int32_t y = x; y < child.num_runs; ++y) {
                    const int32_t* cols = child.runs + 3 * y;
                    const bool flipped = cols[1] < rows[1];
                    const int64_t low = flipped ? cols[1] : rows[1], high = flipped ? rows[1] : cols[1];
                    if (low >= p) continue;
                    T* to = high < p ? pp + low * ldp + high : c + low * ld + late + high - p;
                    add_rectangle(schur + row * ldb + d + cols[0], ldb, rows[2], cols[2], x == y, flipped, to,
                                  high < p ? ldp : ld);
                }
                if (rows[1] >= p) continue;
                for (int32_t i = 0; i < rows[2]; ++i) {
                    for (int64_t j = 0; j < columns; ++j)
                        pp[(rows[1] + i) * ldp + p + j] += carried[(row + i) * columns + j];
                    for (int64_t j = 0; j < d; ++j) c[(rows[1] + i) * ld + at + j] += schur[j * ldb + row + i];
                    bound[rows[1] + i] += sizes[row + i];
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
            const int64_t d = first[k].delayed, m = d + child.b, ldb = padded<T>(m);
            const T *schur = stack + first[k].at, *sizes = schur + m * ldb, *carried = sizes + ldb;
            for (int64_t i = 0; i < d; ++i) {
                T* to = r + (at + i) * ld;
                const T* from = schur + i * ldb;
                for (int64_t j = i; j < d; ++j) to[at + j] += from[j];
                for (int64_t j = 0; j < columns; ++j) to[n + j] += carried[i * columns + j];
                bound[at + i] += sizes[i];
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
                    add_rectangle(schur + row * ldb + d + cols[0], ldb, rows[2], cols[2], x == y, flipped, to, ld);
                }
                for (int32_t i = 0; i < rows[2]; ++i) {
                    for (int64_t j = 0; j < columns; ++j)
                        r[(home + i) * ld + n + j] += carried[(row + i) * columns + j];
                    bound[home + i] += sizes[row + i];
                }
            }
            at += d;
        }
    }
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
