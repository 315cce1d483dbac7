// Products of rows with a vector, and back substitution, against plain loops; numbers beyond the rows are not touched.
#include <vector>

#include "check.hpp"
#include "random.hpp"

#include "../engine/solve.hpp"

using namespace gnewt::engine::GNEWT_ISA;

template <class T>
void compare(int64_t rows, int64_t cols, Random& random) {
    const int64_t step = cols + random.below(3);
    std::vector<T> a(size_t(rows * step)), z(static_cast<size_t>(cols)), y(size_t(rows + 4)), given;
    for (T& x : a) x = T(random.uniform());
    for (T& x : z) x = T(random.uniform());
    for (T& x : y) x = T(random.uniform());
    given = y;
    const T tol = 16 * Precision<T>::eps * T(cols + 1);
    for (int update = 0; update < 3; ++update) {
        y = given;
        if (update == kSet) rows_times<T, kSet>(rows, cols, {a.data(), step}, z.data(), y.data());
        if (update == kAdd) rows_times<T, kAdd>(rows, cols, {a.data(), step}, z.data(), y.data());
        if (update == kSubtract) rows_times<T, kSubtract>(rows, cols, {a.data(), step}, z.data(), y.data());
        for (int64_t i = 0; i < rows + 4; ++i) {
            T sum = 0;
            for (int64_t j = 0; i < rows && j < cols; ++j) sum += a[size_t(i * step + j)] * z[size_t(j)];
            const T expected = i >= rows        ? given[size_t(i)]
                               : update == kSet ? sum
                                                : given[size_t(i)] + (update == kAdd ? sum : -sum);
            CHECK(abs(y[size_t(i)] - expected) <= (i < rows ? tol : 0));
        }
    }
}

template <class T>
void compare_back(int64_t q, int64_t n, Random& random) {
    std::vector<T> l(size_t(q * n)), z(static_cast<size_t>(n));
    for (T& x : l) x = T(random.uniform()) / T(n);
    for (T& x : z) x = T(random.uniform());
    std::vector<T> expected = z;
    for (int64_t k = q - 1; k >= 0; --k)
        for (int64_t j = k + 1; j < n; ++j) expected[size_t(k)] -= l[size_t(k * n + j)] * expected[size_t(j)];
    back_substitute_rows(q, n, {l.data(), n}, z.data());
    for (int64_t i = 0; i < n; ++i) CHECK(abs(z[size_t(i)] - expected[size_t(i)]) <= 16 * Precision<T>::eps * T(n + 1));
}

int main() {
    if (!check::runs_here()) return check::skip("solve");
    Random random(9);
    for (int64_t rows = 1; rows <= 20; ++rows)
        for (int64_t cols = 1; cols <= 20; ++cols) {
            compare<double>(rows, cols, random);
            compare<float>(rows, cols, random);
            compare_back<double>(rows, rows + cols - 1, random);
            compare_back<float>(rows, rows + cols - 1, random);
        }
    return check::finish("solve");
}
