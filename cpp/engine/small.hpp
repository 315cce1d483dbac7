// Small fronts: one front, or eight fronts of the same sizes side by side, one in each lane of a vector. The pivots are
// those of the plan, with a test on each in each lane. Called by lanes.hpp.
//
// The elimination is that of quick.hpp, written for numbers V that are single (T) or vectors of eight (Eight<T>). Loops
// run over the entries of a front, so that no number of a small front goes to waste.
#pragma once
#include "blocks.hpp"
#include "eight.hpp"
#include "ldl.hpp"
#include "messages.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// Sizes of a front: p pairs, q inputs, a separator of b.
struct SmallSizes {
    int64_t p, q, b;
    int64_t n() const { return q + b; }
    int64_t m() const { return p + q + b; }
};

template <class T, class V>
class Small {
public:
    static constexpr int kLanesOf = int(sizeof(V) / sizeof(T));
    static constexpr int64_t kMost = padded<T>(kMostInLane), kRoom = 4 * kMost * kMost + 3 * kMost;

    // Make the front zero in all lanes. `work`: kRoom V.
    Small(const SmallSizes& sizes, V* work)
        : s_(sizes), n_(sizes.n()), m_(kLanesOf == 1 ? padded<T>(sizes.m()) : sizes.m()) {
        k_ = work;
        f_ = k_ + s_.m() * m_;
        g_ = f_ + s_.p * n_;
        size_ = g_ + s_.p * s_.p;
        rho_ = size_ + m_;
        l_ = rho_ + m_;
        w_ = l_ + m_;
        spread_ = w_ + s_.p * n_;
        const Target parts[] = {{f_, n_, -1}, {g_, s_.p, -1}, {k_, m_, 0}, {k_ + s_.p, m_, -1}, {rest(), m_, s_.p}};
        std::memcpy(targets_, parts, sizeof parts);
        std::memset(work, 0, size_t(l_ - work) * sizeof(V));
    }

    // Add sources, shift and right-hand sides of a front to a lane.
    void load(int lane, const Call<T>& call, const Front& front) {
        if (s_.p)
            load_parts(lane, call, front);
        else
            load_rest(lane, call, front);
        add_units(lane, call, front);
    }

    // The same for `count` lanes whose fronts have one shape.
    void load_alike(int count, const Call<T>& call, const Front* const* fronts) {
        const Shape& shape = fronts[0]->shape;
        cross_ |= (shape.flags & kCross) != 0, nested_ |= (shape.flags & kNested) != 0;
        const int32_t* starts[kLanesOf];
        for (int lane = 0; lane < kLanesOf; ++lane) starts[lane] = fronts[lane < count ? lane : 0]->sources;
        for (int32_t x = 0; x < shape.num_blocks; ++x) {
            const Block& block = shape.blocks[x];
            const Target& part = targets_[block.kind];
            int64_t from[kLanesOf];
            for (int lane = 0; lane < kLanesOf; ++lane) from[lane] = starts[lane][x];
            const auto add = [&](int64_t i, int64_t j, int64_t offset) GNEWT_LAMBDA {
                const V value = gather(call.sources + offset, from);
                part.at[i * part.ld + j] += value;
                if (i == j && part.diagonal >= 0) size_[part.diagonal + i] += magnitude(value);
            };
            if ((block.rows | block.len) == 1)
                add(block.row, block.col, 0);
            else
                for_places(block, add);
        }
        for (int lane = 0; lane < count; ++lane) add_units(lane, call, *fronts[lane]);
    }

    // Add a message of the front `child` to a lane.
    void add(int lane, const Shape& child, const MessageParts<const T>& message) {
        T *size = lane_of(size_, lane), *rho = lane_of(rho_, lane), *k = lane_of(k_, lane);
        int64_t places[kMostInLane];
        for (int32_t x = 0; x < child.num_runs; ++x)
            for (int32_t i = 0; i < runs_of(child)[x].length; ++i)
                places[runs_of(child)[x].start + i] = runs_of(child)[x].place + i;
        for (int64_t i = 0; i < child.b; ++i) {
            const int64_t x = places[i];
            const T* row = message.schur + i * message.ld;
            for (int64_t j = i; j < child.b; ++j) {
                const int64_t y = places[j];
                k[(min(x, y) * m_ + max(x, y)) * kLanesOf] += row[j];
                cross_ |= (x < s_.p) != (y < s_.p);
            }
            size[x * kLanesOf] += message.sizes[i];
            rho[x * kLanesOf] += message.carried[i];
        }
    }

