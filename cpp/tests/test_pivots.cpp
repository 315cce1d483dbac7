// Both eliminations of a dense front: A = Uᵀ D⁻¹ U on the pivots taken, the Schur complement on the rest, the inertia,
// the delays.
#include <cmath>
#include <vector>

#include "check.hpp"
#include "random.hpp"

#include "../engine/careful.hpp"
#include "../engine/stage_ldl.hpp"

using namespace gnewt::engine::GNEWT_ISA;

using Matrix = std::vector<double>;  // row-major, symmetric

struct Result {
    int64_t taken;
    Matrix l, d, schur;  // L [taken, n], D [taken, taken], Schur complement [rest, rest], in the order of `ids`
    std::vector<int32_t> ids;
    std::vector<int8_t> null;
    Tally tally;
};

// The front as the engine lays it out, with one right-hand side.
struct Work {
    int64_t n, ld;
    Matrix r, bound, scratch, l, off, y;
    std::vector<int32_t> ids, place;
    std::vector<int8_t> null;

    Work(const Matrix& a, int64_t size)
        : n(size),
          ld(spaced<double>(size + 1 + kProbes<double>)),
          r(size_t(n * ld + 64)),
          bound(size_t(ld + 64)),
          scratch(size_t(Careful<double, int>::scratch_size(n, ld) + 64)),
          l(size_t(n * n + 64)),
          off(size_t(n)),
          y(size_t(n)),
          ids(size_t(n)),
          place(size_t(2 * n)),
          null(size_t(n)) {
        for (int64_t i = 0; i < n; ++i) {
            ids[size_t(i)] = int32_t(i);
            bound[size_t(i)] = std::fabs(a[size_t(i * n + i)]);
            for (int64_t j = i; j < n; ++j) r[size_t(i * ld + j)] = a[size_t(i * n + j)];
        }
    }
};

Result careful(const Matrix& a, int64_t n, int64_t candidates, bool pairs = false, int64_t probes = 0) {
    Work w(a, n);
    const Matrix given = w.bound;
    Result out;
    struct Nothing {
        double operator()(int64_t, int64_t) const { return 0; }
        double at_most(int64_t, int64_t) const { return 0; }
    };
    CarefulFront<double> front{
        w.r.data(),         w.ld,          n,          candidates,   1,          probes,           w.bound.data(),
        given.data(),       given.data(),  nullptr,    nullptr,      0,          w.ids.data(),     w.place.data(),
        w.place.data() + n, w.null.data(), w.l.data(), w.off.data(), w.y.data(), w.scratch.data(), 0};
    front.write_probes();
    Careful<double, Nothing> search(front, Nothing(), out.tally);
    if (pairs)
        for (int64_t i = 0; i < candidates / 2; ++i) search.substitute(i, candidates / 2 + i);
    out.taken = search.eliminate();
    out.ids = w.ids, out.null = w.null;
    const int64_t q = out.taken < 0 ? 0 : out.taken, rest = n - q;
    out.l.assign(size_t(q * n), 0), out.d.assign(size_t(q * q), 0), out.schur.assign(size_t(rest * rest), 0);
    for (int64_t k = 0; k < q; ++k) {
        for (int64_t j = k + 1; j < n; ++j) out.l[size_t(k * n + j)] = w.l[size_t(k * n + j)];
        out.l[size_t(k * n + k)] = 1;
        out.d[size_t(k * q + k)] = w.l[size_t(k * n + k)];
        if (w.off[size_t(k)] != 0) out.d[size_t(k * q + k + 1)] = out.d[size_t((k + 1) * q + k)] = w.off[size_t(k)];
    }
    for (int64_t i = 0; i < rest; ++i)
        for (int64_t j = i; j < rest; ++j)
            out.schur[size_t(i * rest + j)] = out.schur[size_t(j * rest + i)] = w.r[size_t((q + i) * w.ld + q + j)];
    return out;
}

