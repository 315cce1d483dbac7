// Noise: what rounding left in the entries of a front that is eliminated carefully, and how large noise may be.
//
// Three sources of noise are told apart: sums of sources (Assembled), products with pairs (Substituted), and what came
// with the children or arose in this elimination (CarefulFront). careful.hpp asks whether a pivot is more than noise.
#pragma once
#include "blocks.hpp"
#include "gemm.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// Rows from which on a front is wide: worth what makes large fronts fast (probes, packing, panels of 32, gathering).
constexpr int64_t kWide = 128;
// Random right-hand sides that show noise: as many as fill a line of the cache.
template <class T>
constexpr int64_t kProbes = kLineBytes / int64_t(sizeof(T));
// Factor on the variance that probes show; see likely_uncertainty, where the chance of an error follows from the value.
template <class T>
constexpr T kMargin = sizeof(T) == 8 ? T(1e4) : T(10);

// A leading dimension for rows of n numbers. Rows of a wide front must not begin at multiples of 512 bytes: numbers
// below each other would fall into the same few lines of the cache.
template <class T>
inline int64_t spaced(int64_t n) {
    const int64_t ld = padded<T>(n);
    return ld * int64_t(sizeof(T)) % 512 == 0 && n >= kWide ? ld + kLineBytes / int64_t(sizeof(T)) : ld;
}

// An entry below this may be rounding, where magnitudes of `size` were summed into it.
template <class T>
inline T rounding(T size) {
    return T(kNoise) * Precision<T>::eps * size;
}

// x · y of long vectors, by four sums at a time: a single sum would wait for itself.
template <class T>
inline T long_dot(const T* x, const T* y, int64_t n) {
    constexpr int64_t w = kWidth<T>;
    Vec<T> a{}, b{}, c{}, d{};
    int64_t i = 0;
    for (; i + 4 * w <= n; i += 4 * w) {
        a += load(x + i) * load(y + i);
        b += load(x + i + w) * load(y + i + w);
        c += load(x + i + 2 * w) * load(y + i + 2 * w);
        d += load(x + i + 3 * w) * load(y + i + 3 * w);
    }
    return sum<T>((a + b) + (c + d)) + dot(x + i, y + i, n - i);
}

// A front whose first `candidates` rows are to be eliminated, where their elimination is stable.
//
// An entry (i, j) that is no larger than rounding of √(bound[i]·bound[j]) counts as zero: in sums of squares no more
// than this product went into the entry.
template <class T>
struct CarefulFront {
    T* r;  // [n, ld] row-major upper; right-hand sides and then probes (write_probes) stand in the columns n..
    int64_t ld, n, candidates, columns, probes;
    T* bound;             // [n] the sum of the magnitudes that were added into each diagonal entry
    const T* given;       // [n] `bound` as it was before any row was eliminated, in the order in which rows came
    const T* local;       // [n] the part of `given` that arose in this front, not through pairs, in the same order
    const T* f;           // [pairs, ld] pairs that were substituted, x_p = F x, in the same order
    const T* pair_bound;  // [pairs] noise in the diagonal entries of PP
    int64_t pairs;
    int32_t* ids;     // [n] names of the rows, exchanged with the rows
    int32_t* place;   // [n] where the row that came i-th stands now
    int32_t* origin;  // [n] the inverse of `place`
    int8_t* null;     // [n] rows that are rounding noise altogether
    T* l;             // [candidates, n] on return: D on its diagonal, L = D⁻¹U right of it
    T* off;           // [candidates] the entry between rows k and k + 1 of a 2×2 pivot, where L has a zero; else zero
    T* y;             // [candidates, columns] right-hand sides as rows of L
    T* scratch;       // see Panel::scratch_size
    int32_t primal;   // names below this can be bare: all slots of a causal plan, the inputs alone of a free plan
    T share = T(kDoubtful);  // a row below this share of what was summed into it is lost

    // The noise in the diagonal entry of row c, with `top` rows eliminated: [-x; 1]ᵀ N [-x; 1] and what the elimination
    // added. N is the noise in the front as it came; x = A⁻¹a for the eliminated block A and its column a. Noise comes
    // through pairs as the closed loop F_c - F_A x lets it: the loop is small where F is large but inputs counter F.
    // A pivot that cancelled makes x large.
    T uncertainty(int64_t c, int64_t top, T* x) const {
        T sum = added(c) + local[origin[c]];
        for (int64_t k = top - 1; k >= 0; --k) {
            const T* row = l + k * n;
            x[k] = row[c] - long_dot(row + k + 1, x + k + 1, top - k - 1);
            sum += x[k] * x[k] * local[origin[k]];
        }
        for (int64_t i = 0; i < pairs; ++i) {
            const T* row = f + i * ld;
            T closed = row[origin[c]];
            for (int64_t k = 0; k < top; ++k) closed -= row[origin[k]] * x[k];
            sum += pair_bound[i] * closed * closed;
        }
        return sum;
    }