    // The front as rows of a matrix, for one lane without pairs: rows of L go to `l` [q, n], right-hand sides to `y`.
    Rows<T> as_rows(T* l, T* y) const { return {k_, m_, n_, rho_, 1, size_, l, y}; }

    // Eliminate; the lanes in which all tests are passed.
    Holds<V> eliminate() {
        good_ = V{} == V{};
        product_ = lowest_ = highest_ = V{} + 1, least_ = V{} + T(HUGE_VAL), negative_ = V{};
        if (s_.p) substitute();
        for (int64_t k = 0; k < s_.q; ++k) take(k);
        return good_;
    }

    // Write the rows of L [q, n] of all lanes, each where its pointer says; nothing behind them is written.
    void write_rows(T* const* l) const {
        const int64_t rows = s_.p ? s_.q : 1, length = s_.p ? n_ : s_.q * n_;  // eight lanes: K has no columns to spare
        for (int64_t k = 0; k < rows; ++k) {
            const T* from = reinterpret_cast<const T*>(rest() + k * m_);
            int64_t e = 0;
            for (; e + 4 <= length; e += 4, from += 4 * kLanesOf)
                for (int lane = 0; lane < kLanesOf; lane += 4) {
                    const T* at = from + lane;
                    Quad<T> a = load4(at), b = load4(at + kLanesOf), c = load4(at + 2 * kLanesOf),
                            d = load4(at + 3 * kLanesOf);
                    transpose<T>(a, b, c, d);
                    const Quad<T> all[] = {a, b, c, d};
                    for (int i = 0; i < 4; ++i)
                        if (l[lane + i]) store4(l[lane + i] + k * n_ + e, all[i]);
                }
            for (; e < length; ++e, from += kLanesOf)
                for (int lane = 0; lane < kLanesOf; ++lane)
                    if (l[lane]) l[lane][k * n_ + e] = from[lane];
        }
    }

    // Write the results of a lane: right-hand sides as rows of L to z, and the message if b > 0; and the rows of L, if
    // `l` is given.
    void write(int lane, const Front& front, T* l, T* z, const MessageParts<T>& message, Tally& tally) const {
        const T *r = lane_of(rest(), lane), *rho = lane_of(rho_ + s_.p, lane), *size = lane_of(size_ + s_.p, lane);
        const int32_t* slots = front.slots + s_.p;
        for (int64_t k = 0; k < s_.q; ++k) z[slots[k]] = rho[k * kLanesOf];
        if (l)
            for (int64_t k = 0; k < s_.q; ++k)
                for (int64_t j = 0; j < n_; ++j) l[k * n_ + j] = r[(k * m_ + j) * kLanesOf];
        for (int64_t i = 0; i < s_.b; ++i) {
            const T* row = r + ((s_.q + i) * m_ + s_.q) * kLanesOf;
            for (int64_t j = i; j < s_.b; ++j) message.schur[i * message.ld + j] = row[j * kLanesOf];
            message.sizes[i] = max(size[(s_.q + i) * kLanesOf], abs(row[i * kLanesOf]));
            message.carried[i] = rho[(s_.q + i) * kLanesOf];
        }
        count(lane, r, tally);
    }

private:
    struct Target {
        V* at;
        int64_t ld, diagonal;  // where the sizes of the diagonal are, -1 where the part has none
    };