// |A - (LᵀDL + Schur complement)|, relative to the largest entry of A.
double error(const Matrix& a, int64_t n, const Result& got) {
    const int64_t q = got.taken, rest = n - q;
    double worst = 0, largest = 1e-300;
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) {
            double sum = i >= q && j >= q ? got.schur[size_t((i - q) * rest + j - q)] : 0;
            for (int64_t k = 0; k < q; ++k)
                for (int64_t l = k > 0 ? k - 1 : 0; l < q && l <= k + 1; ++l)
                    sum += got.l[size_t(k * n + i)] * got.d[size_t(k * q + l)] * got.l[size_t(l * n + j)];
            const double given = a[size_t(got.ids[size_t(i)] * n + got.ids[size_t(j)])];
            worst = std::fmax(worst, std::fabs(sum - given));
            largest = std::fmax(largest, std::fabs(given));
        }
    return worst / largest;
}

Matrix random_symmetric(int64_t n, Random& random, double zeros) {
    Matrix a(size_t(n * n));
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = i; j < n; ++j)
            a[size_t(i * n + j)] = a[size_t(j * n + i)] = (random.uniform() + 1) / 2 < zeros ? 0 : random.uniform();
    return a;
}

void test_random_fronts() {
    Random random(1);
    for (int64_t n = 1; n <= 60; ++n)
        for (const double zeros : {0.0, 0.5, 0.9}) {
            const Matrix a = random_symmetric(n, random, zeros);
            const int64_t candidates = random.below(n + 1);
            const Result got = careful(a, n, candidates);
            CHECK(got.taken >= 0 && got.taken <= candidates);
            CHECK(error(a, n, got) <= 1e-10);
            CHECK(got.tally.positive + got.tally.negative == got.taken);
        }
}

// Large fronts, as they come and with many zero eigenvalues: probes change nothing but the time.
void test_wide_fronts() {
    Random random(5);
    for (const int64_t n : {130, 259, 410})
        for (const int64_t rank : {n, n - 40}) {
            Matrix a = random_symmetric(n, random, 0);
            if (rank < n) {
                Matrix v(size_t(rank * n));
                for (double& x : v) x = random.uniform();
                for (int64_t i = 0; i < n; ++i)
                    for (int64_t j = 0; j <= i; ++j) {
                        double sum = 0;
                        for (int64_t k = 0; k < rank; ++k)
                            sum += (k % 3 ? 1 : -1) * v[size_t(k * n + i)] * v[size_t(k * n + j)];
                        a[size_t(i * n + j)] = a[size_t(j * n + i)] = sum;
                    }
            }
            const int64_t candidates = rank < n ? n : n - random.below(60);
            const Result got = careful(a, n, candidates, false, kProbes<double>), other = careful(a, n, candidates);
            CHECK(got.taken == other.taken && got.taken == (rank < n ? rank : candidates));
            CHECK(got.ids == other.ids && got.null == other.null);
            CHECK(error(a, n, got) <= 1e-9);
            CHECK(got.tally.positive == other.tally.positive && got.tally.negative == other.tally.negative);
            for (int64_t i = got.taken; i < candidates; ++i) CHECK(got.null[size_t(i)]);
        }
}

