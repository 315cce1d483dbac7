// A = Uᵀ D⁻¹ U with 1×1 and 2×2 pivots that are searched and tested; what finds no stable pivot stays. The counterpart of
// kkt/pivots.py, by panels: rows are brought up to date when they are looked at, the rest of the matrix once per panel.
#pragma once
#include "ldl.hpp"
#include "noise.hpp"
#include "packed.hpp"
#include "pivots.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T, class Assembled>
class Careful {
public:
    // `assembled(i, j)`: the sum of magnitudes that sources added into an entry, in the order in which rows came; at_most(i, j): no less.
    Careful(const CarefulFront<T>& front, Assembled assembled, Tally& tally)
        : f_(front), assembled_(assembled), tally_(tally), w_(front.scratch), v_(w_ + front.ld), unit_(v_ + front.ld), diagonal_(unit_ + front.ld),
          x_(diagonal_ + front.ld), used_(front.n + front.columns + front.probes), end_(padded<T>(used_)), panel_(front.n < kWide ? 16 : 32), first_(0), top_(0) {
        for (int64_t i = 0; i < f_.n; ++i) {
            f_.place[i] = f_.origin[i] = int32_t(i);
            f_.null[i] = 0;
        }
        std::memset(f_.off, 0, size_t(f_.candidates) * sizeof(T));
        std::memset(f_.scratch, 0, size_t(4 * f_.ld) * sizeof(T));
    }

    // Numbers of scratch memory for a front of n rows.
    static int64_t scratch_size(int64_t n, int64_t ld) { return 4 * ld + max(CarefulFront<T>::scratch_of_noise(n), packed_size<T>(ld)); }

    // Take the pair of a state and its dual, if the dual has no diagonal entry: [[L, -1], [-1, 0]] has an inverse without
    // division, so it needs no test however large L is. To be called before `eliminate`.
    void substitute(int64_t state, int64_t dual) {
        const int64_t x = f_.place[state], y = f_.place[dual];
        if (f_.bound[y] != 0) return;
        fetch(x, w_);
        fetch(y, v_);
        if (w_[y] == 0) return;
        pair(x, y);
    }

    // Eliminate what is stable; return how many rows that were in all, or -1 where a number is not finite.
    int64_t eliminate() {
        update();
        clean();
        find_units();
        for (int64_t i = top_; i < f_.n; ++i) diagonal_[i] = f_.r[i * (f_.ld + 1)];
        eliminate_in_order();
        // Entries that cancelled come last: what is uncertain in them is then passed on to few.
        if (!search()) return -1;
        strict_ = false;
        if (!search()) return -1;
        update();
        if (uncertain_ || f_.pairs)
            f_.uncertainties(top_, f_.n, top_, x_, f_.bound);
        mark_null();
        return top_;
    }

    // Whether a pivot was taken of a row that lost all of its entries: little is left of what was summed into its diagonal.
    bool lost() const { return lost_; }

private:
    // Take pivots until there is none; false where a number is not finite. A row that fails is looked at again after the
    // others: a pivot taken meanwhile may have changed it.
    bool search() {
        for (bool again = true; again && top_ < f_.candidates;) {
            again = false;
            int64_t last = f_.candidates;  // the rows from here on have failed
            for (int64_t c = top_; c < last;) {
                int64_t partner = -1;
                if (strict_ && cancelled(abs(diagonal_[c]), f_.bound[c])) {
                    ++c;
                } else if (!accept(c, partner)) {
                    if (broken_) return false;
                    if (strict_)
                        ++c;
                    else
                        exchange(c, --last);
                } else {
                    again = true;
                    if (partner < 0)
                        single(c);
                    else
                        pair(c, partner);
                    c = max(c + 1, top_);
                }
            }
        }
        return true;
    }

