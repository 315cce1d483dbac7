// The rows of a front that is eliminated carefully, by panels: a row is brought up to date when the search looks at it,
// the rest of the matrix once per panel. The base of Careful (careful.hpp), which decides on pivots.
#pragma once
#include "ldl.hpp"
#include "noise.hpp"
#include "packed.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T>
class Panel {
protected:
    explicit Panel(const CarefulFront<T>& front)
        : f_(front),
          w_(front.scratch),
          v_(w_ + front.ld),
          unit_(v_ + front.ld),
          diagonal_(unit_ + front.ld),
          x_(diagonal_ + front.ld),
          used_(front.n + front.columns + front.probes),
          end_(padded<T>(used_)),
          most_(front.n < kWide ? kRows : kWideRows) {
        for (int64_t i = 0; i < f_.n; ++i) {
            f_.place[i] = f_.origin[i] = int32_t(i);
            f_.null[i] = 0;
        }
        std::memset(f_.off, 0, size_t(f_.candidates) * sizeof(T));
        std::memset(f_.scratch, 0, size_t(4 * f_.ld) * sizeof(T));
    }

    // Numbers of scratch memory for a front of n rows.
    static int64_t scratch_size(int64_t n, int64_t ld) {
        return 4 * ld + max(CarefulFront<T>::scratch_of_noise(n), packed_size<T>(ld));
    }

    // Copy row c of what is left to w, brought up to date: entries before c come from its column.
    void fetch(int64_t c, T* w) {
        for (int64_t i = top_; i < c; ++i) w[i] = f_.r[i * f_.ld + c];
        std::memcpy(w + c, f_.r + c * f_.ld + c, size_t(used_ - c) * sizeof(T));
        const int64_t j = floor_to_vector<T>(top_);
        if (top_ == first_) return;
        apply(c, j, w + j);
        if (bare(c))
            for (int64_t i = top_; i < f_.n; ++i) flush(w[i], c, i);
    }

    // Subtract from row c, whose column j is at `row`, what the panel eliminates in the columns from j on.
    void apply(int64_t c, int64_t j, T* row) const {
        const View<T> out{row, f_.ld};
        row_of_tiles<T, 1, kSubtract>(top_ - first_, {f_.l + first_ * f_.n + c, f_.n},
                                      {f_.r + first_ * f_.ld + j, f_.ld}, out, out, end_ - j);
    }

    // Whether row c is bare: nothing was ever added to its diagonal, so its bound says nothing of noise in the row. (A
    // 2×2 pivot may change a bare row: where one partner is coupled with the row, and the other partner with something
    // else.) Rows of states and duals, in a free plan, do not count: duals are bare as a rule.
    bool bare(int64_t c) const { return f_.bound[c] == 0 && f_.ids[c] < f_.primal; }

    // Make entry (c, i) zero where the panel, just applied to the entry, left rounding only.
    void flush(T& entry, int64_t c, int64_t i) const {
        if (entry == 0) return;
        T before = entry, size = 0;
        for (int64_t k = first_; k < top_; ++k) {
            const T part = f_.l[k * f_.n + c] * f_.r[k * f_.ld + i];
            before += part;
            size += abs(part);
        }
        if (abs(entry) <= rounding(abs(before) + size)) entry = 0;
    }

    // Apply the panel to all other rows, or to those from `from` on where the others are up to date.
    void update() { update_rows(top_); }
    void update_rows(int64_t from) {
        const int64_t k = top_ - first_;
        multiply_upper<T, kSubtract>(k, {from, f_.n, kUpper, used_}, {f_.l + first_ * f_.n, f_.n},
                                     {f_.r + first_ * f_.ld, f_.ld}, {f_.r, f_.ld}, x_);
        for (int64_t c = top_; c < f_.n && top_ > first_; ++c)
            if (bare(c))
                for (int64_t i = top_; i < f_.n; ++i) flush(i < c ? f_.r[i * f_.ld + c] : f_.r[c * f_.ld + i], c, i);
        first_ = top_;
    }

