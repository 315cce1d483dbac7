// The matrix kernel against three loops: all sizes up to 40, leading dimensions, updates, triangles.
#include <vector>

#include "check.hpp"
#include "random.hpp"

#include "../engine/packed.hpp"

using namespace gnewt::engine::GNEWT_ISA;

template <class T, int UPDATE>
void compare(int64_t k, int64_t first, int64_t last, Triangle part, int64_t cols, int64_t extra, Random& random) {
    const int64_t ld = padded<T>(cols > last ? cols : last) + extra, rows = last;
    const auto fill = [&](std::vector<T>& m) {
        for (T& x : m) x = T(random.uniform());
    };
    std::vector<T> a(size_t(k * ld + 64)), b(a.size()), c(size_t(rows * ld + 64)), out(c.size());
    fill(a), fill(b), fill(c);
    out = c;
    multiply<T, UPDATE, false>(k, {first, last, part, cols}, {a.data(), ld}, {b.data(), ld}, {c.data(), ld},
                               {out.data(), ld});
    const T tol = 64 * Precision<T>::eps;
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) {
            T sum = 0;
            for (int64_t l = 0; l < k; ++l) sum += a[size_t(l * ld + i)] * b[size_t(l * ld + j)];
            const T before = c[size_t(i * ld + j)], got = out[size_t(i * ld + j)];
            if (i < first)
                CHECK(got == before);
            else if (part == kWhole || (part == kUpper ? j >= i : j <= i))
                CHECK(abs(got - (UPDATE == kSet   ? sum
                                 : UPDATE == kAdd ? before + sum
                                                  : before - sum)) <= tol * T(k + 1));
        }
}

// AᵀB while memory is asked for.
template <class T>
void compare_asking(int64_t k, int64_t rows, int64_t cols, Random& random) {
    const int64_t lda = rows + 3, ldb = padded<T>(cols), ldo = ldb;
    std::vector<T> a(size_t(k * lda + 64)), b(size_t(k * ldb + 64)), out(size_t(rows * ldo + 64));
    for (T& x : a) x = T(random.uniform());
    for (T& x : b) x = T(random.uniform());
    multiply_asking<T, false>(k, rows, cols, {a.data(), lda}, {b.data(), ldb}, {out.data(), ldo});
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) {
            T sum = 0;
            for (int64_t l = 0; l < k; ++l) sum += a[size_t(l * lda + i)] * b[size_t(l * ldb + j)];
            CHECK(abs(out[size_t(i * ldo + j)] - sum) <= 64 * Precision<T>::eps * T(k + 1));
        }
}

// AᵀB - CᵀD, the lower triangle.
template <class T>
void compare_less(int64_t k, int64_t m, int64_t n, Random& random) {
    const int64_t ld = padded<T>(n), ldc = n + 3;
    std::vector<T> a(size_t(k * ld + 64)), b(a.size()), c(size_t(m * ldc + 64)), d(size_t(m * ld + 64)),
        out(size_t(n * ld + 64));
    for (auto* x : {&a, &b, &c, &d})
        for (T& y : *x) y = T(random.uniform());
    multiply_less<T, false>(n, {k, {a.data(), ld}, {b.data(), ld}}, {m, {c.data(), ldc}, {d.data(), ld}},
                            {out.data(), ld});
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j <= i; ++j) {
            T sum = 0;
            for (int64_t l = 0; l < k; ++l) sum += a[size_t(l * ld + i)] * b[size_t(l * ld + j)];
            for (int64_t l = 0; l < m; ++l) sum -= c[size_t(l * ldc + i)] * d[size_t(l * ld + j)];
            CHECK(abs(out[size_t(i * ld + j)] - sum) <= 64 * Precision<T>::eps * T(k + m + 1));
        }
}

template <class T>
void all_sizes() {
    Random random(7);
    for (int64_t n = 1; n <= 40; ++n)
        for (int64_t m = 1; m <= 40; ++m) {
            const int64_t k = random.below(41), extra = kWidth<T> * random.below(3);
            compare_asking<T>(k, n, m, random);
            compare_less<T>(k, m, n, random);
            compare<T, kSet>(k, 0, m, kWhole, n, extra, random);
            compare<T, kAdd>(k, random.below(m + 1), m, kWhole, n, extra, random);
            compare<T, kSubtract>(k, random.below(m + 1), m, random.below(2) ? kUpper : kLower, n > m ? n : m, extra,
                                  random);
        }
}

// The packed product of an upper triangle, at sizes about those of its blocks.
template <class T>
void compare_packed(int64_t k, int64_t first, int64_t last, int64_t beside, Random& random) {
    const int64_t cols = last + beside, ld = padded<T>(cols) + 3;
    std::vector<T> a(size_t(k * last + 64)), b(size_t(k * ld + 64)), c(size_t(last * ld + 64)),
        scratch(size_t(packed_size<T>(cols) + 64));
    for (auto* x : {&a, &b, &c})
        for (T& y : *x) y = T(random.uniform());
    std::vector<T> out = c;
    multiply_packed<T, kSubtract>(k, {first, last, kUpper, cols}, {a.data(), last}, {b.data(), ld}, {out.data(), ld},
                                  scratch.data());
    for (int64_t i = 0; i < last; ++i)
        for (int64_t j = 0; j < ld; ++j) {
            T sum = 0;
            for (int64_t l = 0; l < k; ++l) sum += a[size_t(l * last + i)] * b[size_t(l * ld + j)];
            const T before = c[size_t(i * ld + j)], got = out[size_t(i * ld + j)];
            if (i < first || j >= padded<T>(cols))
                CHECK(got == before);
            else if (j >= i)
                CHECK(abs(got - (before - sum)) <= 64 * Precision<T>::eps * T(k + 1));
        }
}

template <class T>
void packed_sizes() {
    Random random(7);
    for (const int64_t k : {1, 5, 64})
        for (int64_t last = 1; last <= 120; last += 1 + random.below(9))
            compare_packed<T>(k, random.below(last), last, random.below(12), random);
}

int main() {
    if (!check::runs_here()) return check::skip("gemm");
    all_sizes<double>();
    all_sizes<float>();
    packed_sizes<double>();
    packed_sizes<float>();
    return check::finish("gemm");
}