    void load_parts(int lane, const Call<T>& call, const Front& front) {
        const Shape& shape = front.shape;
        cross_ |= (shape.flags & kCross) != 0, nested_ |= (shape.flags & kNested) != 0;
        T* size = lane_of(size_, lane);
        for (int32_t x = 0; x < shape.num_blocks; ++x) {
            const Block& block = shape.blocks[x];
            const Target& part = targets_[block.kind];
            add_block(block, call.sources + front.sources[x], lane_of(part.at, lane), part.ld,
                      part.diagonal < 0 ? nullptr : size + part.diagonal * kLanesOf);
        }
    }
    void load_rest(int lane, const Call<T>& call, const Front& front) {
        T *k = lane_of(k_, lane), *size = lane_of(size_, lane);
        const Block* blocks = front.shape.blocks;
        for (int32_t x = 0; x < front.shape.num_blocks; ++x) {  // blocks of one number each
            const T value = call.sources[front.sources[x]];
            const int64_t i = blocks[x].row, j = blocks[x].col;
            k[(i * m_ + j) * kLanesOf] += value;
            if (i == j) size[i * kLanesOf] += abs(value);
        }
    }

    // Add a block to a part in one lane; `size`: where the sizes of its diagonal are, if the part has one.
    static GNEWT_INLINE void add_block(const Block& block, const T* src, T* at, int64_t ld, T* size) {
        const auto add = [&](int64_t i, int64_t j, T value) GNEWT_LAMBDA {
            at[(i * ld + j) * kLanesOf] += value;
            if (i == j && size) size[i * kLanesOf] += abs(value);
        };
        if ((block.rows | block.len) == 1)
            add(block.row, block.col, *src);
        else
            for_each(block, src, add);
    }

    // The shift and the right-hand sides of inputs.
    void add_units(int lane, const Call<T>& call, const Front& front) {
        for (int64_t i = 0; i < s_.q; ++i) add_input(lane, call, front.slots[s_.p + i], s_.p + i);
    }

    static GNEWT_INLINE V gather(const T* at, const int64_t* from) {
        if constexpr (kLanesOf == 1)
            return at[from[0]];
        else
            return V{at[from[0]], at[from[1]], at[from[2]], at[from[3]],
                     at[from[4]], at[from[5]], at[from[6]], at[from[7]]};
    }

    static T* lane_of(V* at, int lane) { return reinterpret_cast<T*>(at) + lane; }
    V* rest() const { return k_ + s_.p * (m_ + 1); }

    GNEWT_INLINE void add_input(int lane, const Call<T>& call, int32_t slot, int64_t i) {
        lane_of(k_, lane)[i * (m_ + 1) * kLanesOf] += call.shift;
        lane_of(size_, lane)[i * kLanesOf] += abs(call.shift);
        lane_of(rho_, lane)[i * kLanesOf] += call.rhs[slot];
    }

    // R += Fᵀ(PP·F + C) + CᵀF, where K = [PP, C; ., R]; and what these terms add to the diagonal at most.
    void substitute() {
        const int64_t p = s_.p;
        if (nested_) unfold();
        const V* spread = nested_ ? spread_ : f_;
        Holds<V> definite = V{} == V{};
        test_pairs(definite);
        V *r = rest(), *size = size_ + p, *rho = rho_ + p;
        for (int64_t i = 0; i < p; ++i)
            for (int64_t j = 0; j < n_; ++j) {
                V sum = k_[i * m_ + p + j];
                for (int64_t x = 0; x < p; ++x) sum += k_[min(i, x) * m_ + max(i, x)] * f_[x * n_ + j];
                w_[i * n_ + j] = sum;
            }
        for (int64_t i = 0; i < p; ++i) {
            const V *f = f_ + i * n_, *w = w_ + i * n_, *c = k_ + i * m_ + p, *x = spread + i * n_;
            const V weight = magnitude(k_[i * (m_ + 1)]), v = rho_[i];
            for (int64_t j = 0; j < n_; ++j) {
                const V part = x[j] * w[j];
                size[j] += weight * x[j] * x[j] + (definite ? V{} : magnitude(part)) + magnitude(x[j] * c[j]);
                rho[j] += f[j] * v;
                if (vanishes(f[j])) continue;
                for (int64_t k = j; k < n_; ++k) r[j * m_ + k] += f[j] * w[k];
            }
            for (int64_t j = 0; cross_ && j < n_; ++j)
                for (int64_t k = j; k < n_; ++k) r[j * m_ + k] += c[j] * f[k];
        }
    }