    // The uncertainties of the rows [from, to), by strips of rows, with four rows of L at a time.
    // `x`: scratch_of_noise(n).
    void uncertainties(int64_t from, int64_t to, int64_t top, T* x, T* out) const {
        constexpr int vectors = kTileVectors;
        constexpr int64_t w = kWidth<T>, strip = vectors * w;
        for (; from < to; from += strip) {
            const int64_t count = min(strip, to - from);
            const auto gather = [&](const T* row, Vec<T>* to_vectors, const auto& at) {
                T numbers[strip] = {};
                for (int64_t j = 0; j < count; ++j) numbers[j] = row[at(from + j)];
                for (int v = 0; v < vectors; ++v) to_vectors[v] = load(numbers + v * w);
            };
            Vec<T> sum[vectors] = {};
            const auto solve = [&](int64_t k, const auto rows) GNEWT_LAMBDA {
                constexpr int m = int(decltype(rows)::value);
                Vec<T> here[m][vectors];
                const T* l_k = l + k * n;
                for (int i = 0; i < m; ++i) gather(l_k + i * n, here[i], [](int64_t j) { return j; });
                accumulate<T, m, vectors, true, true>(here, top - k - m, {l_k + k + m, n},
                                                      {x + (k + m) * strip, strip});
#pragma GCC unroll 4
                for (int i = m - 1; i >= 0; --i)
#pragma GCC unroll 8
                    for (int v = 0; v < vectors; ++v) {
#pragma GCC unroll 4
                        for (int j = i + 1; j < m; ++j) here[i][v] -= l_k[i * n + k + j] * here[j][v];
                        store(x + (k + i) * strip + v * w, here[i][v]);
                        sum[v] += local[origin[k + i]] * here[i][v] * here[i][v];
                    }
            };
            int64_t k = top;
            for (; k % 4; --k) solve(k - 1, Length<1>{});
            for (; k > 0; k -= 4) solve(k - 4, Length<4>{});
            for (int64_t i = 0; i < pairs; ++i) {
                const T* row = f + i * ld;
                Vec<T> closed[vectors];
                gather(row, closed, [&](int64_t j) { return origin[j]; });
                for (k = 0; k < top; ++k)
                    for (int v = 0; v < vectors; ++v) closed[v] -= row[origin[k]] * load(x + k * strip + v * w);
                for (int v = 0; v < vectors; ++v) sum[v] += pair_bound[i] * closed[v] * closed[v];
            }
            for (int64_t j = 0; j < count; ++j)
                out[from + j] = added(from + j) + local[origin[from + j]] + sum[j / w][j % w];
        }
    }
    static int64_t scratch_of_noise(int64_t n) { return n * kTileVectors * kWidth<T>; }

    // An upper bound of the uncertainty of row c, which is in w, from its probes; the bound may be far too large. The
    // bound fails with a chance of one in 10⁹ (10¹⁶ in double precision). Probes are random right-hand sides with the
    // noise as their variance: what the elimination leaves of probes has the uncertainty as its variance. A sum of
    // independent uniform numbers is below ε of its deviation with a chance of at most 0.82 ε (Ball); the chance that
    // all probes are is this chance to the power of their number, where ε² = 1 / kMargin.
    T likely_uncertainty(int64_t c, const T* w) const {
        if (!probes) return T(HUGE_VAL);
        T top = 0;
        for (int64_t i = 0; i < probes; ++i) top = max(top, abs(w[n + columns + i]));
        return added(c) + local[origin[c]] + kMargin<T> * top * top;
    }

    // Write the probes into rows of which none is eliminated.
    void write_probes() {
        uint64_t state = 0;
        const auto random = [&] {  // a linear congruential generator; uniform, of variance one
            state = state * 6364136223846793005u + 1442695040888963407u;
            const uint64_t mixed = (state ^ (state >> 29)) * 0xbf58476d1ce4e5b9u;
            return (T(int64_t(mixed >> 11)) * T(0x1p-52) - 1) * T(1.7320508);  // √3
        };
        T* to = r + n + columns;
        for (int64_t j = 0; j < n; ++j)
            for (int64_t i = 0; i < probes; ++i) to[j * ld + i] = std::sqrt(local[j]) * random();
        for (int64_t k = 0; k < pairs; ++k)
            for (int64_t i = 0; i < probes; ++i) {
                const T weight = std::sqrt(pair_bound[k]) * random();
                for (int64_t j = 0; j < n; ++j) to[j * ld + i] += weight * f[k * ld + j];
            }
    }

private:
    // What the elimination added to the bound of row c.
    T added(int64_t c) const { return bound[c] - given[origin[c]]; }
};

