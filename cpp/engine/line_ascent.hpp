// The elimination of a line of fronts (line.hpp) in one loop. Rows are VECTORS vectors long; a front is loaded while
// the front before it waits for pivots; the Schur complement stays where it was computed until the line ends. Called by
// lines.hpp.
//
// Two forms. Without NOISE the pivots of the plan are taken with the tests of the quick form (quick.hpp, ldl.hpp). With
// NOISE a front follows the noise on its diagonal as the careful form does (careful.hpp, noise.hpp), and takes pivots
// that pass the tests of the careful form as they stand. A front that fails is left as it was.
#pragma once
#include "course.hpp"
#include "ldl.hpp"
#include "line_space.hpp"
#include "noise.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T, int VECTORS, bool NOISE>
class LineAscent : private LineSpace<T, VECTORS> {
    using Base = LineSpace<T, VECTORS>;
    using Base::add_message, Base::add_multiple, Base::each, Base::kRow, Base::lay_out, Base::over_rows, Base::put,
        Base::row;
    using Base::given_, Base::next_, Base::f_, Base::w_, Base::c_, Base::unfolded_, Base::spread_, Base::pp_;
    using Base::line_, Base::p_, Base::q_, Base::b_, Base::n_, Base::ldp_, Base::cross_, Base::before_, Base::after_;
    using Base::weight_, Base::v_, Base::pair_noise_, Base::l_, Base::shift_, Base::y_, Base::d_, Base::numbers_;
    using Base::x_, Base::closed_, Base::local_, Base::bound_, Base::unit_, Base::ones_, Base::pair_mask_;
    using Row = typename Base::Row;
    using Streams = typename Line<T>::Streams;

public:
    using Base::work_size;

    GNEWT_INLINE LineAscent(Course<T>& course, Line<T>& line) : Base(line), course_(course), call_(course.call) {}

    // Eliminate the next fronts, up to front `end` or to the first front that is in doubt. Whether there was none.
    // `work`: work_size().
    GNEWT_INLINE bool run(T* work, int32_t end) {
        lay_out(work, call_.shift);
        Message& message = course_.waiting[course_.num_waiting - 1];
        const MessageParts<T> parts = message_parts(course_.stack.data() + message.at, b_);
        take(parts);
        const int32_t first = course_.next;
        const FrontRecord* front = course_.plan.fronts() + first;
        auto streams = line_.streams_of(call_.sources, first);
        slots_ = course_.plan.slots() + front->slots + p_;
        load_front(streams, slots_, given_);
        int32_t k = first;
        bool good = true;
        for (; k < end; ++k, course_.factor += q_ * n_) {
            const int32_t* next_slots = slots_;
            if (k + 1 < end) line_.advance(streams, 1), next_slots = course_.plan.slots() + (++front)->slots + p_;
            good = eliminate(streams, next_slots);
            if (!good) break;
            slots_ = next_slots;
            swap(given_, next_), swap(before_, after_);
        }
        if (k > first) {
            pass_on(parts);
            message = {message.at, message.end, k - 1};
        }
        course_.next = k;
        return good;
    }

private:
    // The message of the front before the line, and that of the last front.
    void take(const MessageParts<T>& from) {
        for (int64_t i = 0; i < b_; ++i) {
            for (int64_t j = i; j < b_; ++j) before_.r[(q_ + i) * kRow + q_ + j] = from.schur[i * from.ld + j];
            before_.size[q_ + i] = from.sizes[i], before_.rho[q_ + i] = from.carried[i];
        }
    }
    void pass_on(const MessageParts<T>& to) {
        for (int64_t i = 0; i < b_; ++i) {
            for (int64_t j = i; j < b_; ++j) to.schur[i * to.ld + j] = before_.r[(q_ + i) * kRow + q_ + j];
            to.sizes[i] = before_.size[q_ + i], to.carried[i] = before_.rho[q_ + i];
        }
    }

    // The sources and right-hand sides of a front, given its streams and the slots of its inputs.
    GNEWT_INLINE void load_front(const Streams& streams, const int32_t* slots, T* to) {
        line_.load(streams, to);
        for (int64_t k = 0; k < q_; ++k) to[line_.at.rhs + k] = call_.rhs[slots[k]];
    }

