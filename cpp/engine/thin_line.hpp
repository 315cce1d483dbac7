// Lines whose rows of L have few numbers: fronts without pairs, merged of unknowns that couple with their neighbours
// alone, as in a banded Hessian. Vectors would be filled with zeros there. So the elimination of one front is listed
// once, number by number, and each front of the line runs through the list. Called by lines.hpp.
//
// The pivots of the plan are taken, with the tests of the quick form. A front in doubt is left as it was.
#pragma once
#include "course.hpp"
#include "ldl.hpp"
#include "line.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// The numbers of the first q rows of a front that may be other than zero, and of the b rows that stay.
class ThinPattern {
public:
    static constexpr int64_t kMost = 24, kMostUpdates = 6;  // unknowns of a front; products of two numbers for a pivot

    // False where a front has pairs or too many numbers. `rest_rows`: the rows that the message meets, else -1.
    bool find(const Shape& s, const int16_t* rest_rows) {
        q_ = s.q, n_ = s.q + s.b;
        if (s.p || !s.q || n_ > kMost) return false;
        std::memset(entry, -1, sizeof entry);
        for (int32_t k = 0; k < s.num_blocks; ++k)
            for_places(s.blocks[k], [&](int64_t i, int64_t j, int64_t) { mark(i, j); });
        for (int64_t i = 0; i < n_; ++i)
            for (int64_t j = i; j < n_; ++j)
                if (i == j || i >= q_ || (rest_rows[i] >= 0 && rest_rows[j] >= 0)) mark(i, j);
        int64_t updates = 0;
        for (int64_t k = 0; k < q_; ++k)
            for (int64_t i = k + 1; i < n_; ++i)
                for (int64_t j = i; holds(k, i) && j < n_; ++j)
                    if (holds(k, j)) mark(i, j), ++updates;
        number();
        return updates <= kMostUpdates * q_;
    }

    // Where the number in row i and column j >= i stands, row after row; -1 where there is none.
    int16_t entry[kMost * kMost];
    int64_t size = 0;  // how many numbers there are
    // For the rows to eliminate, one after the other: how many numbers are behind the diagonal, their columns, and
    // where the products of any two of them are subtracted.
    int16_t steps[kMost * (1 + kMost) + kMostUpdates * kMost];
    int16_t rows[kMost];  // where the step of a row begins

    // List the steps of a pattern that was found.
    void list_steps() {
        int16_t* at = steps;
        for (int64_t k = 0; k < q_; ++k) {
            rows[k] = int16_t(at - steps);
            int16_t &count = *at++, *columns = at;
            count = 0;
            for (int64_t j = k + 1; j < n_; ++j)
                if (holds(k, j)) *at++ = int16_t(j), ++count;
            for (int16_t i = 0; i < count; ++i)
                for (int16_t j = i; j < count; ++j) *at++ = entry[columns[i] * n_ + columns[j]];
        }
    }

private:
    bool holds(int64_t i, int64_t j) const { return entry[i * n_ + j] >= 0; }
    void mark(int64_t i, int64_t j) { entry[i * n_ + j] = 0; }
    void number() {
        size = 0;
        for (int64_t i = 0; i < n_; ++i)
            for (int64_t j = i; j < n_; ++j)
                if (holds(i, j)) entry[i * n_ + j] = int16_t(size++);
    }

    int64_t q_ = 0, n_ = 0;
};

template <class T>
class ThinLine {
public:
    // Lay out the line of a record. False where it is not thin, or there is no memory.
    bool open(const PlanView& plan, const LineRecord& record) {
        const Shape& s = plan.front(record.first).shape;
        if (s.p || s.q + s.b > ThinPattern::kMost || !line_.open(plan, record, padded<T>(s.q + s.b))) return false;
        if (!pattern_.find(s, line_.rest_rows)) return false;
        pattern_.list_steps();
        if (!line_.open(plan, record, padded<T>(s.q + s.b), pattern_.entry, pattern_.size)) return false;
        q_ = s.q, b_ = s.b, n_ = q_ + b_;
        num_received_ = 0;
        for (int64_t i = 0; i < n_; ++i)
            for (int64_t j = i; j < n_; ++j)
                if (line_.rest_rows[i] >= 0 && line_.rest_rows[j] >= 0) {
                    const int64_t x = line_.rest_rows[i], y = line_.rest_rows[j];
                    received_[num_received_++] = {int16_t(min(x, y) * b_ + max(x, y)), pattern_.entry[i * n_ + j]};
                }
        return given_.reserve(line_.at.end);
    }