// The noise that probes tell is at least the noise, and larger by no more than the margin of the probes allows for;
// the noise of several rows computed at once is the noise of each row alone.
void test_uncertainty() {
    Random random(6);
    const int64_t n = 40, top = 25, ld = spaced<double>(n + 1 + kProbes<double>), pairs = 3;
    for (int trial = 0; trial < 100; ++trial) {
        Matrix r(size_t(n * ld)), l(size_t(n * n)), local(static_cast<size_t>(n)), given(local), f(size_t(pairs * ld)),
            noise(static_cast<size_t>(pairs)), x(size_t(n * 16)), out(local);
        std::vector<int32_t> origin(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; ++i) {
            origin[size_t(i)] = int32_t(i);
            local[size_t(i)] = std::exp(5 * random.uniform()), given[size_t(i)] = 2 * local[size_t(i)];
            for (int64_t j = i + 1; i < top && j < n; ++j) l[size_t(i * n + j)] = random.uniform();
        }
        for (double& y : f) y = random.uniform();
        for (double& y : noise) y = std::exp(5 * random.uniform());
        Matrix bound(given);
        CarefulFront<double> front{
            r.data(),      ld,           n,        top,          1,       kProbes<double>, bound.data(),
            given.data(),  local.data(), f.data(), noise.data(), pairs,   nullptr,         nullptr,
            origin.data(), nullptr,      l.data(), nullptr,      nullptr, nullptr,         0};
        front.write_probes();
        for (int64_t k = 0; k < top; ++k)
            for (int64_t j = k + 1; j < n; ++j)
                for (int64_t i = 0; i < kProbes<double>; ++i)
                    r[size_t(j * ld + n + 1 + i)] -= l[size_t(k * n + j)] * r[size_t(k * ld + n + 1 + i)];
        front.uncertainties(top, n, top, x.data(), out.data());
        for (int64_t c = top; c < n; ++c) {
            const double exact = front.uncertainty(c, top, x.data()),
                         likely = front.likely_uncertainty(c, r.data() + c * ld);
            CHECK(std::fabs(out[size_t(c)] - exact) <= 1e-10 * exact);
            CHECK(likely >= exact && likely <= 1e6 * exact);
        }
    }
}

void test_plain_rows_agree_with_the_search() {
    Random random(2);
    for (int64_t n = 1; n <= 60; ++n) {
        Matrix a = random_symmetric(n, random, 0);
        for (int64_t i = 0; i < n; ++i) a[size_t(i * n + i)] += i % 3 ? double(n) : -double(n);
        const int64_t q = 1 + random.below(n), b = n - q;
        const Triangle part = random.below(2) ? kUpper : kLower;
        Work w(a, n);
        for (int64_t i = q; part == kLower && i < n; ++i)
            for (int64_t j = q; j < i; ++j) w.r[size_t(i * w.ld + j)] = a[size_t(i * n + j)];
        Matrix rho(size_t(w.ld + 64));
        for (int64_t i = 0; i < n; ++i) rho[size_t(i)] = random.uniform();
        const int64_t lds = padded<double>(b);
        Matrix schur(size_t(b * lds + 64));
        Tally tally;
        bool called = false;
        CHECK((eliminate_rows<double, 0, false>(
            {w.r.data(), w.ld, n, rho.data(), 1, w.bound.data(), w.l.data(), w.y.data()}, q, part, {schur.data(), lds},
            tally, [&] { called = true; })));
        CHECK(called);
        const Result other = careful(a, n, q);
        CHECK(other.taken == q);
        CHECK(tally.positive == other.tally.positive && tally.negative == other.tally.negative);
        CHECK(std::fabs(tally.logdet() - other.tally.logdet()) <= 1e-10 * double(n));
        for (int64_t i = 0; i < b; ++i)
            for (int64_t j = i; j < b; ++j) {
                const int64_t at = part == kUpper ? i * lds + j : j * lds + i;
                CHECK(std::fabs(schur[size_t(at)] - other.schur[size_t(i * b + j)]) <= 1e-12 * double(n));
            }
    }
}

