// A = Uᵀ D⁻¹ U without interchanges, by panels of rows, with tests on every pivot and on what is left.
#pragma once
#include "gemm.hpp"
#include "pivots.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

constexpr int64_t kPanel = 16, kBlock = 8;  // rows whose update of the rest is put off; rows that registers hold
constexpr double kDoubtful = 1e-4;         // the share of what was summed into a diagonal entry below which it is in doubt

// Whether a diagonal entry kept its size.
template <class T>
GNEWT_INLINE bool kept(T value, T size) {
    return abs(value) >= T(kDoubtful) * size;
}

// Whether large numbers in the rows [first, last) of L are harmless: as they are where the diagonal they are subtracted from is as large (H ≻ 0: always).
template <class T>
inline bool grows_little(const T* r, int64_t ld, int64_t first, int64_t last, int64_t n, const T* out, const T* size) {
    for (int64_t k = first; k < last; ++k) {
        const T *u = r + k * ld, *l = out + k * n;
        for (int64_t j = k + 1; j < n; ++j)
            if (!(abs(l[j]) <= T(1 / kThreshold)) && !(abs(l[j] * u[j]) * T(kThreshold) <= size[j])) return false;
    }
    return true;
}

// What eliminating some rows works on; see eliminate_rows.
template <class T>
struct Rows {
    T* __restrict r;
    int64_t ld, n;
    T* __restrict rho;
    int64_t columns;
    const T* size;
    T* __restrict out;
    T* __restrict y;
};

// The pivots of a few rows and what they multiply each other by: l[i][k] is L[k, i].
template <class T>
struct Pivots {
    T d[kBlock], inverse[kBlock], l[kBlock][kBlock];
};

// Eliminate the block on the diagonal of the M rows from `first` on, number by number, as its pivots wait for each other.
template <class T, int M>
GNEWT_INLINE bool find_pivots(const Rows<T>& rows, int64_t first, Pivots<T>& out, Tally& tally) {
    const int64_t ld = rows.ld, columns = rows.columns;
    const T* r = rows.r + first * (ld + 1);
    T a[M][M], inverse[M];
    bool good = true;
#pragma GCC unroll 8
    for (int k = 0; k < M; ++k)
#pragma GCC unroll 8
        for (int i = k; i < M; ++i) a[k][i] = r[k * ld + i];
#pragma GCC unroll 8
    for (int k = 0; k < M; ++k) {
        const T d = a[k][k];
        out.d[k] = d;
        out.inverse[k] = inverse[k] = 1 / d;
        good &= kept(d, rows.size[first + k]) & (abs(d) > Precision<T>::tiny);
#pragma GCC unroll 8
        for (int i = k + 1; i < M; ++i) {
            out.l[i][k] = a[i][k] = a[k][i] * inverse[k];
#pragma GCC unroll 8
            for (int j = k + 1; j <= i; ++j) a[j][i] -= a[j][k] * a[k][i];
        }
    }
    for (int64_t c = 0; c < columns; ++c) {
        T x[M], *y = rows.y + first * columns + c;
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) x[k] = rows.rho[c * ld + first + k];
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) {
            y[k * columns] = x[k] * inverse[k];
#pragma GCC unroll 8
            for (int i = k + 1; i < M; ++i) x[i] -= a[i][k] * x[k];
        }
    }
    tally.template add_all<T, M>(out.d);
    return good;
}

// ... and in the rest of these rows: strips of columns, whose rows stay in registers. `largest`: of the magnitudes in L.
template <class T, int M>
GNEWT_INLINE void use_pivots(const Rows<T>& rows, int64_t first, const Pivots<T>& pivots, Vec<T>& largest) {
    constexpr int64_t w = kWidth<T>;
    const int64_t ld = rows.ld, n = rows.n, columns = rows.columns;
    T *r = rows.r + first * ld, *out = rows.out + first * n, *rho = rows.rho;
    const T* y = rows.y + first * columns;
    Vec<T> top = largest;
    // From the last strip to the first, and down the rows: what a vector writes behind its row of `out` is written over.
    for (int64_t j = ld - w; j >= floor_to_vector<T>(first); j -= w) {
        Vec<T> u[M];
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) u[k] = load(r + k * ld + j);
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k)
#pragma GCC unroll 8
            for (int i = k + 1; i < M; ++i) u[i] -= pivots.l[i][k] * u[k];
        for (int64_t c = 0; c < columns; ++c) {
            Vec<T> x = load(rho + c * ld + j), other{};
#pragma GCC unroll 8
            for (int k = 0; k < M; ++k) (k % 2 ? other : x) -= y[k * columns + c] * u[k];
            store(rho + c * ld + j, x + other);
        }