    // Eliminate one front; meanwhile the next one is loaded.
    GNEWT_INLINE bool eliminate(const Streams& next_streams, const int32_t* next_slots) {
        f_ = given_ + line_.at.f;
        if (!add_pairs()) return false;
        if (cross_) add_cross();
        if (line_.nested) unfold_pairs();
        multiply_pairs();
        add_sizes();
        over_rows(0, q_, [&](int64_t i, const auto m) GNEWT_LAMBDA { rest_rows<int(decltype(m)::value), true>(i); });
        const bool good = NOISE ? find_pivots_noisy() : find_pivots();
        load_front(next_streams, next_slots, next_);
        if (!good) return false;
        over_rows(q_, n_, [&](int64_t i, const auto m) GNEWT_LAMBDA { rest_rows<int(decltype(m)::value), false>(i); });
        write_sizes();
        write_rows();
        return true;
    }

    // PP of this front, whole; weights and right-hand sides of its pairs. False where PP is in doubt.
    GNEWT_INLINE bool add_pairs() {
        const T *sources = given_ + line_.at.pp, *sizes = given_ + line_.at.of_pairs;
        bool above = true, large = true;
        for (int64_t i = 0; i < p_; ++i) {
            const int64_t c = line_.pair_rows[i];
            T* to = pp_ + i * ldp_;
            const T* from = before_.r + (q_ + c) * kRow + q_;
            for (int64_t j = 0; j < ldp_; j += kWidth<T>) {
                Vec<T> x = load(sources + i * ldp_ + j);
                for (int k = 0; k < (c < 0 ? 0 : line_.num_in_pairs); ++k)
                    x += (Vec<T>)((Lanes<T>)load(from + line_.in_pairs[k].start - line_.in_pairs[k].place + j) &
                                  (Lanes<T>)load(pair_mask_ + k * ldp_ + j));
                store(to + j, x);
            }
            for (int64_t j = 0; j < i; ++j) to[j] = pp_[j * ldp_ + i];
            const T d = to[i], size = sizes[i] + (c < 0 ? T(0) : before_.size[q_ + c]);
            v_[i] = c < 0 ? T(0) : before_.rho[q_ + c];
            if (NOISE) pair_noise_[i] = size;
            above &= d > 0;
            large &= abs(d) >= T(kDoubtful) * size;
            weight_[i] = NOISE ? abs(d) : size;
        }
        definite_ = above && !NOISE;
        if (NOISE) return true;
        if (large)
            for (int64_t i = 0; i < p_; ++i) weight_[i] = abs(pp_[i * (ldp_ + 1)]);
        else
            course_.lost = !renew_weights(p_, pp_, ldp_, weight_);
        return !course_.lost && (definite_ || !bare_row(p_, pp_, ldp_));
    }

    // C of this front: sources, and what the message has between pairs and the rest.
    GNEWT_INLINE void add_cross() const {
        for (int64_t i = 0; i < p_; ++i) {
            const int64_t c = line_.pair_rows[i];
            Row x = {};
            if (line_.cross) x = row(given_ + line_.at.c + i * kRow);
            if (c >= 0) add_message(before_.r + (q_ + c) * kRow, x);
            put(c_ + i * kRow, x);
        }
    }