// A stage C + FᵀSF against the same matrix in one piece. The rows of a stage are computed where they are eliminated,
// and the columns of its states begin at a whole vector.
void test_stage_agrees_with_plain_rows() {
    Random random(3);
    for (int64_t q = 1; q <= kBlock; ++q)
        for (int64_t p = 1; p <= 20; ++p) {
            const int64_t n = p + q, at = padded<double>(q), ld = at + padded<double>(p), lds = padded<double>(p);
            const double shift = p % 2 ? 0.25 : 0;
            const auto column = [&](int64_t j) { return j < q ? j : j - q + at; };
            Matrix s = random_symmetric(p, random, 0), f(size_t(p * ld + 64)), b(f), g(size_t(q * lds + 64)),
                   c(size_t(q * ld + 64)), r(c), rho(size_t(ld + 64)), size(rho), whole(size_t(n * n)), y(rho);
            for (int64_t i = 0; i < p; ++i)
                for (int64_t j = 0; j < n; ++j) f[size_t(i * ld + column(j))] = random.uniform();
            for (int64_t i = 0; i < p; ++i)
                for (int64_t k = 0; k < p; ++k) {
                    for (int64_t j = 0; j < n; ++j)
                        b[size_t(i * ld + column(j))] += s[size_t(i * p + k)] * f[size_t(k * ld + column(j))];
                    for (int64_t j = 0; j < q; ++j)
                        g[size_t(j * lds + i)] += f[size_t(k * ld + j)] * s[size_t(k * p + i)];
                }
            for (int64_t i = 0; i < q; ++i)  // of the block on the diagonal, the lower triangle
                for (int64_t j = 0; j < n; ++j)
                    if (j <= i || j >= q)
                        c[size_t(i * ld + column(j))] = random.uniform() + (i != j  ? 0.0
                                                                            : i % 3 ? 2.0 * double(n)
                                                                                    : -4.0 * double(n));
            for (int64_t i = 0; i < n; ++i)
                for (int64_t j = i; j < n; ++j) {
                    double sum = j < q ? c[size_t(j * ld + i)] : i < q ? c[size_t(i * ld + column(j))] : 0;
                    for (int64_t k = 0; k < p; ++k)
                        sum += f[size_t(k * ld + column(i))] * b[size_t(k * ld + column(j))];
                    if (i == j && i < q) sum += shift;
                    whole[size_t(i * n + j)] = whole[size_t(j * n + i)] = sum;
                    if (i == j) size[size_t(column(i))] = std::fabs(sum);
                }
            Work w(whole, n);
            Matrix plain(size_t(w.ld + 64)), schur(size_t(p * lds + 64)), other(schur), l(size_t(q * n + 64));
            for (int64_t i = 0; i < n; ++i) rho[size_t(column(i))] = plain[size_t(i)] = random.uniform();
            l[size_t(q * n)] = 77;
            Tally tally, expected;
            bool called = false;
            const Strided<double> f_u{f.data(), ld}, f_x{f.data() + at, ld}, c_u{c.data(), ld}, c_x{c.data() + at, ld};
            const ConstView<double> fs{g.data(), lds};
            CHECK((eliminate_stage<double, 0, false>(
                {r.data(), ld, n, rho.data(), 1, size.data(), l.data(), y.data(), at - q}, q,
                {{p, fs, f_u, c_u}, shift, {p, fs, f_x, c_x, at}, {p, f_x.view(), {b.data() + at, ld}}},
                {schur.data(), lds}, tally, [](auto) {}, [&] { called = true; })));
            CHECK((eliminate_rows<double, 0, false>(
                {w.r.data(), w.ld, n, plain.data(), 1, w.bound.data(), w.l.data(), w.y.data()}, q, kUpper,
                {other.data(), lds}, expected, [] {})));
            CHECK(called && l[size_t(q * n)] == 77);  // nothing is written behind the rows
            CHECK(tally.positive == expected.positive && tally.negative == expected.negative);
            for (int64_t i = 0; i < q; ++i)
                for (int64_t j = i; j < n; ++j)
                    CHECK(std::fabs(l[size_t(i * n + j)] - w.l[size_t(i * n + j)]) <= 1e-12 * double(n * n));
            for (int64_t i = 0; i < p; ++i) {
                CHECK(std::fabs(rho[size_t(at + i)] - plain[size_t(q + i)]) <= 1e-12 * double(n));
                for (int64_t j = 0; j <= i; ++j)
                    CHECK(std::fabs(schur[size_t(i * lds + j)] - other[size_t(j * lds + i)]) <= 1e-12 * double(n * n));
            }
        }
}

