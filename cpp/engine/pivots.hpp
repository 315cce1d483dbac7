// What the pivots say of the matrix: inertia, determinant, the smallest pivot. Both eliminations add their pivots here;
// elimination.hpp reports the sums.
#pragma once
#include <cmath>

#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

struct Tally {
    // The product of pivots is kept within [kLow, kHigh]; where the next pivot would leave these bounds, logarithms are
    // added up. Eight pivots of at least kLeast have a product of at least kLow.
    static constexpr double kLow = 1e-200, kHigh = 1e200, kLeast = 1e-25;

    int64_t positive = 0, negative = 0;
    double smallest = HUGE_VAL;

    void add(double eigenvalue) {
        (eigenvalue > 0 ? positive : negative) += 1;
        const double size = abs(eigenvalue), next = product_ * size;
        smallest = min(smallest, size);
        // A logarithm for every pivot would cost more than a small front.
        if (next > kLow && next < kHigh) {
            product_ = next;
        } else {
            sum_ += std::log(product_) + std::log(size);
            product_ = 1;
        }
    }

    // Add M pivots at once: one after the other, additions would wait for each other.
    template <class T, int M>
    void add_all(const T* eigenvalues) {
        static_assert(M <= 8);
        double least = HUGE_VAL, lowest = HUGE_VAL, product = 1;
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) {
            const double value = double(eigenvalues[k]), size = abs(value);
            lowest = min(lowest, value), least = min(least, size), product *= size;
        }
        const double next = product_ * product;
        if (!(least > kLeast && next > kLow && next < kHigh)) {
            for (int k = 0; k < M; ++k) add(double(eigenvalues[k]));
            return;
        }
        product_ = next;
        smallest = min(smallest, least);
        int64_t above = M;
        if (lowest < 0)
            for (int k = 0; k < M; ++k) above -= eigenvalues[k] < 0;
        positive += above, negative += M - above;
    }

    // Add pivots of which the product, within [kLow, kHigh], and the smallest magnitude are known.
    void add_product(int64_t above, int64_t below, double least, double product) {
        positive += above, negative += below;
        smallest = min(smallest, least);
        const double next = product_ * product;
        if (next > kLow && next < kHigh) {
            product_ = next;
        } else {
            sum_ += std::log(product_) + std::log(product);
            product_ = 1;
        }
    }

    double logdet() const { return sum_ + std::log(product_); }

    // Add a 2×2 pivot [[a, b], [b, c]]. Its determinant is b²·(ac/b² - 1): quotients neither over- nor underflow.
    void add(double a, double b, double c) {
        const double det = (a / b) * (c / b) - 1, mean = (a / b + c / b) / 2;
        const double radius = std::hypot((a / b - c / b) / 2, 1.0), big = mean + (mean < 0 ? -radius : radius);
        add(big * b);
        add(det / big * b);
    }

private:
    double sum_ = 0, product_ = 1;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