    // Eliminate the next fronts, up to front `end` or to the first front that is in doubt. Whether there was none.
    bool ascend(Course<T>& course, int32_t end) {
        Message& message = course.waiting[course.num_waiting - 1];
        const MessageParts<T> parts = message_parts(course.stack.data() + message.at, b_);
        for (int64_t i = 0; i < b_; ++i) {
            for (int64_t j = i; j < b_; ++j) schur_[i * b_ + j] = parts.schur[i * parts.ld + j];
            sizes_[i] = parts.sizes[i], carried_[i] = parts.carried[i];
        }
        const int32_t first = course.next;
        std::memset(given_.data(), 0, size_t(line_.at.end) * sizeof(T));
        auto streams = line_.streams_of(course.call.sources, first);
        const FrontRecord* front = course.plan.fronts() + first;
        int32_t k = first;
        bool good = true;
        for (; good && k < end; ++k, ++front) {
            line_.load(streams, given_.data());
            line_.advance(streams, 1);
            good = eliminate(course, course.plan.slots() + front->slots);
            if (!good) break;
            course.factor += q_ * n_;
        }
        if (k > first) {
            for (int64_t i = 0; i < b_; ++i) {
                for (int64_t j = i; j < b_; ++j) parts.schur[i * parts.ld + j] = schur_[i * b_ + j];
                parts.sizes[i] = sizes_[i], parts.carried[i] = carried_[i];
            }
            message = {message.at, message.end, k - 1};
        }
        course.next = k;
        return good;
    }

    // The solution in the fronts from `last` back to `first`; `factor`: behind the rows of L of the last one.
    void descend(const PlanView& plan, int32_t first, int32_t last, const T*& factor, T* z) const {
        T x[ThinPattern::kMost], next[ThinPattern::kMost];
        const FrontRecord* front = plan.fronts() + last;
        const int32_t* slots = plan.slots() + front->slots;
        for (int64_t i = 0; i < b_; ++i) next[i] = z[slots[q_ + i]];
        for (int32_t k = last; k >= first; --k, --front) {
            slots = plan.slots() + front->slots;
            for (int64_t i = 0; i < b_; ++i) x[q_ + i] = next[i];
            for (int64_t i = q_ - 1; i >= 0; --i) {
                factor -= n_;
                const int16_t* at = pattern_.steps + pattern_.rows[i];
                T sum = z[slots[i]];
                for (const int16_t* stop = at + 1 + at[0]; ++at < stop;) sum -= factor[*at] * x[*at];
                z[slots[i]] = x[i] = sum;
            }
            for (int64_t i = 0; i < b_; ++i) next[i] = x[line_.coordinates[i]];
        }
    }

private:
    // Eliminate one front, whose sources are given, and pass it on. False where it is in doubt: then nothing is passed
    // on.
    GNEWT_INLINE bool eliminate(Course<T>& course, const int32_t* slots) {
        const T *given = given_.data(), shift = course.call.shift;
        for (int64_t i = 0; i < pattern_.size; ++i) r_[i] = given[line_.at.r + i];
        for (int64_t i = 0; i < n_; ++i)
            size_[i] = given[line_.at.of_rest + i], rho_[i] = given[line_.at.rhs + i], taken_[i] = 0;
        for (int64_t i = 0; i < b_; ++i)
            size_[line_.coordinates[i]] += sizes_[i], rho_[line_.coordinates[i]] += carried_[i];
        for (int64_t i = 0; i < q_; ++i) {
            r_[pattern_.entry[i * (n_ + 1)]] += shift;
            size_[i] += abs(shift);
            rho_[i] += course.call.rhs[slots[i]];
        }
        for (int64_t i = 0; i < num_received_; ++i) r_[received_[i].to] += schur_[received_[i].from];
        Pivots pivots;
        T* z = course.z.data();
        std::memset(course.factor, 0, size_t(q_ * n_) * sizeof(T));
        find_pivots(course.factor, pivots, [&](int64_t k, T y) GNEWT_LAMBDA { z[slots[k]] = y; });
        if (!(pivots.kept && (pivots.top <= T(1 / kThreshold) || grows_little(course.factor)))) {
            course.lost = lost(course.lost_share());
            return false;
        }
        count(pivots, course.factor, course.tally);
        pass_on(pivots.below > 0 && pivots.below < q_);
        return true;
    }

    // What the pivots of a front showed.
    struct Pivots {
        bool kept = true;                             // all pivots kept their sizes
        T top = 0;                                    // the largest number of L
        double product = 1, lowest = 1, highest = 1;  // of their magnitudes, and the bounds of the products on the way
        T least = T(HUGE_VAL);
        int64_t below = 0;  // how many are negative
    };