    // F := (I - G)⁻¹F, and the magnitudes that went into F.
    GNEWT_INLINE void unfold_pairs() {
        const T* entries = given_ + line_.at.g;
        for (int64_t i = 0; i < p_; ++i) {
            Row x = row(f_ + i * kRow);
            put(unfolded_ + i * kRow, x);  // the sources of the front after the next one go to the same places only
            each([&](int v) GNEWT_LAMBDA { x.v[v] = vabs<T>(x.v[v]); });
            put(spread_ + i * kRow, x);
        }
        f_ = unfolded_;
        line_.for_reads_of_pairs([&](int64_t i, int64_t j, int64_t k) GNEWT_LAMBDA {
            const T x = entries[k], size = abs(x);
            add_multiple(f_ + i * kRow, x, f_ + j * kRow);
            add_multiple(spread_ + i * kRow, size, spread_ + j * kRow);
        });
    }
    // W = PP·F + C.
    GNEWT_INLINE void multiply_pairs() const {
        over_rows(0, p_, [&](int64_t i, const auto number) GNEWT_LAMBDA {
            constexpr int m = int(decltype(number)::value);
            Vec<T> sums[m][VECTORS] = {};
            if (cross_)
                for (int k = 0; k < m; ++k)
                    each([&](int v) GNEWT_LAMBDA { sums[k][v] = load(c_ + (i + k) * kRow + v * kWidth<T>); });
            accumulate<T, m, VECTORS, false, true>(sums, p_, {pp_ + i * ldp_, ldp_}, {f_, kRow});
            store_tile<T>(sums, {w_ + i * kRow, kRow});
        });
    }

    // The sizes and right-hand sides of R: given, by the message, and through pairs.
    GNEWT_INLINE void add_sizes() const {
        Row size = row(given_ + line_.at.of_rest), rho = row(given_ + line_.at.rhs), through = {};
        const Row shifts = row(ones_);
        each([&](int v) GNEWT_LAMBDA { size.v[v] += shifts.v[v]; });
        if (line_.num_in_rest) add_message(before_.size, size), add_message(before_.rho, rho);
        const T* magnitudes = line_.nested ? spread_ : f_;
        for (int64_t i = 0; i < p_; ++i) {
            const Row f = row(f_ + i * kRow), x = row(magnitudes + i * kRow);
            const T weight = weight_[i], carried = v_[i];
            each([&](int v) GNEWT_LAMBDA {
                size.v[v] += weight * x.v[v] * x.v[v];
                rho.v[v] += carried * f.v[v];
                if (NOISE) through.v[v] += pair_noise_[i] * x.v[v] * x.v[v];
            });
            if (!definite_)
                each([&](int v) GNEWT_LAMBDA { size.v[v] += vabs<T>(x.v[v] * load(w_ + i * kRow + v * kWidth<T>)); });
            if (cross_)
                each([&](int v) GNEWT_LAMBDA { size.v[v] += vabs<T>(x.v[v] * load(c_ + i * kRow + v * kWidth<T>)); });
        }
        put(after_.rho, rho);
        if (NOISE) {
            put(local_, size);
            each([&](int v) GNEWT_LAMBDA { size.v[v] += through.v[v]; });
            put(bound_, size);
        }
        put(after_.size, size);
    }