#pragma GCC unroll 8
        for (int k = 0; k < M; ++k) {
            store(r + k * ld + j, u[k]);
            u[k] *= pivots.inverse[k];
            const Vec<T> magnitude = vabs<T>(u[k]);
            top = magnitude > top ? magnitude : top;
        }
#pragma GCC unroll 8
        for (int k = 0; k + 1 < M; ++k) store(out + k * n + j, u[k]);
        if (j + w <= n) {
            store(out + (M - 1) * n + j, u[M - 1]);
        } else {
            T last[w];
            store(last, u[M - 1]);
            for (int64_t i = 0; i < n - j; ++i) out[(M - 1) * n + j + i] = last[i];
        }
    }
#pragma GCC unroll 8
    for (int k = 0; k < M; ++k) out[k * n + first + k] = pivots.d[k];
    largest = top;
}

// Call run(m as a constant) for m in [1, kBlock].
template <int M = kBlock, class Run>
GNEWT_INLINE void with_rows(int64_t m, Run run) {
    if (m == M)
        run(Length<M>{});
    else if constexpr (M > 1)
        with_rows<M - 1>(m, run);
}
template <class T, int M>
__attribute__((noinline)) inline bool find_pivots_call(const Rows<T>& rows, int64_t first, Pivots<T>& out, Tally& tally) {
    return find_pivots<T, M>(rows, first, out, tally);
}
template <class T, int M>
__attribute__((noinline)) inline void use_pivots_call(const Rows<T>& rows, int64_t first, const Pivots<T>& pivots, Vec<T>& largest) {
    use_pivots<T, M>(rows, first, pivots, largest);
}

// Eliminate the first q rows of the row-major matrix r[n, ld], with the right-hand sides rho[columns, ld]. These rows hold the upper triangle;
// of the others one triangle is there, and of the Schur complement that one is computed: `part`.
//
// size[j] holds what was summed into the diagonal entry j. On return `out` [q, n] holds D on its diagonal and L = D⁻¹U above it;
// `y` [q, columns] the right-hand sides as rows of L; `schur`, of leading dimension `lds`, the Schur complement, and rho[:, q..] what belongs
// to it. Q: the rows, at most kBlock, where they and all sizes are constants, else 0; FIXED: products are to be unrolled as well. False where a test failed. `meanwhile` is called while the first pivots are waited for: it may compute the other rows.
template <class T, int Q, bool FIXED, class Meanwhile>
GNEWT_INLINE bool eliminate_rows(const Rows<T>& rows, int64_t q, int part, T* __restrict schur, int64_t lds, Tally& tally, Meanwhile meanwhile) {
    static_assert(Q <= kBlock);
    const int64_t n = rows.n, ld = rows.ld;
    T *r = rows.r, *out = rows.out;
    for (int64_t first = 0; first < q; first += kPanel) {
        const int64_t last = min(first + kPanel, q);
        bool good = true;
        Vec<T> largest{};
        for (int64_t k = first; k < last; k += kBlock) {
            const int64_t end = min(k + kBlock, last);
            Pivots<T> pivots;
            if constexpr (Q > 0) {
                good &= find_pivots<T, Q>(rows, k, pivots, tally);
                meanwhile();
                use_pivots<T, Q>(rows, k, pivots, largest);
            } else {
                with_rows(end - k, [&](const auto m) { good &= find_pivots_call<T, int(decltype(m)::value)>(rows, k, pivots, tally); });
                if (k == 0) meanwhile();
                with_rows(end - k, [&](const auto m) { use_pivots_call<T, int(decltype(m)::value)>(rows, k, pivots, largest); });
            }
            if (end < last) multiply<T, kSubtract, FIXED>(end - k, end, last, kUpper, n, out + k * n, n, r + k * ld, ld, r, ld, r, ld);
        }
        if (!good) return false;
        T top = 0;
        for (int64_t j = 0; j < kWidth<T>; ++j) top = max(top, largest[j]);
        if (!(top <= T(1 / kThreshold)) && !grows_little(r, ld, first, last, n, out, rows.size)) return false;
        const T *l = out + first * n, *u = r + first * ld;
        T* rest = r + q * ld + q;
        if (last < q) {
            multiply<T, kSubtract, FIXED>(last - first, last, q, kUpper, n, l, n, u, ld, r, ld, r, ld);
            multiply<T, kSubtract, FIXED>(last - first, 0, n - q, part, n - q, l + q, n, u + q, ld, rest, ld, rest, ld);
        } else {  // the last panel: what is left goes straight to the stack
            multiply<T, kSubtract, FIXED>(last - first, 0, n - q, part, n - q, l + q, n, u + q, ld, rest, ld, schur, lds);
        }
    }
    if (q == 0)
        for (int64_t i = 0; i < n; ++i) std::memcpy(schur + i * lds + i, r + i * ld + i, size_t(n - i) * sizeof(T));
    return true;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