// Eigenvalues one by one, and several at once: also where their product leaves the range of numbers.
void test_tally_of_several() {
    for (const double scale : {1.0, 1e-30, 1e60, 1e-200}) {
        Tally one, several;
        for (int trial = 0; trial < 20; ++trial) {
            const double d[] = {scale, -2 * scale, 3 * scale, -0.5 * scale, 7 * scale, scale / 3, 1.5 * scale};
            for (const double x : d) one.add(x);
            several.add_all<double, 7>(d);
        }
        CHECK(one.positive == several.positive && one.negative == several.negative && one.smallest == several.smallest);
        CHECK(std::fabs(one.logdet() - several.logdet()) <= 1e-12 * (1 + std::fabs(one.logdet())));
    }
}

void test_zero_diagonal_needs_pairs() {
    const Matrix a = {0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 2, 0};
    const Result got = careful(a, 4, 4);
    CHECK(got.taken == 4);
    CHECK(got.tally.positive == 2 && got.tally.negative == 2);
    CHECK(std::fabs(got.tally.logdet() - 2 * std::log(2.0)) <= 1e-14);
    // A lone candidate without a partner waits; it is not null, as it couples with the separator.
    const Result waits = careful(a, 4, 1);
    CHECK(waits.taken == 0 && !waits.null[0]);
}

void test_noise_is_null() {
    // vvᵀ of rank one: one pivot, and rows of rounding.
    const int64_t n = 9;
    for (const double scale : {1e-140, 1.0, 1e140}) {
        Matrix a(size_t(n * n));
        for (int64_t i = 0; i < n; ++i)
            for (int64_t j = 0; j < n; ++j) a[size_t(i * n + j)] = scale * 0.1 * double(i + 1) * 0.7 * double(j + 1);
        const Result got = careful(a, n, n);
        CHECK(got.taken == 1);
        for (int64_t i = 1; i < n; ++i) CHECK(got.null[size_t(i)]);
    }
}

void test_states_are_substituted() {
    // [[V, -I], [-I, 0]] with tiny and huge V, coupled to a separator by the dual rows only.
    const int64_t p = 5, n = 2 * p + 3;
    Random random(3);
    for (const double size : {0.0, 1e-12, 1.0, 1e12}) {
        Matrix a(size_t(n * n));
        const auto set = [&](int64_t i, int64_t j, double v) { a[size_t(i * n + j)] = a[size_t(j * n + i)] = v; };
        for (int64_t i = 0; i < p; ++i) {
            for (int64_t j = i; j < p; ++j) set(i, j, size * random.uniform());
            set(i, p + i, -1);
            for (int64_t j = 2 * p; j < n; ++j) set(p + i, j, random.uniform());
        }
        const Result got = careful(a, n, 2 * p, true);
        CHECK(got.taken == 2 * p);
        CHECK(error(a, n, got) <= 1e-13);
        CHECK(got.tally.positive == p && got.tally.negative == p);
    }
}

void test_not_finite() {
    Random random(4);
    Matrix a = random_symmetric(6, random, 0);
    a[2 * 6 + 3] = a[3 * 6 + 2] = NAN;
    CHECK(careful(a, 6, 6).taken == -1);
}

int main() {
    if (!check::runs_here()) return check::skip("pivots");
    test_random_fronts();
    test_wide_fronts();
    test_uncertainty();
    test_plain_rows_agree_with_the_search();
    test_stage_agrees_with_plain_rows();
    test_tally_of_several();
    test_zero_diagonal_needs_pairs();
    test_noise_is_null();
    test_states_are_substituted();
    test_not_finite();
    return check::finish("pivots");
}