    // The tests on PP: its diagonal entries kept their sizes, and no row that is not zero is bare.
    void test_pairs(Holds<V>& definite) {
        for (int64_t i = 0; i < s_.p; ++i) {
            const V d = k_[i * (m_ + 1)];
            good_ &= magnitude(d) >= T(kDoubtful) * size_[i];
            definite &= d > 0;
            Holds<V> beside = V{} != V{};
            for (int64_t j = 0; j < s_.p; ++j) beside |= k_[min(i, j) * m_ + max(i, j)] != 0;
            good_ &= (d != 0) | (beside == Holds<V>{});
        }
    }

    // F := (I - G)⁻¹F, from the last pair, which reads no other pair, to the first.
    void unfold() {
        for (int64_t i = 0; i < s_.p * n_; ++i) spread_[i] = magnitude(f_[i]);
        for (int64_t row = s_.p - 1; row >= 0; --row)
            for (int64_t j = 0; j < s_.p; ++j) {
                const V x = g_[row * s_.p + j];
                if (vanishes(x)) continue;
                for (int64_t k = 0; k < n_; ++k) {
                    f_[row * n_ + k] += x * f_[j * n_ + k];
                    spread_[row * n_ + k] += magnitude(x) * spread_[j * n_ + k];
                }
            }
    }

    // Count a pivot, of which `size` is the product and `least` the smallest eigenvalue, in magnitude.
    GNEWT_INLINE void add_pivot(V size, V least) {
        product_ *= size;
        lowest_ = smaller(lowest_, product_), highest_ = larger(highest_, product_);
        least_ = smaller(least_, least);
    }

    // Eliminate row k of R.
    GNEWT_INLINE void take(int64_t k) {
        V *r = rest(), *u = r + k * m_, *size = size_ + s_.p, *rho = rho_ + s_.p;
        const V d = u[k], kept_size = magnitude(d), inverse = 1 / d, given = rho[k];
        good_ &= (kept_size >= T(kDoubtful) * size[k]) & (kept_size > Precision<T>::tiny);
        add_pivot(kept_size, kept_size);
        negative_ += d < 0 ? V{} + 1 : V{};
        rho[k] = given * inverse;
        for (int64_t j = k + 1; j < n_; ++j) {
            const V l = l_[j] = u[j] * inverse, part = magnitude(l * u[j]);
            good_ &= (magnitude(l) <= T(1 / kThreshold)) | (part * T(kThreshold) <= size[j]);
            size[j] += part;
            rho[j] -= l * given;
        }
        for (int64_t i = k + 1; i < n_; ++i) {
            const V l = l_[i];
            if (vanishes(l)) continue;
            V* row = r + i * m_;
            for (int64_t j = i; j < n_; ++j) row[j] -= l * u[j];
        }
        for (int64_t j = k + 1; j < n_; ++j) u[j] = l_[j];
    }

    // Add the pivots of a lane to the tally: their product, if it stayed within bounds.
    void count(int lane, const T* r, Tally& tally) const {
        constexpr T low = sizeof(T) == 8 ? T(Tally::kLow) : T(1e-30), high = sizeof(T) == 8 ? T(Tally::kHigh) : T(1e30);
        const auto get = [&](const V& x) { return lane_of(const_cast<V*>(&x), lane)[0]; };
        if (get(lowest_) > low && get(highest_) < high) {
            const int64_t negative = int64_t(get(negative_));
            tally.add_product(s_.q - negative, negative, double(get(least_)), double(get(product_)));
            return;
        }
        const auto entry = [&](int64_t i, int64_t j) { return double(r[(i * m_ + j) * kLanesOf]); };
        for (int64_t k = 0; k < s_.q; ++k) tally.add(entry(k, k));
    }

    const SmallSizes s_;
    const int64_t n_, m_;  // m_: the leading dimension of K
    Target targets_[5];    // where the sources of a kind go
    V *k_, *f_, *g_;       // K [m, m_], upper, of [p | q | b]; F [p, n]; G [p, p]
    V *size_, *rho_;       // [m_] what was summed into the diagonal; right-hand sides
    V *l_, *w_, *spread_;  // a row of L [m_]; W = PP·F + C [p, n]; the magnitudes that went into F [p, n]
    bool cross_ = false, nested_ = false;
    Holds<V> good_;
    V product_, lowest_, highest_, least_, negative_;  // of the pivots so far; the bounds of their product
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
