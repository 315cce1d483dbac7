// A = Uᵀ D⁻¹ U with 1×1 and 2×2 pivots that are searched and tested; rows that find no stable pivot stay. Called by
// fronts.hpp on the R of one front. kkt/engines/reference/pivots.py is the same in NumPy.
#pragma once
#include "panel.hpp"
#include "pivots.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T, class Assembled>
class Careful : private Panel<T> {
    using Base = Panel<T>;
    using Base::advance, Base::apply, Base::exchange, Base::fetch, Base::find_units, Base::largest, Base::largest_but,
        Base::sound, Base::update, Base::update_rows;
    using Base::f_, Base::w_, Base::v_, Base::unit_, Base::diagonal_, Base::x_, Base::used_, Base::first_, Base::top_;

public:
    // `assembled(i, j)`: the sum of magnitudes that sources added into an entry, in the order in which rows came;
    // assembled.at_most(i, j): an upper bound of this sum.
    Careful(const CarefulFront<T>& front, Assembled assembled, Tally& tally)
        : Base(front), assembled_(assembled), tally_(tally) {}

    using Base::scratch_size;

    // Take the pair of a state and its dual, if the dual has no diagonal entry: [[L, -1], [-1, 0]] has an inverse
    // without division, so this pivot needs no test however large L is. To be called before `eliminate`.
    void substitute(int64_t state, int64_t dual) {
        const int64_t x = f_.place[state], y = f_.place[dual];
        if (f_.bound[y] != 0) return;
        fetch(x, w_);
        fetch(y, v_);
        if (w_[y] == 0) return;
        pair(x, y);
    }

    // Eliminate rows that have stable pivots; return the number of rows taken in all, or -1 where a number is not
    // finite.
    int64_t eliminate() {
        update();
        clean();
        find_units();
        eliminate_in_order();
        // Entries that cancelled come last: the noise in such entries is then passed on to few rows.
        if (!search()) return -1;
        strict_ = false;
        if (!search()) return -1;
        update();
        if (uncertain_ || f_.pairs) f_.uncertainties(top_, f_.n, top_, x_, f_.bound);
        mark_null();
        return top_;
    }

    // Whether a pivot was taken of a row that is lost: all of the row is little of what was summed into its diagonal.
    bool lost() const { return lost_; }

private:
    // Take pivots until there is none; false where a number is not finite. A row that fails is looked at again after
    // the others: a pivot taken meanwhile may have changed the row.
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

    // Make entries zero that are rounding of sources that cancelled, in rows with nothing on their diagonal: no bound
    // would betray such rounding.
    void clean() {
        for (int64_t c = top_; c < f_.candidates; ++c) {
            if (f_.bound[c] > 0) continue;
            for (int64_t i = top_; i < f_.n; ++i) {
                T& entry = i < c ? f_.r[i * f_.ld + c] : f_.r[c * f_.ld + i];
                if (entry != 0 && rounded(entry, i, c, 0)) entry = 0;
            }
        }
    }

    // An entry (i, j) below this may be noise.
    T noise(int64_t i, int64_t j) const { return rounding(std::sqrt(f_.bound[i]) * std::sqrt(f_.bound[j])); }

    // Whether entry (i, c) may be what rounding left of sources that cancelled, besides `noise`.
    bool rounded(T entry, int64_t i, int64_t c, T noise) {
        const int64_t x = f_.origin[i], y = f_.origin[c];
        return !(abs(entry) > noise + rounding(assembled_.at_most(x, y))) &&
               abs(entry) <= noise + rounding(assembled_(x, y));
    }

