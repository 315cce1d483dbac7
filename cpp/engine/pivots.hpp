// 1×1 and 2×2 pivots inside one dense symmetric front, with threshold and noise tests. The counterpart of
// kkt/pivots.py: every entry a_ij carries s_ij, the sum of the magnitudes that were added into it.
#pragma once
#include <cmath>

#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// What the pivots say of the matrix.
struct Tally {
    int64_t positive = 0, negative = 0;
    double smallest = HUGE_VAL;

    void add(double eigenvalue) {
        (eigenvalue > 0 ? positive : negative) += 1;
        const double size = abs(eigenvalue), next = product_ * size;
        smallest = min(smallest, size);
        // A logarithm for every pivot would cost more than a small front.
        if (next > 1e-200 && next < 1e200) {
            product_ = next;
        } else {
            sum_ += std::log(product_) + std::log(size);
            product_ = 1;
        }
    }

    double logdet() const { return sum_ + std::log(product_); }

    // A pivot [[a, b], [b, c]]; its determinant is b²·(ac/b² - 1), which neither over- nor underflows.
    void add(double a, double b, double c) {
        const double det = (a / b) * (c / b) - 1, mean = (a / b + c / b) / 2;
        const double radius = std::hypot((a / b - c / b) / 2, 1.0), big = mean + (mean < 0 ? -radius : radius);
        add(big * b);
        add(det / big * b);
    }

private:
    double sum_ = 0, product_ = 1;
};

// The lower triangle of a front, row-major; eliminated unknowns are moved to the front, L replaces their columns.
template <class T>
class DenseFront {
public:
    // `scratch` has room for 3n numbers, `places` for 2n integers.
    DenseFront(T* a, T* s, int64_t n, int64_t candidates, int32_t* ids, T* diag, T* off, T* scratch, int32_t* places)
        : a_(a), s_(s), n_(n), candidates_(candidates), ids_(ids), diag_(diag), off_(off), x_(scratch), y_(scratch + n),
          scale_(scratch + 2 * n), place_(places), origin_(places + n) {
        for (int64_t i = 0; i < n; ++i) place_[i] = origin_[i] = int32_t(i);
    }

    // Substitute the pair of local coordinates (x, dual) if its dual has no diagonal entry: [[L, -1], [-1, 0]] has an
    // inverse without division, so it needs no test however large L is. To be called before `eliminate`.
    void substitute(int64_t x, int64_t dual, Tally& tally) {
        const int64_t i = place_[x], j = place_[dual];
        if (s_[j * n_ + j] == 0) pivot(i, j, tally);
    }

    // Eliminate what is stable; return how many unknowns that were in all, or -1 where a number is not finite.
    int64_t eliminate(Tally& tally) {
        find_units();
        while (done_ < candidates_) {
            int64_t c = done_, r = -1;
            while (c < candidates_ && !accept(c, r)) ++c;
            if (broken_) return -1;
            if (c == candidates_) break;
            pivot(c, r, tally);
        }
        return done_;
    }

private:
    T& at(int64_t i, int64_t j) { return a_[i * n_ + j]; }
    T entry(const T* m, int64_t i, int64_t j) const { return i < j ? m[j * n_ + i] : m[i * n_ + j]; }

    // Take c alone (r < 0) or c and r as the next pivot.
    void pivot(int64_t c, int64_t r, Tally& tally) {
        const int64_t k = done_;
        exchange(k, c);
        if (r < 0) {
            tally.add(double(at(k, k)));
            single(k);
            done_ += 1;
        } else {
            exchange(k + 1, r == k ? c : r);
            tally.add(double(at(k, k)), double(at(k + 1, k)), double(at(k + 1, k + 1)));
            pair(k);
            done_ += 2;
        }
    }

    // Growth is measured in units in which the magnitudes on the diagonal are one, so that it does not depend on the user's.
    void find_units() {
        for (int64_t i = done_; i < n_; ++i) {
            T m = s_[i * n_ + i];
            if (!(m > 0))
                for (int64_t j = done_; j < n_; ++j) m = max(m, entry(s_, i, j));
            scale_[i] = m > 0 ? 1 / std::sqrt(m) : T(1);
        }
    }

    // |a_ij| in these units, or zero where that is rounding noise.
    T magnitude(int64_t i, int64_t j) {
        const T v = abs(entry(a_, i, j));
        if (!finite(v)) broken_ = true;
        return v <= T(kNoise) * Precision<T>::eps * entry(s_, i, j) ? T(0) : v * scale_[i] * scale_[j];
    }