    // Row c of what is left, brought up to date: entries before c come from its column.
    void fetch(int64_t c, T* w) {
        for (int64_t i = top_; i < c; ++i) w[i] = f_.r[i * f_.ld + c];
        std::memcpy(w + c, f_.r + c * f_.ld + c, size_t(used_ - c) * sizeof(T));
        const int64_t j = floor_to_vector<T>(top_);
        if (top_ == first_) return;
        row_of_tiles<T, 1, kSubtract>(top_ - first_, f_.l + first_ * f_.n + c, f_.n, f_.r + first_ * f_.ld + j, f_.ld, w + j, f_.ld,
                                      w + j, f_.ld, end_ - j);
        if (bare(c))
            for (int64_t i = top_; i < f_.n; ++i) flush(w[i], c, i);
    }

    // Nothing was ever added to the diagonal of a bare row, and so its bound says nothing of noise in the row. (A pair may change
    // such a row: where one partner is coupled with it, and the other with something else.) Not duals: theirs are bare as a rule.
    bool bare(int64_t c) const { return f_.bound[c] == 0 && f_.ids[c] < f_.primal; }

    // Make entry (c, i) zero where the panel, which has just been applied to it, left rounding only.
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

    // Apply the panel to all other rows.
    void update() { update_rows(top_); }

    void update_rows(int64_t from) {
        const int64_t k = top_ - first_;
        const T *l = f_.l + first_ * f_.n, *u = f_.r + first_ * f_.ld;
        multiply_upper<T, kSubtract>(k, from, f_.n, used_, l, f_.n, u, f_.ld, f_.r, f_.ld, x_);
        for (int64_t c = top_; c < f_.n && top_ > first_; ++c)
            if (bare(c))
                for (int64_t i = top_; i < f_.n; ++i) flush(i < c ? f_.r[i * f_.ld + c] : f_.r[c * f_.ld + i], c, i);
        first_ = top_;
    }

    // Sources that cancelled leave rounding behind, which nothing on the diagonal of these rows would betray.
    void clean() {
        for (int64_t c = top_; c < f_.candidates; ++c) {
            if (f_.bound[c] > 0) continue;
            for (int64_t i = top_; i < f_.n; ++i) {
                T& entry = i < c ? f_.r[i * f_.ld + c] : f_.r[c * f_.ld + i];
                if (entry != 0 && rounded(entry, i, c, 0)) entry = 0;
            }
        }
    }

