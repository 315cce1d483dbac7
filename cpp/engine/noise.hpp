// What is noise in a front that is eliminated carefully.
#pragma once
#include "blocks.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T>
inline T rounding(T size) {
    return T(kNoise) * Precision<T>::eps * size;
}

// x · y of long vectors: four sums at a time, since one would wait for itself.
template <class T>
inline T long_dot(const T* x, const T* y, int64_t n) {
    constexpr int64_t w = kWidth<T>;
    Vec<T> a{}, b{}, c{}, d{};
    int64_t i = 0;
    for (; i + 4 * w <= n; i += 4 * w) {
        a += load(x + i) * load(y + i);
        b += load(x + i + w) * load(y + i + w);
        c += load(x + i + 2 * w) * load(y + i + 2 * w);
        d += load(x + i + 3 * w) * load(y + i + 3 * w);
    }
    return sum<T>((a + b) + (c + d)) + dot(x + i, y + i, n - i);
}

// A front whose first `candidates` rows are to be eliminated, where that is stable.
//
// r[n, ld] is row-major upper, right-hand sides in the columns n..; bound[j] the sum of the magnitudes that were added into the
// diagonal entry j. An entry (i, j) that is no larger than rounding of √(bound[i]·bound[j]) counts as zero: for
// sums of squares, this is what went into it at most.
template <class T>
struct CarefulFront {
    T* r;
    int64_t ld, n, candidates, columns;
    T* bound;
    const T* given;    // [n] `bound` as it was before any row was eliminated, in the order in which rows came
    const T* local;    // [n] the part of it that arose in this front and does not come through pairs, in the same order
    const T* f;        // [pairs, ld] pairs that were substituted, x_p = F x, in the same order; and the noise in their diagonals
    const T* pair_bound;
    int64_t pairs;
    int32_t* ids;      // [n] names of the rows, exchanged with them
    int32_t* place;    // [n] where the row that came i-th stands now
    int32_t* origin;   // [n] the inverse
    int8_t* null;      // [n] rows that are rounding noise altogether
    T* l;              // [candidates, n] on return: D on its diagonal, L = D⁻¹U right of it
    T* off;            // [candidates] off[k] couples k and k + 1 in a 2×2 pivot
    T* y;              // [candidates, columns] right-hand sides as rows of L
    T* scratch;        // [4, ld]
    int32_t primal;    // names below this are no duals

    // What is noise in the diagonal entry of row c, with `top` rows eliminated: [-x; 1]ᵀ N [-x; 1] with x = A⁻¹a for the eliminated block A and
    // its column a, where N is the noise in the front as it came; and what the elimination added. Noise comes through pairs as the closed
    // loop lets it: F_c - F_A x, which is small where F is large but inputs counter it. A pivot that cancelled makes x large.
    T uncertainty(int64_t c, int64_t top, T* x) const {
        T sum = bound[c] - given[origin[c]] + local[origin[c]];
        for (int64_t k = top - 1; k >= 0; --k) {
            const T* row = l + k * n;
            x[k] = row[c] - long_dot(row + k + 1, x + k + 1, top - k - 1);
            sum += x[k] * x[k] * local[origin[k]];
        }
        for (int64_t i = 0; i < pairs; ++i) {
            const T* row = f + i * ld;
            T closed = row[origin[c]];
            for (int64_t k = 0; k < top; ++k) closed -= row[origin[k]] * x[k];
            sum += pair_bound[i] * closed * closed;
        }
        return sum;
    }
};

// The magnitudes that sources added into the entries of a front, whose first `late` rows have no sources.
template <class T>
class Assembled {
public:
    Assembled(const Front& front, const T* sources, int64_t late, T* rows) : front_(front), sources_(sources), late_(late), rows_(rows) {}

    T operator()(int64_t i, int64_t j) const {
        if (i < late_ || j < late_) return 0;
        T sum = 0;
        for_blocks([&](const Block& block, const T* from) { sum += magnitude_at(block, from, min(i, j) - late_, max(i, j) - late_); });
        return sum;
    }

    // No less than that, without looking through all blocks: the smaller one of two sums over whole rows.
    T at_most(int64_t i, int64_t j) {
        if (i < late_ || j < late_) return 0;
        if (!ready_) {
            std::memset(rows_, 0, size_t(front_.shape.q + front_.shape.b) * sizeof(T));
            for_blocks([&](const Block& block, const T* from) {
                for_each(block, from, [&](int64_t row, int64_t col, T value) {
                    rows_[row] += abs(value);
                    rows_[col] += abs(value);
                });
            });
            ready_ = true;
        }
        return min(rows_[i - late_], rows_[j - late_]);
    }

private:
    template <class Visit>
    void for_blocks(Visit visit) const {
        for (int32_t k = 0; k < front_.shape.num_blocks; ++k)
            if (front_.shape.blocks[k].kind == kR) visit(front_.shape.blocks[k], sources_ + front_.sources[k]);
    }

    const Front& front_;
    const T* sources_;
    const int64_t late_;
    T* rows_;
    bool ready_ = false;
};

// The bound of an unknown that has nothing on its diagonal says nothing of noise in its row: make entries zero that are rounding.
template <class T>
inline void flush_row(int64_t row, int64_t p, int64_t n, int64_t ld, const T* f, const T* w, const T* c, T* r) {
    for (int64_t j = 0; j < n; ++j) {
        T& entry = j < row ? r[j * ld + row] : r[row * ld + j];
        T size = 0;
        for (int64_t i = 0; i < p; ++i)
            size += abs(f[i * ld + row]) * (abs(w[i * ld + j]) + abs(c[i * ld + j])) +
                    abs(f[i * ld + j]) * (abs(w[i * ld + row]) + abs(c[i * ld + row]));
        if (abs(entry) <= rounding(size)) entry = 0;
    }
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