    // M rows of R = H + FᵀW + CᵀF from row i on; those to be eliminated, or the others, less what pivots take.
    template <int M, bool FIRST>
    GNEWT_INLINE void rest_rows(int64_t i) const {
        Vec<T> sums[M][VECTORS] = {};
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
            Row x = {};
            if (i + m < line_.rows) x = row(given_ + line_.at.r + (i + m) * kRow);
            if (FIRST) each([&](int v) GNEWT_LAMBDA { x.v[v] += load(shift_ + (i + m) * kRow + v * kWidth<T>); });
            const int64_t c = line_.num_in_rest ? line_.rest_rows[i + m] : -1;
            if (c >= 0) add_message(before_.r + (q_ + c) * kRow, x);
            each([&](int v) GNEWT_LAMBDA { sums[m][v] = x.v[v]; });
        }
        accumulate<T, M, VECTORS, false, false>(sums, p_, {f_ + i, kRow}, {w_, kRow});
        if (i + M > line_.beside) accumulate<T, M, VECTORS, false, false>(sums, p_, {c_ + i, kRow}, {f_, kRow});
        if (!FIRST) accumulate<T, M, VECTORS, true, false>(sums, q_, {l_ + i, kRow}, {after_.r, kRow});
        store_tile<T>(sums, {after_.r + i * kRow, kRow});
    }

    // Take row k: L, the right-hand sides, and the other rows to be eliminated.
    GNEWT_INLINE Row take_row(int64_t k, T inverse) const {
        const Row u = row(after_.r + k * kRow);
        Row l, rho = row(after_.rho);
        const T y = after_.rho[k] * inverse;
        each([&](int v) GNEWT_LAMBDA {
            l.v[v] = u.v[v] * inverse;
            rho.v[v] -= y * u.v[v];
        });
        put(l_ + k * kRow, l);
        put(after_.rho, rho);
        y_[k] = y;
        for (int64_t i = k + 1; i < q_; ++i) add_multiple(after_.r + i * kRow, -l_[k * kRow + i], after_.r + k * kRow);
        return l;
    }

    // Eliminate the first q rows among themselves. False where a pivot is in doubt.
    GNEWT_INLINE bool find_pivots() {
        bool good = true;
        Vec<T> top{};
        d_[0] = after_.r[0];
        for (int64_t k = 0; k < q_; ++k) {
            const T d = d_[k], inverse = 1 / d;
            // Pivots wait for each other: the next one is found before its row.
            const T *u = after_.r + k * (kRow + 1), x = u[1];
            d_[k + 1] = u[kRow + 1] - x * inverse * x;
            good &= kept(d, after_.size[k]) & (abs(d) > Precision<T>::tiny);
            const Row l = take_row(k, inverse);
            each([&](int v) GNEWT_LAMBDA {
                const Vec<T> magnitude = vabs<T>(l.v[v]);
                top = magnitude > top ? magnitude : top;
            });
        }
        T most = 0;
        for (int64_t j = 0; j < kWidth<T>; ++j) most = max(most, top[j]);
        if (good && (most <= T(1 / kThreshold) || grows_little())) return true;
        course_.lost = lost();
        return false;
    }

    // See grows_little in ldl.hpp.
    bool grows_little() const {
        for (int64_t k = 0; k < q_; ++k) {
            const T *l = l_ + k * kRow, d = d_[k];
            for (int64_t j = k + 1; j < n_; ++j)
                if (!(abs(l[j]) <= T(1 / kThreshold)) && !(abs(l[j] * (l[j] * d)) * T(kThreshold) <= after_.size[j]))
                    return false;
        }
        return true;
    }
    // See lost_row in ldl.hpp.
    bool lost() const {
        int64_t k = 0;
        while (k < q_ && kept(d_[k], after_.size[k])) ++k;
        for (int64_t j = k + 1; k < q_ && j < n_; ++j)
            if (kept(after_.r[k * kRow + j], after_.size[k], after_.size[j])) return false;
        return k < q_;
    }

    // The same with the tests of the careful form, on rows as they stand. A pivot that cancelled makes later ones
    // uncertain: these must be more than noise.
    GNEWT_INLINE bool find_pivots_noisy() {
        bool good = true, uncertain = false;
        for (int64_t i = 0; i < n_; ++i) good &= bound_[i] > 0;  // a bare row, or a number that is not finite
        for (int64_t i = 0; i < n_; ++i) unit_[i] = 1 / std::sqrt(bound_[i]);
        for (int64_t i = 0; i < p_; ++i) put(closed_ + i * kRow, row(f_ + i * kRow));
        for (int64_t k = 0; k < q_ && good; ++k) {
            const T size = abs(after_.r[k * (kRow + 1)]), bound = bound_[k], top = largest_behind(k);
            good = size > Precision<T>::tiny && size * unit_[k] >= T(kThreshold) * top;
            if (cancelled(size, bound)) {
                good &= k + 1 < q_ ? kept(size, bound) : size > rounding(bound);
                uncertain = true;
            }
            if (uncertain && k) good &= size > rounding(uncertainty(k));
            if (good) take_noisy(k);
        }
        return good;
    }

    // The largest entry of row k behind its diagonal, in units.
    GNEWT_INLINE T largest_behind(int64_t k) const {
        const Row u = row(after_.r + k * kRow), unit = row(unit_), number = row(numbers_);
        Vec<T> top{};
        each([&](int v) GNEWT_LAMBDA {
            const Vec<T> size = vabs<T>(u.v[v]) * unit.v[v], behind = number.v[v] > T(k) ? size : Vec<T>{};
            top = behind > top ? behind : top;
        });
        T out = 0;
        for (int64_t j = 0; j < kWidth<T>; ++j) out = max(out, top[j]);
        return out;
    }

    // Take row k, and follow the noise on the diagonal.
    GNEWT_INLINE void take_noisy(int64_t k) const {
        d_[k] = after_.r[k * (kRow + 1)];
        const Row l = take_row(k, 1 / d_[k]), u = row(after_.r + k * kRow);
        Row bound = row(bound_);
        each([&](int v) GNEWT_LAMBDA { bound.v[v] += vabs<T>(l.v[v] * u.v[v]); });
        put(bound_, bound);
        for (int64_t i = 0; i < k; ++i) add_multiple(x_ + i * kRow, -x_[i * kRow + k], l_ + k * kRow);
        put(x_ + k * kRow, l);
        for (int64_t i = 0; i < p_; ++i) add_multiple(closed_ + i * kRow, -closed_[i * kRow + k], l_ + k * kRow);
    }

    // The noise in the diagonal entry of row k, with the rows before it eliminated: see CarefulFront::uncertainty.
    T uncertainty(int64_t k) const {
        T sum = bound_[k] - after_.size[k] + local_[k];
        for (int64_t i = 0; i < k; ++i) sum += local_[i] * x_[i * kRow + k] * x_[i * kRow + k];
        for (int64_t i = 0; i < p_; ++i) sum += pair_noise_[i] * closed_[i * kRow + k] * closed_[i * kRow + k];
        return sum;
    }

    // The sizes of what is passed on: in the noisy form, the noise of it.
    GNEWT_INLINE void write_sizes() {
        const int64_t above = course_.tally.positive, below = course_.tally.negative;
        for (int64_t k = 0; k < q_; ++k) course_.tally.add(double(d_[k]));
        if (NOISE) {
            if (p_) find_noise();
        } else if (course_.tally.positive > above && course_.tally.negative > below) {
            for (int64_t k = 0; k < q_; ++k) {
                const T d = abs(d_[k]);
                for (int64_t j = q_; j < n_; ++j) after_.size[j] += d * l_[k * kRow + j] * l_[k * kRow + j];
            }
        }
        for (int64_t j = q_; j < n_; ++j) {
            const T left = abs(after_.r[j * (kRow + 1)]);
            after_.size[j] = NOISE ? renewed(left, bound_[j]) : max(after_.size[j], left);
        }
    }

    // The uncertainties of all rows that stay.
    GNEWT_INLINE void find_noise() const {
        Row sum = row(bound_);
        const Row given = row(after_.size), local = row(local_);
        each([&](int v) GNEWT_LAMBDA { sum.v[v] += local.v[v] - given.v[v]; });
        for (int64_t k = 0; k < q_; ++k) {
            const Row x = row(x_ + k * kRow);
            each([&](int v) GNEWT_LAMBDA { sum.v[v] += local_[k] * x.v[v] * x.v[v]; });
        }
        for (int64_t i = 0; i < p_; ++i) {
            const Row x = row(closed_ + i * kRow);
            each([&](int v) GNEWT_LAMBDA { sum.v[v] += pair_noise_[i] * x.v[v] * x.v[v]; });
        }
        put(bound_, sum);
    }

    // The rows of L, for the way down, and their right-hand sides.
    GNEWT_INLINE void write_rows() const {
        T *out = course_.factor, *z = course_.z.data();
        const T* end = call_.factor + course_.plan.rows_size();
        for (int64_t k = 0; k < q_; ++k, out += n_) {
            if (end - out >= kRow)
                put(out, row(l_ + k * kRow));  // numbers behind the row are written over
            else
                std::memcpy(out, l_ + k * kRow, size_t(n_) * sizeof(T));
            out[k] = d_[k];
            z[slots_[k]] = y_[k];
        }
    }

    Course<T>& course_;
    const Call<T>& call_;
    bool definite_;         // whether the diagonal of PP is positive
    const int32_t* slots_;  // of the inputs of this front
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