    template <class Put>
    GNEWT_INLINE void find_pivots(T* out, Pivots& seen, Put put) {
        const int16_t* at = pattern_.steps;
        T *row = r_, d = r_[0], next = 0;
        for (int64_t k = 0; k < q_; ++k, out += n_) {
            const int64_t count = *at++;
            const T inverse = 1 / d, size = abs(d), y = rho_[k] * inverse;
            seen.kept &= kept(d, size_[k]) & (size > Precision<T>::tiny);
            seen.product *= double(size);
            seen.lowest = min(seen.lowest, seen.product), seen.highest = max(seen.highest, seen.product);
            seen.least = min(seen.least, size);
            seen.below += d < 0;
            put(k, y);
            out[k] = d;
            switch (count) {  // loops of a known length are no loops
                case 0: break;
                case 1: next = take_row(Length<1>{}, inverse, y, row + 1, at, out, seen.top); break;
                case 2: next = take_row(Length<2>{}, inverse, y, row + 1, at, out, seen.top); break;
                case 3: next = take_row(Length<3>{}, inverse, y, row + 1, at, out, seen.top); break;
                default: next = take_row(count, inverse, y, row + 1, at, out, seen.top);
            }
            row += 1 + count;
            // Pivots wait for each other, and would wait longer for memory.
            d = count && at[0] == k + 1 ? next : row[0];
            at += count + count * (count + 1) / 2;
        }
    }

    // Subtract what the pivot of a row takes, given the numbers behind its diagonal; L goes to `out`, and the largest
    // number of L to `top`. Returns what is left on the diagonal of the first column.
    template <class Count>
    GNEWT_INLINE T take_row(Count count, T inverse, T y, const T* row, const int16_t* columns, T* out, T& top) {
        const int64_t num = int64_t(count);
        const int16_t* to = columns + num;
        const T first = num ? r_[*to] - row[0] * inverse * row[0] : T(0);
#pragma GCC unroll 4
        for (int64_t i = 0; i < num; ++i) {
            const int64_t j = columns[i];
            const T u = row[i], l = u * inverse;
            out[j] = l;
            top = max(top, abs(l));
            rho_[j] -= y * u;
            taken_[j] += abs(l * u);
#pragma GCC unroll 4
            for (int64_t x = i; x < num; ++x) r_[*to++] -= l * row[x];
        }
        return first;
    }

    // See grows_little in ldl.hpp; L is given.
    bool grows_little(const T* l) const {
        for (int64_t k = 0; k < q_; ++k, l += n_)
            for (int64_t j = k + 1; j < n_; ++j)
                if (!(abs(l[j]) <= T(1 / kThreshold)) && !(abs(l[j] * (l[j] * l[k])) * T(kThreshold) <= size_[j]))
                    return false;
        return true;
    }
    // See lost_row in ldl.hpp.
    bool lost(T share) const {
        int64_t k = 0;
        const auto at = [&](int64_t j) { return r_[pattern_.entry[k * n_ + j]]; };
        while (k < q_ && kept(at(k), size_[k])) ++k;
        if (k == q_ || abs(at(k)) >= share * size_[k]) return false;
        for (int64_t j = k + 1; j < n_; ++j)
            if (pattern_.entry[k * n_ + j] >= 0 && abs(at(j)) >= share * std::sqrt(size_[k]) * std::sqrt(size_[j]))
                return false;
        return true;
    }

    void count(const Pivots& seen, const T* l, Tally& tally) const {
        if (seen.lowest > Tally::kLow && seen.highest < Tally::kHigh) {
            tally.add_product(q_ - seen.below, seen.below, double(seen.least), seen.product);
            return;
        }
        for (int64_t k = 0; k < q_; ++k) tally.add(double(l[k * (n_ + 1)]));
    }

    // The message; `both`: pivots have both signs, and what they subtract may cancel.
    GNEWT_INLINE void pass_on(bool both) {
        for (int64_t i = 0; i < b_; ++i) {
            const int16_t* entry = pattern_.entry + (q_ + i) * n_ + q_;
            for (int64_t j = i; j < b_; ++j) schur_[i * b_ + j] = r_[entry[j]];
            const T left = abs(r_[entry[i]]), size = size_[q_ + i] + (both ? taken_[q_ + i] : T(0));
            sizes_[i] = max(size, left);
            carried_[i] = rho_[q_ + i];
        }
    }

    static constexpr int64_t kMost = ThinPattern::kMost;
    struct Received {
        int16_t from, to;
    };
    Line<T> line_;
    ThinPattern pattern_;
    int64_t q_ = 0, b_ = 0, n_ = 0, num_received_ = 0;
    Received received_[kMost * kMost];
    Buffer<T> given_;
    T schur_[kMost * kMost], sizes_[kMost], carried_[kMost];                  // the message
    T r_[kMost * (kMost + 1) / 2], size_[kMost], rho_[kMost], taken_[kMost];  // the front, and what pivots subtract
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
