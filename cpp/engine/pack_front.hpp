// One front of eight problems: the quick form of quick.hpp, with a vector in place of every number. Each lane has tests
// of its own; no pivot is moved. Called by pack.hpp.
#pragma once
#include "blocks.hpp"
#include "messages.hpp"
#include "pack_memory.hpp"
#include "pivots.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// What the pivots say of the matrices, lane by lane (see Tally).
template <class T>
struct PackTally {
    using V = Eight<T>;
    static constexpr T kLow = sizeof(T) == 8 ? T(Tally::kLow) : T(1e-30), kHigh = 1 / kLow;

    V positive{}, negative{}, smallest = V{} + T(HUGE_VAL);

    GNEWT_INLINE void add(V pivot, V size) {
        const auto below = pivot < 0;
        negative += below ? V{} + 1 : V{};
        positive += below ? V{} : V{} + 1;
        smallest = smaller(smallest, size);
        const V next = product_ * size;
        const auto fits = (next > kLow) & (next < kHigh);
        if (__builtin_expect(vanishes(fits ? V{} : V{} + 1), true)) {
            product_ = next;
            return;
        }
        for (int lane = 0; lane < kLanesOfPack; ++lane)
            sums_[lane] += std::log(double(product_[lane])) + std::log(double(size[lane]));
        product_ = V{} + 1;
    }
    double logdet(int lane) const { return sums_[lane] + std::log(double(product_[lane])); }

private:
    V product_ = V{} + 1;
    double sums_[kLanesOfPack] = {};
};

// What waits for the parent: a Schur complement [b, b], upper, its sizes [b] and right-hand sides [b], side by side.
template <class V>
struct PackMessage {
    V *schur, *sizes, *carried;
    PackMessage(V* at, int64_t b) : schur(at), sizes(at + b * b), carried(sizes + b) {}
    static int64_t size(int64_t b) { return b * (b + 2); }
};

template <class T>
class PackFront {
    using V = Eight<T>;
    using Lanes = Holds<V>;

public:
    // Vectors of work space for fronts of at most so many unknowns.
    static int64_t room(int64_t m) { return 6 * m * m + 6 * m; }

    PackFront(const Front& front, V* work) : front_(front), s_(front.shape), p_(s_.p), q_(s_.q), n_(s_.q + s_.b) {
        m_ = p_ + n_;
        k_ = work;
        f_ = k_ + m_ * m_;
        g_ = f_ + p_ * n_;
        size_ = g_ + p_ * p_;
        rho_ = size_ + m_;
        w_ = rho_ + m_;
        spread_ = w_ + p_ * n_;
        below_ = spread_ + p_ * n_;
        std::memset(work, 0, size_t(w_ - work) * sizeof(V));
    }

    void load(const V* sources, V shift, const V* rhs) {
        const struct {
            V* at;
            int64_t ld, diagonal;
        } parts[] = {{f_, n_, -1}, {g_, p_, -1}, {k_, m_, 0}, {k_ + p_, m_, -1}, {rest(), m_, p_}};
        for (int32_t x = 0; x < s_.num_blocks; ++x) {
            const Block& block = s_.blocks[x];
            const auto& part = parts[block.kind];
            const V* from = sources + front_.sources[x];
            for_places(block, [&](int64_t i, int64_t j, int64_t at) GNEWT_LAMBDA {
                part.at[i * part.ld + j] += from[at];
                if (i == j && part.diagonal >= 0) size_[part.diagonal + i] += magnitude(from[at]);
            });
        }
        for (int64_t i = p_; i < p_ + q_; ++i) {
            k_[i * (m_ + 1)] += shift;
            size_[i] += magnitude(shift);
            rho_[i] += rhs[front_.slots[i]];
        }
    }

    // Add the message of a child.
    void add(const Shape& child, const PackMessage<const V>& message) {
        int64_t places[kMostInFront];
        for (int32_t x = 0; x < child.num_runs; ++x)
            for (int32_t i = 0; i < runs_of(child)[x].length; ++i)
                places[runs_of(child)[x].start + i] = runs_of(child)[x].place + i;
        for (int64_t i = 0; i < child.b; ++i) {
            const int64_t x = places[i];
            const V* row = message.schur + i * child.b;
            for (int64_t j = i; j < child.b; ++j) k_[min(x, places[j]) * m_ + max(x, places[j])] += row[j];
            size_[x] += message.sizes[i];
            rho_[x] += message.carried[i];
        }
    }

    // Eliminate: rows of L to `l` [q, n], right-hand sides as rows of L to z. Lanes in doubt are taken out of `good`.
    void eliminate(V* l, V* z, PackTally<T>& tally, Lanes& good) {
        if (p_) substitute(good);
        V* r = rest();
        Lanes above{}, under{};
        for (int64_t i = 0; i < n_; ++i) below_[i] = V{};
        for (int64_t k = 0; k < q_; ++k) take(k, l + k * n_, z, tally, good, above, under);
        add_product<V, true, true>(q_, {l + q_, n_}, {r + q_, m_}, {r + q_ * (m_ + 1), m_}, s_.b, s_.b);
        // What pivots of both signs subtract may cancel (add_subtracted in ldl.hpp).
        const Lanes both = above & under;
        for (int64_t i = q_; i < n_; ++i) size_[p_ + i] += both ? below_[i] : V{};
    }

