// Messages: Schur complements that wait on a stack for the parent front; and how messages are added to the parts of the
// parent. Both eliminations write messages; quick.hpp, fronts.hpp and gathering.hpp add messages to a front.
#pragma once
#include "gemm.hpp"
#include "plan_view.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// A message of m rows: the first `delayed` rows are unknowns that the child could not eliminate, the others are the
// separator of the plan.
struct Message {
    int64_t at, end;  // in the stack of numbers
    int32_t front, delayed = 0;
};

template <class T>
inline int64_t message_size(int64_t m, int64_t columns) {
    return (m + 1) * padded<T>(m) + padded<T>(m * columns);
}

// The numbers of a message, one part behind the other.
template <class T>
struct MessageParts {
    T* schur;  // [m, ld], upper triangle
    int64_t ld;
    T* sizes;    // [ld] what was summed into the diagonal
    T* carried;  // [m, columns] right-hand sides
};
template <class T>
GNEWT_INLINE MessageParts<T> message_parts(T* at, int64_t m) {
    const int64_t ld = padded<T>(m);
    return {at, ld, at + m * ld, at + (m + 1) * ld};
}

inline const RunRecord* runs_of(const Shape& shape) { return reinterpret_cast<const RunRecord*>(shape.runs); }

// Right-hand sides of a front: that of row i and column j is at[i * row_step + j * column_step].
template <class T>
struct Rhs {
    T* at;
    int64_t row_step, column_step;
};

// The parts of a front that have to do with pairs: PP [p, p] and C [p, n], upper; right-hand sides and weights [p].
template <class T>
struct PairTargets {
    int64_t p;
    View<T> pp, c;
    Rhs<T> v;
    T* weight;
};

// The other parts: R [n, n], upper; right-hand sides and sizes [n].
template <class T>
struct RestTargets {
    int64_t p;
    View<T> r;
    Rhs<T> rho;
    T* size;
};

// Messages to one front. Runs count in the plan's coordinates [p | q | b] of the parent; its parts without pairs are
// [late | q | b], where the `late` unknowns were delayed by children, in the order of the messages.
template <class T>
struct Messages {
    const PlanView& plan;
    const Message* first;
    int32_t count;
    const T* stack;
    int64_t columns, late = 0;

    void add_to_pairs(const PairTargets<T>& to) const {
        for_all([&](const Received& from, int64_t delayed_at) GNEWT_LAMBDA {
            for (int32_t x = 0; x < from.num_runs; ++x) {
                const RunRecord& rows = from.runs[x];
                for (int32_t y = x; y < from.num_runs; ++y) {
                    const int64_t place = rows.place, other = from.runs[y].place;
                    const int64_t low = min(place, other), high = max(place, other);
                    if (low >= to.p) continue;
                    from.add_rectangle(x, y, high < to.p ? to.pp.from(low, high) : to.c.from(low, late + high - to.p));
                }
                if (rows.place >= to.p) continue;
                add_run(from, rows, rows.place, to.v, to.weight);
                for (int64_t i = 0; i < (from.delayed ? rows.length : 0); ++i) {
                    T* row = to.c.at + (rows.place + i) * to.c.ld + delayed_at;
                    for (int64_t j = 0; j < from.delayed; ++j) row[j] += from.entry(j, from.delayed + rows.start + i);
                }
            }
        });
    }

    void add_to_rest(const RestTargets<T>& to) const {
        for_all([&](const Received& from, int64_t delayed_at) GNEWT_LAMBDA {
            if (from.delayed) add_delayed(from, delayed_at, to);
            for (int32_t x = 0; x < from.num_runs; ++x) {
                const RunRecord& rows = from.runs[x];
                if (rows.place < to.p) continue;
                const int64_t home = late + rows.place - to.p;
                for (int32_t y = x; y < from.num_runs; ++y) {
                    if (from.runs[y].place < to.p) continue;
                    const int64_t other = late + from.runs[y].place - to.p;
                    from.add_rectangle(x, y, to.r.from(min(home, other), max(home, other)));
                }
                add_run(from, rows, home, to.rho, to.size);
            }
        });
    }