    // Growth is measured in units in which the magnitudes on the diagonal are one, so that it does not depend on the user's.
    // A row that has none is measured by its largest entry.
    void find_units() {
        const T* bound = f_.bound;
        bool all = true;
        for (int64_t i = top_; i < f_.n; ++i) all = all && bound[i] > 0;
        T* largest = w_;
        if (!all) {
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
        for (int64_t i = top_; i < f_.n; ++i) {
            const T size = bound[i] > 0 ? bound[i] : largest[i];
            unit_[i] = size > 0 ? 1 / std::sqrt(size) : T(1);
        }
    }

    T noise(int64_t i, int64_t j) const {
        return rounding(std::sqrt(f_.bound[i]) * std::sqrt(f_.bound[j]));
    }

    // Whether entry (i, c) may be what rounding left of sources that cancelled, besides `noise`.
    bool rounded(T entry, int64_t i, int64_t c, T noise) {
        const int64_t x = f_.origin[i], y = f_.origin[c];
        return !(abs(entry) > noise + rounding(assembled_.at_most(x, y))) && abs(entry) <= noise + rounding(assembled_(x, y));
    }

    // Whether a pivot `size` of row c, which is in w, is more than noise.
    bool certain(const T* w, int64_t c, T size) const {
        return size > rounding(f_.likely_uncertainty(c, w)) || size > rounding(f_.uncertainty(c, top_, x_));
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

    // ... over all rows but x and y, x <= y.
    T largest_but(const T* w, int64_t x, int64_t y) const {
        return max(max(largest(w, top_, x), largest(w, x + 1, y)), largest(w, y + 1, f_.n));
    }

    // Whether all entries of a row are finite.
    bool sound(const T* w) const {
        T probe = 0;
        for (int64_t i = top_; i < f_.n; ++i) probe += w[i] * 0;
        return probe == 0;
    }

    // Whether the diagonal entry of row c, which is in w, is a pivot.
    bool good(const T* w, int64_t c) const {
        const T d = abs(w[c]);
        if (!(d > Precision<T>::tiny) || (strict_ && cancelled(d, f_.bound[c]))) return false;
        const bool small = !(d > rounding(f_.bound[c]));
        if (small && !f_.pairs) return false;
        if (!(d * unit_[c] >= T(kThreshold) * largest_but(w, c, c))) return false;
        return !(small || uncertain_) || certain(w, c, d);
    }

    // Take rows as they stand, without moving a number, for as long as their diagonal entries are pivots.
    void eliminate_in_order() {
        while (top_ < f_.candidates) {
            const int64_t k = top_, n = f_.n, j = floor_to_vector<T>(k);
            T *u = f_.r + k * f_.ld, *l = f_.l + k * n;
            if (k > first_)
                row_of_tiles<T, 1, kSubtract>(k - first_, f_.l + first_ * n + k, n, f_.r + first_ * f_.ld + j, f_.ld, u + j, f_.ld,
                                              u + j, f_.ld, end_ - j);
            if (!good(u, k)) {
                update_rows(k + 1);
                return;
            }
            take(u, l);
        }
    }

    // Decide whether row c alone, or with a partner, is a pivot that makes entries grow little. Leaves the rows in w and v.
    bool accept(int64_t c, int64_t& partner) {
        fetch(c, w_);
        if (good(w_, c)) return true;
        if (!sound(w_)) return !(broken_ = true);
        T best = 0;
        for (int64_t i = top_; i < f_.candidates; ++i) {
            const T size = abs(w_[i]) * unit_[i];
            if (i == c || !(size > best)) continue;
            if (rounded(w_[i], i, c, noise(i, c))) continue;
            best = size;
            partner = i;
        }
        if (partner < 0) return false;
        fetch(partner, v_);
        const int64_t low = min(c, partner), high = max(c, partner);
        const T sc = unit_[c], sr = unit_[partner], b = best * sc;
        const T over_c = largest_but(w_, low, high) * sc, over_r = largest_but(v_, low, high) * sr;
        const T x = w_[c] * sc * sc / b, y = v_[partner] * sr * sr / b, det = abs(x * y - 1);
        if (det == 0 || !finite(det)) return false;
        // Duff and Reid's test: |P⁻¹| times the largest entries outside P; and P must not be singular to rounding.
        if (strict_ && (cancelled(abs(w_[c]), f_.bound[c]) || cancelled(abs(v_[partner]), f_.bound[partner]))) return false;
        const T growth = max(abs(y) * over_c + over_r, over_c + abs(x) * over_r) / (det * b);
        const T size = det * b / max(max(abs(x), abs(y)), T(1));
        if (!(growth <= T(1 / kThreshold)) || !(abs(w_[partner]) > Precision<T>::tiny)) return false;
        const bool large = size > max(noise(c, c) * sc * sc, noise(partner, partner) * sr * sr);
        if (!uncertain_ && (large || !f_.pairs)) return large;
        return certain(w_, c, size / (sc * sc)) && certain(v_, partner, size / (sr * sr));
    }

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

    // Take row c, which is in w.
    void single(int64_t c) {
        const int64_t k = top_, n = f_.n;
        exchange(k, c);
        T* u = f_.r + k * f_.ld;
        std::memcpy(u + k, w_ + k, size_t(used_ - k) * sizeof(T));
        take(u, f_.l + k * n);
    }

    // Take the row u, which is the next.
    void take(const T* __restrict u, T* __restrict l) {
        const int64_t k = top_, n = f_.n;
        const T d = u[k], inverse = 1 / d, size = abs(d);
        uncertain_ = uncertain_ || cancelled(size, f_.bound[k]);
        if (size < T(kDoubtful) * f_.bound[k]) lost_ = lost_ || largest(u, k, n) * unit_[k] < T(kDoubtful);
        tally_.add(double(d));
        T *__restrict bound = f_.bound, *__restrict diagonal = diagonal_;
        for (int64_t j = k + 1; j < n; ++j) {
            const T factor = u[j] * inverse, part = factor * u[j];
            l[j] = factor;
            bound[j] += abs(part);
            diagonal[j] -= part;
        }
        l[k] = d;
        for (int64_t j = 0; j < f_.columns; ++j) f_.y[k * f_.columns + j] = u[n + j] * inverse;
        advance(1);
    }

    // Take the rows c and r, which are in w and v. No test looked at their diagonal entries: what is noise there is passed on.
    void pair(int64_t c, int64_t r) {
        const int64_t k = top_, n = f_.n;
        exchange(k, c);
        exchange(k + 1, r == k ? c : r);
        const T a = w_[k], b = w_[k + 1], d = v_[k + 1];
        tally_.add(double(a), double(b), double(d));
        T *u = f_.r + k * f_.ld, *l = f_.l + k * n, *m = l + n;
        std::memcpy(u + k, w_ + k, size_t(used_ - k) * sizeof(T));
        std::memcpy(u + f_.ld + k, v_ + k, size_t(used_ - k) * sizeof(T));
        const T x = a / b, y = d / b, t = 1 / ((x * y - 1) * b);
        uncertain_ = uncertain_ || cancelled(abs(a), f_.bound[k]) || cancelled(abs(d), f_.bound[k + 1]);
        if (uncertain_) lost_ = lost_ || largest(w_, k, n) * unit_[k] < T(kDoubtful) || largest(v_, k, n) * unit_[k + 1] < T(kDoubtful);
        const T *__restrict w = w_, *__restrict v = v_;
        T *__restrict out = l, *__restrict next = m, *__restrict bound = f_.bound, *__restrict diagonal = diagonal_;
        for (int64_t j = k + 2; j < n; ++j) {
            const T i = (y * w[j] - v[j]) * t, o = (x * v[j] - w[j]) * t;
            out[j] = i;
            next[j] = o;
            bound[j] += abs(i * w[j]) + abs(o * v[j]);
            diagonal[j] -= i * w[j] + o * v[j];
        }
        l[k] = a;
        m[k + 1] = d;
        l[k + 1] = 0;
        f_.off[k] = b;
        for (int64_t j = 0; j < f_.columns; ++j) {
            f_.y[k * f_.columns + j] = (y * w_[n + j] - v_[n + j]) * t;
            f_.y[(k + 1) * f_.columns + j] = (x * v_[n + j] - w_[n + j]) * t;
        }
        advance(2);
    }

    void advance(int64_t rows) {
        top_ += rows;
        if (top_ - first_ >= panel_) update();
    }

    // Rows of noise are nobody's pivot, now or later: they need not be passed on.
    void mark_null() {
        for (int64_t c = top_; c < f_.candidates; ++c) {
            fetch(c, w_);
            bool any = false;
            for (int64_t i = top_; i < f_.n && !any; ++i)
                any = abs(w_[i]) > Precision<T>::tiny && !rounded(w_[i], i, c, noise(i, c));
            f_.null[c] = !any;
        }
    }

    const CarefulFront<T> f_;
    Assembled assembled_;
    Tally& tally_;
    T *w_, *v_, *unit_, *diagonal_, *x_;
    const int64_t used_, end_, panel_;  // columns with right-hand sides and probes; rows whose update of the rest is put off
    int64_t first_, top_;
    bool strict_ = true, broken_ = false, uncertain_ = false, lost_ = false;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
