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
    double logdet = 0, smallest = HUGE_VAL;

    void add(double eigenvalue) {
        (eigenvalue > 0 ? positive : negative) += 1;
        logdet += std::log(abs(eigenvalue));
        smallest = min(smallest, abs(eigenvalue));
    }

    // A pivot [[a, b], [b, c]]; its determinant is b²·(ac/b² - 1), which neither over- nor underflows.
    void add(double a, double b, double c) {
        const double det = (a / b) * (c / b) - 1, mean = (a / b + c / b) / 2;
        const double radius = std::hypot((a / b - c / b) / 2, 1.0), big = mean + (mean < 0 ? -radius : radius);
        add(big * b);
        add(det / big * b);
    }
};

// The lower triangle of a front, row-major; eliminated unknowns are moved to the front, L replaces their columns.
template <class T>
class DenseFront {
public:
    DenseFront(T* a, T* s, int64_t n, int64_t candidates, int32_t* ids, T* diag, T* off, T* scratch)
        : a_(a), s_(s), n_(n), candidates_(candidates), ids_(ids), diag_(diag), off_(off), x_(scratch), y_(scratch + n) {}

    // Eliminate what is stable; return how many unknowns that were, or -1 where a number is not finite.
    int64_t eliminate(Tally& tally) {
        int64_t k = 0;
        while (k < candidates_) {
            int64_t c = k, r = -1;
            while (c < candidates_ && !accept(k, c, r)) ++c;
            if (broken_) return -1;
            if (c == candidates_) break;
            exchange(k, c);
            if (r < 0) {
                tally.add(double(at(k, k)));
                single(k++);
            } else {
                exchange(k + 1, r == k ? c : r);
                tally.add(double(at(k, k)), double(at(k + 1, k)), double(at(k + 1, k + 1)));
                pair(k);
                k += 2;
            }
        }
        return k;
    }

private:
    T& at(int64_t i, int64_t j) { return a_[i * n_ + j]; }
    T entry(const T* m, int64_t i, int64_t j) const { return i < j ? m[j * n_ + i] : m[i * n_ + j]; }

    // |a_ij|, or zero where that is rounding noise.
    T magnitude(int64_t i, int64_t j) {
        const T v = abs(entry(a_, i, j));
        if (!finite(v)) broken_ = true;
        return v <= T(kNoise) * Precision<T>::eps * entry(s_, i, j) ? T(0) : v;
    }

    // Decide whether c alone (r = -1), or c with a partner r, is a pivot that makes entries grow little.
    bool accept(int64_t k, int64_t c, int64_t& r) {
        const T noise = T(kNoise) * Precision<T>::eps;
        T largest = 0, partner = 0;
        r = -1;
        for (int64_t i = k; i < n_; ++i) {
            if (i == c) continue;
            const T v = magnitude(i, c);
            largest = max(largest, v);
            if (i < candidates_ && v > partner) {
                partner = v;
                r = i;
            }
        }
        const int64_t with = r;
        r = -1;
        const T d = magnitude(c, c);
        if (d > 0 && d >= T(kThreshold) * largest) return !broken_;
        if (with < 0) return false;
        T over_c = 0, over_r = 0;
        for (int64_t i = k; i < n_; ++i) {
            if (i == c || i == with) continue;
            over_c = max(over_c, magnitude(i, c));
            over_r = max(over_r, magnitude(i, with));
        }
        const T b = abs(entry(a_, with, c)), x = at(c, c) / b, y = at(with, with) / b, det = abs(x * y - 1);
        if (det == 0 || !finite(det)) return false;
        // Duff and Reid's test: |P⁻¹| times the largest entries outside P; and P must not be singular to rounding.
        const T growth = max(abs(y) * over_c + over_r, over_c + abs(x) * over_r) / (det * b);
        const T size = det * b / max(max(abs(x), abs(y)), T(1));
        const T pair_noise = noise * max(entry(s_, c, c), entry(s_, with, with));
        if (!(growth <= T(1 / kThreshold)) || !(size > pair_noise)) return false;
        r = with;
        return !broken_;
    }

    void exchange(int64_t x, int64_t y) {
        if (x == y) return;
        swap(ids_[x], ids_[y]);
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
            T *row = a_ + i * n_, *bound = s_ + i * n_;
            for (int64_t j = k + 1; j <= i; ++j) {
                row[j] -= l * x_[j];
                bound[j] += abs(l * x_[j]);
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
            T *row = a_ + i * n_, *bound = s_ + i * n_;
            for (int64_t j = k + 2; j <= i; ++j) {
                row[j] -= l * x_[j] + m * y_[j];
                bound[j] += abs(l * x_[j]) + abs(m * y_[j]);
            }
        }
    }

    T *a_, *s_;
    int64_t n_, candidates_;
    int32_t* ids_;
    T *diag_, *off_, *x_, *y_;
    bool broken_ = false;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