    // What messages bring to the diagonal of a front without pairs.
    void add_diagonals(T* diagonal) const {
        for_all([&](const Received& from, int64_t) GNEWT_LAMBDA {
            for (int32_t x = 0; x < from.num_runs; ++x)
                for (int64_t i = 0; i < from.runs[x].length; ++i)
                    diagonal[from.runs[x].place + i] += from.entry(from.runs[x].start + i, from.runs[x].start + i);
        });
    }

    // The first column of C, which has `n` columns, that messages may add to.
    int64_t first_column(int64_t p, int64_t n) const {
        int64_t least = n;
        for_all([&](const Received& from, int64_t) GNEWT_LAMBDA {
            for (int32_t x = 0; x < from.num_runs; ++x)
                if (from.runs[x].place >= p) least = min(least, int64_t(from.runs[x].place - p));
        });
        return least;
    }

private:
    struct Received : MessageParts<const T> {
        const RunRecord* runs;
        int32_t num_runs;
        int64_t delayed;

        T entry(int64_t i, int64_t j) const { return this->schur[i * this->ld + j]; }

        // Add the rows of run x and the columns of run y to the upper triangle of `to`. The rectangle is transposed
        // where the parent has the runs in the other order: by strips, so that lines that are written stay in the
        // cache.
        GNEWT_INLINE void add_rectangle(int32_t x, int32_t y, View<T> to) const {
            constexpr int32_t strip = 8;
            const int32_t rows = runs[x].length, cols = runs[y].length;
            const T* from = this->schur + (delayed + runs[x].start) * this->ld + delayed + runs[y].start;
            if (runs[y].place < runs[x].place)
                for (int32_t first = 0; first < cols; first += strip)
                    for (int32_t i = 0; i < rows; ++i)
                        for (int32_t j = first; j < min(first + strip, cols); ++j)
                            to.at[j * to.ld + i] += from[i * this->ld + j];
            else
                for (int32_t i = 0; i < rows; ++i, from += this->ld)
                    for (int32_t j = x == y ? i : 0; j < cols; ++j) to.at[i * to.ld + j] += from[j];
        }
    };

    // Call visit(message, place of its delayed unknowns in the parent) for all messages.
    template <class Visit>
    GNEWT_INLINE void for_all(Visit visit) const {
        int64_t delayed_at = 0;
        for (int32_t k = 0; k < count; ++k) {
            const Shape child = plan.front(first[k].front).shape;
            const int64_t delayed = first[k].delayed;
            visit(Received{message_parts(stack + first[k].at, delayed + child.b), runs_of(child), child.num_runs,
                           delayed},
                  delayed_at);
            delayed_at += delayed;
        }
    }

    // Add the right-hand sides and sizes of one run, whose first row has the place `home`.
    GNEWT_INLINE void add_run(const Received& from, const RunRecord& rows, int64_t home, const Rhs<T>& rhs,
                              T* sizes) const {
        const int64_t row = from.delayed + rows.start, length = rows.length;
        for (int64_t j = 0; j < columns; ++j)
            for (int64_t i = 0; i < length; ++i)
                rhs.at[(home + i) * rhs.row_step + j * rhs.column_step] += from.carried[(row + i) * columns + j];
        for (int64_t i = 0; i < length; ++i) sizes[home + i] += from.sizes[row + i];
    }

    // Add the rows of delayed unknowns to R, from row `at` on.
    void add_delayed(const Received& from, int64_t at, const RestTargets<T>& to) const {
        const int64_t d = from.delayed;
        for (int64_t i = 0; i < d; ++i) {
            T *row = to.r.at + (at + i) * to.r.ld, *rhs = to.rho.at + (at + i) * to.rho.row_step;
            for (int64_t j = i; j < d; ++j) row[at + j] += from.entry(i, j);
            for (int32_t x = 0; x < from.num_runs; ++x) {
                const RunRecord& cols = from.runs[x];
                for (int64_t j = 0; j < (cols.place < to.p ? 0 : cols.length); ++j)
                    row[late + cols.place - to.p + j] += from.entry(i, d + cols.start + j);
            }
            for (int64_t j = 0; j < columns; ++j) rhs[j * to.rho.column_step] += from.carried[i * columns + j];
            to.size[at + i] += from.sizes[i];
        }
    }
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