    void write(const PackMessage<V>& message) const {
        const int64_t b = s_.b;
        const V* r = rest() + q_ * (m_ + 1);
        for (int64_t i = 0; i < b; ++i) {
            for (int64_t j = i; j < b; ++j) message.schur[i * b + j] = r[i * m_ + j];
            message.sizes[i] = larger(size_[p_ + q_ + i], magnitude(r[i * (m_ + 1)]));
            message.carried[i] = rho_[p_ + q_ + i];
        }
    }

    static constexpr int64_t kMostInFront = 32;  // unknowns of a front, pairs counted once

private:
    V* rest() const { return k_ + p_ * (m_ + 1); }

    // R += Fᵀ(PP·F + C) + CᵀF, where K = [PP, C; ., R]; and what these terms add to the diagonal at most.
    void substitute(Lanes& good) {
        if (s_.flags & kNested) unfold();
        const V* spread = s_.flags & kNested ? spread_ : f_;
        for (int64_t i = 1; i < p_; ++i)
            for (int64_t j = 0; j < i; ++j) k_[i * m_ + j] = k_[j * m_ + i];
        const Lanes definite = test_pairs(good);
        const bool cross = (s_.flags & kCross) != 0;
        for (int64_t i = 0; i < p_; ++i)
            for (int64_t j = 0; j < n_; ++j) w_[i * n_ + j] = cross ? k_[i * m_ + p_ + j] : V{};
        add_product<V, false, false>(p_, {k_, m_}, {f_, n_}, {w_, n_}, p_, n_);
        add_product<V, true, false>(p_, {f_, n_}, {w_, n_}, {rest(), m_}, n_, n_);
        if (cross) add_product<V, true, false>(p_, {k_ + p_, m_}, {f_, n_}, {rest(), m_}, n_, n_);
        const bool all = vanishes(definite ? V{} : V{} + 1);
        for (int64_t j = 0; j < n_; ++j) {
            V size = size_[p_ + j], rho = rho_[p_ + j];
            for (int64_t i = 0; i < p_; ++i) {
                const V x = spread[i * n_ + j];
                size += magnitude(k_[i * (m_ + 1)]) * x * x;
                rho += f_[i * n_ + j] * rho_[i];
                if (!all) size += definite ? V{} : magnitude(x * w_[i * n_ + j]);
                if (cross) size += magnitude(x * k_[i * m_ + p_ + j]);
            }
            size_[p_ + j] = size, rho_[p_ + j] = rho;
        }
    }

    // The tests on PP, which is whole: its diagonal entries kept their sizes, and no row that is not zero is bare. The
    // lanes in which the diagonal is positive.
    Lanes test_pairs(Lanes& good) const {
        Lanes definite = V{} == V{};
        for (int64_t i = 0; i < p_; ++i) {
            const V d = k_[i * (m_ + 1)];
            good &= magnitude(d) >= T(kDoubtful) * size_[i];
            definite &= d > 0;
            if (vanishes(d == 0 ? V{} + 1 : V{})) continue;
            for (int64_t j = 0; j < p_; ++j) good &= (d != 0) | (k_[i * m_ + j] == 0);
        }
        return definite;
    }

    // F := (I - G)⁻¹F, from the last pair, which reads no other pair, to the first.
    void unfold() {
        for (int64_t i = 0; i < p_ * n_; ++i) spread_[i] = magnitude(f_[i]);
        for (int64_t row = p_ - 1; row >= 0; --row)
            for (int64_t j = 0; j < p_; ++j) {
                const V x = g_[row * p_ + j];
                if (vanishes(x)) continue;
                for (int64_t k = 0; k < n_; ++k) {
                    f_[row * n_ + k] += x * f_[j * n_ + k];
                    spread_[row * n_ + k] += magnitude(x) * spread_[j * n_ + k];
                }
            }
    }

    // Eliminate row k of R among the rows of the inputs.
    GNEWT_INLINE void take(int64_t k, V* l, V* z, PackTally<T>& tally, Lanes& good, Lanes& above, Lanes& under) {
        V *r = rest(), *u = r + k * m_, *rho = rho_ + p_;
        const V *size = size_ + p_, d = u[k], kept_size = magnitude(d), inverse = 1 / d, given = rho[k];
        good &= (kept_size >= T(kDoubtful) * size[k]) & (kept_size > Precision<T>::tiny);
        above |= d > 0, under |= d < 0;
        tally.add(d, kept_size);
        z[front_.slots[p_ + k]] = given * inverse;
        l[k] = d;
        for (int64_t j = k + 1; j < n_; ++j) {
            const V x = l[j] = u[j] * inverse, part = magnitude(x * u[j]);
            good &= (magnitude(x) <= T(1 / kThreshold)) | (part * T(kThreshold) <= size[j]);
            below_[j] += part;
            rho[j] -= x * given;
        }
        for (int64_t i = k + 1; i < q_; ++i)
            for (int64_t j = i; j < n_; ++j) r[i * m_ + j] -= l[i] * u[j];
    }

    const Front& front_;
    const Shape& s_;
    const int64_t p_, q_, n_;
    int64_t m_;
    V *k_, *f_, *g_;           // K [m, m], upper, of [p | q | b]; F [p, n]; G [p, p]
    V *size_, *rho_;           // [m] what was summed into the diagonal; right-hand sides
    V *w_, *spread_, *below_;  // PP·F + C [p, n]; the magnitudes that went into F [p, n]; what pivots subtract [n]
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