    // Decide whether c alone (r = -1), or c with a partner r, is a pivot that makes entries grow little.
    bool accept(int64_t c, int64_t& r) {
        T largest = 0, partner = 0;
        r = -1;
        int64_t with = -1;
        for (int64_t i = done_; i < n_; ++i) {
            if (i == c) continue;
            const T v = magnitude(i, c);
            largest = max(largest, v);
            if (i < candidates_ && v > partner) {
                partner = v;
                with = i;
            }
        }
        const T d = magnitude(c, c);
        if (d > 0 && d >= T(kThreshold) * largest) return !broken_;
        if (with < 0) return false;
        T over_c = 0, over_r = 0;
        for (int64_t i = done_; i < n_; ++i) {
            if (i == c || i == with) continue;
            over_c = max(over_c, magnitude(i, c));
            over_r = max(over_r, magnitude(i, with));
        }
        const T sc = scale_[c] * scale_[c], sr = scale_[with] * scale_[with], b = partner;
        const T x = at(c, c) * sc / b, y = at(with, with) * sr / b, det = abs(x * y - 1);
        if (det == 0 || !finite(det)) return false;
        // Duff and Reid's test: |P⁻¹| times the largest entries outside P; and P must not be singular to rounding.
        const T growth = max(abs(y) * over_c + over_r, over_c + abs(x) * over_r) / (det * b);
        const T size = det * b / max(max(abs(x), abs(y)), T(1));
        const T noise = T(kNoise) * Precision<T>::eps * max(s_[c * n_ + c] * sc, s_[with * n_ + with] * sr);
        if (!(growth <= T(1 / kThreshold)) || !(size > noise)) return false;
        r = with;
        return !broken_;
    }

    void exchange(int64_t x, int64_t y) {
        if (x == y) return;
        swap(ids_[x], ids_[y]);
        swap(scale_[x], scale_[y]);
        swap(origin_[x], origin_[y]);
        place_[origin_[x]] = int32_t(x);
        place_[origin_[y]] = int32_t(y);
        T* both[] = {a_, s_};
        for (T* m : both) {
            for (int64_t j = 0; j < x; ++j) swap(m[x * n_ + j], m[y * n_ + j]);
            swap(m[x * n_ + x], m[y * n_ + y]);
            for (int64_t i = x + 1; i < y; ++i) swap(m[i * n_ + x], m[y * n_ + i]);
            for (int64_t i = y + 1; i < n_; ++i) swap(m[i * n_ + x], m[i * n_ + y]);
        }
    }

    void single(int64_t k) {
        const T d = at(k, k);
        diag_[k] = d;
        off_[k] = 0;
        for (int64_t i = k + 1; i < n_; ++i) x_[i] = at(i, k);
        for (int64_t i = k + 1; i < n_; ++i) {
            const T l = x_[i] / d;
            at(i, k) = l;
            if (l == 0) continue;
            T *__restrict row = a_ + i * n_, *__restrict bound = s_ + i * n_;
            const T* __restrict x = x_;
            for (int64_t j = k + 1; j <= i; ++j) {
                row[j] -= l * x[j];
                bound[j] += abs(l * x[j]);
            }
        }
    }

    void pair(int64_t k) {
        const T a = at(k, k), b = at(k + 1, k), c = at(k + 1, k + 1);
        diag_[k] = a;
        diag_[k + 1] = c;
        off_[k] = b;
        off_[k + 1] = 0;
        at(k + 1, k) = 0;
        const T x = a / b, y = c / b, t = 1 / ((x * y - 1) * b);
        for (int64_t i = k + 2; i < n_; ++i) {
            x_[i] = at(i, k);
            y_[i] = at(i, k + 1);
        }
        for (int64_t i = k + 2; i < n_; ++i) {
            const T l = (y * x_[i] - y_[i]) * t, m = (x * y_[i] - x_[i]) * t;
            at(i, k) = l;
            at(i, k + 1) = m;
            if (l == 0 && m == 0) continue;
            T *__restrict row = a_ + i * n_, *__restrict bound = s_ + i * n_;
            const T *__restrict u = x_, *__restrict v = y_;
            for (int64_t j = k + 2; j <= i; ++j) {
                row[j] -= l * u[j] + m * v[j];
                bound[j] += abs(l * u[j]) + abs(m * v[j]);
            }
        }
    }

    T *a_, *s_;
    int64_t n_, candidates_;
    int32_t* ids_;
    T *diag_, *off_, *x_, *y_, *scale_;
    int32_t *place_, *origin_;
    int64_t done_ = 0;
    bool broken_ = false;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