// The magnitudes that sources added into the entries of a front. The first `late` rows of the front have no sources.
template <class T>
class Assembled {
public:
    Assembled(const Front& front, const T* sources, int64_t late, T* rows)
        : front_(front), sources_(sources), late_(late), rows_(rows) {}

    T operator()(int64_t i, int64_t j) const {
        if (i < late_ || j < late_) return 0;
        T sum = 0;
        for_blocks([&](const Block& block, const T* from) {
            sum += magnitude_at(block, from, min(i, j) - late_, max(i, j) - late_);
        });
        return sum;
    }

    // An upper bound of (i, j) without a look through all blocks: the smaller one of two sums over whole rows.
    T at_most(int64_t i, int64_t j) {
        if (i < late_ || j < late_) return 0;
        if (!ready_) {
            std::memset(rows_, 0, size_t(front_.shape.q + front_.shape.b) * sizeof(T));
            for_blocks([&](const Block& block, const T* from) {
                for_each(block, from, [&](int64_t row, int64_t col, T value) {
                    rows_[row] += abs(value);
                    rows_[col] += abs(value);
                });
            });
            ready_ = true;
        }
        return min(rows_[i - late_], rows_[j - late_]);
    }

private:
    template <class Visit>
    void for_blocks(Visit visit) const {
        for (int32_t k = 0; k < front_.shape.num_blocks; ++k)
            if (front_.shape.blocks[k].kind == kR) visit(front_.shape.blocks[k], sources_ + front_.sources[k]);
    }

    const Front& front_;
    const T* sources_;
    const int64_t late_;
    T* rows_;
    bool ready_ = false;
};

// What pairs brought to a front, R = FᵀW + CᵀF with W = PP·F + C. Some entries of R are nothing but rounding.
template <class T>
struct Substituted {
    int64_t p, n, ld;
    const T *f, *w, *c;  // [p, ld]
    T* r;                // [n, ld], upper

    // Make entries zero that are rounding, in bare rows: nothing is on the diagonal of a bare row, so its bound says
    // nothing of noise in the row. `scratch`: [2, ld].
    void flush(const T* bound, T* scratch) const {
        T *size = scratch, *most = scratch + ld;
        std::memset(most, 0, size_t(n) * sizeof(T));
        for (int64_t i = 0; i < p; ++i) {  // most[j]: no less than the size of any entry in row j
            T in_f = 0, in_w = 0;
            for (int64_t j = 0; j < n; ++j) in_f = max(in_f, abs(f[i * ld + j])), in_w = max(in_w, beside(i, j));
            for (int64_t j = 0; j < n; ++j) most[j] += abs(f[i * ld + j]) * in_w + in_f * beside(i, j);
        }
        for (int64_t row = 0, first = 0; row < n; ++row) {
            if (bound[row] != 0) continue;
            if (any_below(row, first, rounding(most[row]))) flush_row(row, first, size);
            first += first == row;  // while all rows are bare, entries before the diagonal have been looked at
        }
    }

private:
    T beside(int64_t i, int64_t j) const { return abs(w[i * ld + j]) + abs(c[i * ld + j]); }
    T& entry(int64_t row, int64_t j) const { return j < row ? r[j * ld + row] : r[row * ld + j]; }

    bool any_below(int64_t row, int64_t first, T limit) const {
        bool any = false;
        for (int64_t j = first; j < row; ++j) any |= r[j * ld + row] != 0 && abs(r[j * ld + row]) <= limit;
        for (int64_t j = row; j < n; ++j) any |= (r[row * ld + j] != 0) & (abs(r[row * ld + j]) <= limit);
        return any;
    }

    void flush_row(int64_t row, int64_t first, T* __restrict size) const {
        std::memset(size, 0, size_t(n) * sizeof(T));
        for (int64_t i = 0; i < p; ++i) {
            const T x = abs(f[i * ld + row]), y = beside(i, row);
            for (int64_t j = first; j < n; ++j) size[j] += x * beside(i, j) + abs(f[i * ld + j]) * y;
        }
        for (int64_t j = first; j < n; ++j)
            if (abs(entry(row, j)) <= rounding(size[j])) entry(row, j) = 0;
    }
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