    // Find units, and copy the diagonal. Growth is measured in units in which the bounds on the diagonal are one, so
    // that growth does not depend on the user's units. A row without a bound is measured by its largest entry.
    void find_units() {
        const T* bound = f_.bound;
        bool all = true;
        for (int64_t i = top_; i < f_.n; ++i) all = all && bound[i] > 0;
        T* largest = w_;
        if (!all) find_largest(largest);
        for (int64_t i = top_; i < f_.n; ++i) {
            const T size = bound[i] > 0 ? bound[i] : largest[i];
            unit_[i] = size > 0 ? 1 / std::sqrt(size) : T(1);
            diagonal_[i] = f_.r[i * (f_.ld + 1)];
        }
    }

    // The largest entry of every row of what is left.
    void find_largest(T* largest) const {
        for (int64_t i = top_; i < f_.n; ++i) largest[i] = 0;
        for (int64_t i = top_; i < f_.n; ++i) {
            const T* row = f_.r + i * f_.ld;
            T in_row = largest[i];
            for (int64_t j = i; j < f_.n; ++j) {
                in_row = max(in_row, abs(row[j]));
                largest[j] = max(largest[j], abs(row[j]));
            }
            largest[i] = in_row;
        }
    }

    // The largest |w[i]| in units, over i in [from, to).
    T largest(const T* w, int64_t from, int64_t to) const {
        T out = 0;
        int64_t i = from;
        if (from + kWidth<T> <= to) {
            Vec<T> top{};
            for (; i + kWidth<T> <= to; i += kWidth<T>) {
                const Vec<T> size = vabs<T>(load(w + i)) * load(unit_ + i);
                top = size > top ? size : top;
            }
            for (int64_t j = 0; j < kWidth<T>; ++j) out = max(out, top[j]);
        }
        for (; i < to; ++i) out = max(out, abs(w[i]) * unit_[i]);
        return out;
    }

    // The largest |w[i]| in units, over all rows of what is left but x and y, x <= y.
    T largest_but(const T* w, int64_t x, int64_t y) const {
        return max(max(largest(w, top_, x), largest(w, x + 1, y)), largest(w, y + 1, f_.n));
    }

    // Whether all entries of a row are finite.
    bool sound(const T* w) const {
        T probe = 0;
        for (int64_t i = top_; i < f_.n; ++i) probe += w[i] * 0;
        return probe == 0;
    }

    // Exchange two rows, with all that belongs to the rows.
    void exchange(int64_t x, int64_t y) {
        if (x == y) return;
        if (x > y) swap(x, y);
        swap(f_.ids[x], f_.ids[y]);
        swap(f_.bound[x], f_.bound[y]);
        swap(unit_[x], unit_[y]);
        swap(diagonal_[x], diagonal_[y]);
        swap(f_.origin[x], f_.origin[y]);
        f_.place[f_.origin[x]] = int32_t(x);
        f_.place[f_.origin[y]] = int32_t(y);
        swap(w_[x], w_[y]);
        swap(v_[x], v_[y]);
        T* r = f_.r;
        const int64_t ld = f_.ld;
        for (int64_t k = 0; k < top_; ++k) swap(f_.l[k * f_.n + x], f_.l[k * f_.n + y]);
        for (int64_t k = first_; k < x; ++k) swap(r[k * ld + x], r[k * ld + y]);
        swap(r[x * ld + x], r[y * ld + y]);
        for (int64_t i = x + 1; i < y; ++i) swap(r[x * ld + i], r[i * ld + y]);
        for (int64_t j = y + 1; j < used_; ++j) swap(r[x * ld + j], r[y * ld + j]);
    }

    // Count rows that have been taken as pivots.
    void advance(int64_t rows) {
        top_ += rows;
        if (top_ - first_ >= most_) update();
    }

    const CarefulFront<T> f_;
    T *w_, *v_, *unit_;            // two rows that the search looks at; units
    T *diagonal_, *x_;             // the diagonal of what is left, up to date; work space
    const int64_t used_, end_;     // columns with right-hand sides and probes; the same number in whole vectors
    int64_t first_ = 0, top_ = 0;  // the panel: rows from first_ to top_ are taken, but not applied to the others yet

private:
    // Rows of a panel. A row is brought up to date with the panel whenever the search looks at it: long panels pay
    // where the product that applies a panel outweighs these looks.
    static constexpr int64_t kRows = 16, kWideRows = 32;

    const int64_t most_;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