    // Whether a pivot `size` of row c, which is in w, is more than noise.
    bool certain(const T* w, int64_t c, T size) const {
        return size > rounding(f_.likely_uncertainty(c, w)) || size > rounding(f_.uncertainty(c, top_, x_));
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
            const int64_t k = top_, j = floor_to_vector<T>(k);
            T *u = f_.r + k * f_.ld, *l = f_.l + k * f_.n;
            if (k > first_) apply(k, j, u + j);
            if (!good(u, k)) {
                update_rows(k + 1);
                return;
            }
            take(u, l);
        }
    }

    // Decide whether row c alone, or with a partner, is a pivot that makes entries grow little. The rows are left in w
    // and v.
    bool accept(int64_t c, int64_t& partner) {
        fetch(c, w_);
        if (good(w_, c)) return true;
        if (!sound(w_)) return !(broken_ = true);
        partner = find_partner(c);
        if (partner < 0) return false;
        fetch(partner, v_);
        return accept_pair(c, partner);
    }

    // The row that is coupled most with row c, which is in w, by an entry that is more than noise; -1 where there is
    // none.
    int64_t find_partner(int64_t c) {
        int64_t partner = -1;
        T best = 0;
        for (int64_t i = top_; i < f_.candidates; ++i) {
            const T size = abs(w_[i]) * unit_[i];
            if (i == c || !(size > best)) continue;
            if (rounded(w_[i], i, c, noise(i, c))) continue;
            best = size;
            partner = i;
        }
        return partner;
    }

    // Duff and Reid's test on the 2×2 pivot P of the rows c and r, which are in w and v: |P⁻¹| times the largest
    // entries outside P; and P must not be singular to rounding.
    bool accept_pair(int64_t c, int64_t r) {
        const int64_t low = min(c, r), high = max(c, r);
        const T sc = unit_[c], sr = unit_[r], b = abs(w_[r]) * sr * sc;
        const T over_c = largest_but(w_, low, high) * sc, over_r = largest_but(v_, low, high) * sr;
        const T x = w_[c] * sc * sc / b, y = v_[r] * sr * sr / b, det = abs(x * y - 1);
        if (det == 0 || !finite(det)) return false;
        if (strict_ && (cancelled(abs(w_[c]), f_.bound[c]) || cancelled(abs(v_[r]), f_.bound[r]))) return false;
        const T growth = max(abs(y) * over_c + over_r, over_c + abs(x) * over_r) / (det * b);
        const T size = det * b / max(max(abs(x), abs(y)), T(1));
        if (!(growth <= T(1 / kThreshold)) || !(abs(w_[r]) > Precision<T>::tiny)) return false;
        const bool large = size > max(noise(c, c) * sc * sc, noise(r, r) * sr * sr);
        if (!uncertain_ && (large || !f_.pairs)) return large;
        return certain(w_, c, size / (sc * sc)) && certain(v_, r, size / (sr * sr));
    }

    // Take row c, which is in w.
    void single(int64_t c) {
        const int64_t k = top_, n = f_.n;
        exchange(k, c);
        T* u = f_.r + k * f_.ld;
        std::memcpy(u + k, w_ + k, size_t(used_ - k) * sizeof(T));
        take(u, f_.l + k * n);
    }

    // Take the row u, which is the next row.
    void take(const T* __restrict u, T* __restrict l) {
        const int64_t k = top_, n = f_.n;
        const T d = u[k], inverse = 1 / d, size = abs(d);
        uncertain_ = uncertain_ || cancelled(size, f_.bound[k]);
        if (size < T(kDoubtful) * f_.bound[k]) lost_ = lost_ || largest(u, k, n) * unit_[k] < f_.share;
        tally_.add(double(d));
        T* __restrict bound = f_.bound, * __restrict diagonal = diagonal_;
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

    // Take the rows c and r, which are in w and v, as a 2×2 pivot. No test looked at their diagonal entries: noise
    // there is passed on.
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
        if (uncertain_)
            lost_ =
                lost_ || largest(w_, k, n) * unit_[k] < f_.share || largest(v_, k, n) * unit_[k + 1] < f_.share;
        const T* __restrict w = w_, * __restrict v = v_;
        T* __restrict out = l, * __restrict next = m, * __restrict bound = f_.bound, * __restrict diagonal = diagonal_;
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

    // Mark rows that are noise altogether. Such a row is no pivot here nor in a parent, and need not be passed on.
    void mark_null() {
        for (int64_t c = top_; c < f_.candidates; ++c) {
            fetch(c, w_);
            bool any = false;
            for (int64_t i = top_; i < f_.n && !any; ++i)
                any = abs(w_[i]) > Precision<T>::tiny && !rounded(w_[i], i, c, noise(i, c));
            f_.null[c] = !any;
        }
    }

    Assembled assembled_;
    Tally& tally_;
    bool strict_ = true;      // entries that cancelled are no pivots yet
    bool broken_ = false;     // a number is not finite
    bool uncertain_ = false;  // a pivot cancelled: noise may be larger than bounds say
    bool lost_ = false;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
