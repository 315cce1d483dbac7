// Fronts that are eliminated carefully, one at a time: pivots by search, bounds of noise, records, delays.
//
// A causal front is primal-only: its pairs are substituted, x_p = F [u; ξ], without a division, and duals are never computed; its
// inputs are eliminated by LDLᵀ with a test on every pivot. A front of a free plan holds duals. Where the pivots are not those of the plan
// a front leaves a record, and what finds no stable pivot there is delayed to the parent, where those unknowns stand before the others.
#pragma once
#include "careful.hpp"
#include "course.hpp"
#include "extend.hpp"
#include "solve.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T>
class CarefulFronts {
public:
    explicit CarefulFronts(Course<T>& course)
        : course_(course),
          call_(course.call),
          plan_(course.plan),
          columns_(course.columns),
          num_waiting_(course.num_waiting),
          stack_(course.stack),
          z_(course.z),
          waiting_(course.waiting) {
        begin(true);
    }

    // `mixed`: some fronts are eliminated quickly. They need to know what was summed into a diagonal, not what of it may be noise.
    void begin(bool mixed) {
        mixed_ = mixed;
        const int64_t rows = plan_.rows_size();
        nulls_ = delayed_ = numbers_end_ = index_end_ = late_end_ = 0;
        first_null_ = -1;
        numbers_.lend(call_.factor + rows, call_.factor_len - rows);
        index_.lend(call_.index, call_.index_len - 4);
    }

    // Eliminate the next front.
    Status eliminate() {
        const Front front = plan_.front(course_.next);
        if (plan_.causal() && !course_.gathering.look_ahead(plan_, course_.next, columns_)) return kOutOfMemory;
        const Status status = eliminate(course_.next, front);
        if (status == kOk) course_.gather(course_.next);
        ++course_.next;
        if (plan_.causal()) course_.factor += int64_t(front.shape.q) * (front.shape.q + front.shape.b);
        return status;
    }

    Records<T> records() const { return {index_.data(), numbers_.data(), index_end_, numbers_end_}; }
    bool kept() const { return !numbers_.moved() && !index_.moved(); }  // whether the caller has all of the records
    int64_t nulls() const { return nulls_; }
    int64_t delayed() const { return delayed_; }
    int64_t largest() const { return largest_; }  // the largest front, without its pairs
    int32_t first_null() const { return first_null_; }

private:
    using Search = Careful<T, Assembled<T>>;

    // Make room for a front of p pairs and n other unknowns, with so many rows of R; numbers in the work space are lost.
    bool reserve(int64_t p, int64_t n, int64_t rows) {
        const int64_t ld = front_width<T>(n, columns_), ldp = padded<T>(p + columns_);
        return work_.reserve(p * (ldp + 1) + (4 * p + rows + 5) * ld + n * columns_ + Search::scratch_size(n, ld) + 64);
    }

    // The parts of a front in the work space. `late` unknowns were delayed by the children; they come first in [late | q | b].
    struct Parts {
        T *pp, *f, *w, *c, *r, *panel, *bound, *given, *local, *through, *rows, *pair_bound, *y;
        int64_t late, m, n, ld, ldp;  // m = late + q, n = m + b
    };

    Status eliminate(int32_t number, const Front& front) {
        const Shape& shape = front.shape;
        const bool gathered = course_.gathering.is(number);
        const int32_t num_children = front.num_children - (gathered ? course_.gathering.added() : 0);
        const Message* first = waiting_.data() + num_waiting_ - num_children;
        int64_t late = 0;
        for (int32_t k = 0; k < num_children; ++k) late += first[k].delayed;
        const int64_t p = shape.p, q = shape.q, b = shape.b, m = late + q, n = m + b;
        const bool ready = gathered && !late && !p;  // R is where it was gathered
        if (!reserve(p, n, ready ? 0 : n)) return kOutOfMemory;
        Parts at;
        at.late = late, at.m = m, at.n = n, at.ld = front_width<T>(n, columns_), at.ldp = padded<T>(p + columns_);
        at.pp = work_.data();
        at.f = at.pp + p * at.ldp;
        at.w = at.f + p * at.ld;
        at.c = at.w + 2 * p * at.ld;
        at.r = at.c + p * at.ld;
        at.panel = at.r + (ready ? 0 : n) * at.ld;
        at.bound = at.panel + Search::scratch_size(n, at.ld);
        at.given = at.bound + at.ld;    // the bounds as they were before the elimination, ...
        at.local = at.given + at.ld;    // ... the part of them that arises in this front, ...
        at.through = at.local + at.ld;  // ... and the part that comes through the pairs
        at.rows = at.through + at.ld;
        at.y = at.rows + at.ld;
        at.pair_bound = at.y + n * columns_;
        const Children<T> children{plan_, first, num_children, stack_.data(), columns_, late};
        const bool cross = (shape.flags & kCross) || (p && late);
        const T* sources = call_.sources;
        if (p) {
            std::memset(at.pp, 0, size_t(p * at.ldp) * sizeof(T));
            std::memset(at.pair_bound, 0, size_t(p) * sizeof(T));
            if (cross) std::memset(at.c, 0, size_t(p * at.ld) * sizeof(T));
            children.add_to_pairs(p, at.pp, at.ldp, at.c, at.ld, at.pair_bound);
        }
        std::memset(at.bound, 0, size_t(at.ld) * sizeof(T));
        std::memset(at.through, 0, size_t(at.ld) * sizeof(T));
        if (ready)
            at.r = course_.gathering.matrix();
        else
            std::memset(at.r, 0, size_t(n * at.ld) * sizeof(T));
        int32_t first_rest = 0;
        if (p) {
            first_rest = load_pairs(front, at);
            substitute(cross, shape.flags & kNested, p, at);
        }
        if (gathered) take_gathered(at);
        T *r = at.r + late * (at.ld + 1), *bound = at.bound + late;
        for (int32_t k = first_rest; k < shape.num_blocks; ++k) {
            place<T, true>(shape.blocks[k], sources + front.sources[k], r, at.ld);
            place_diagonal(shape.blocks[k], sources + front.sources[k], bound);
        }
        children.add_to_rest(p, n, at.r, at.ld, at.bound);
        if (plan_.causal())
            for (int64_t i = 0; i < q; ++i) add_input(front.slots[p + i], late + i, at);
        else
            add_units(front, at);
        for (int64_t i = 0; i < n; ++i) {
            at.local[i] = at.bound[i];
            at.given[i] = at.bound[i] += at.through[i];
        }
        return eliminate_carefully(number, front, num_children, at);
    }

    // R, if it is not there, and its bounds from where they were gathered: behind what is late.
    void take_gathered(const Parts& at) {
        const int64_t n = at.n - at.late, ld = front_width<T>(n, columns_);
        const T *from = course_.gathering.matrix(), *bound = course_.gathering.bound();
        const bool ready = at.r == from;
        for (int64_t i = 0; i < n; ++i, from += ld) {
            at.bound[at.late + i] += bound[i];
            if (ready) continue;
            T* to = at.r + (at.late + i) * at.ld;
            axpy(to + at.late + i, T(1), from + i, n - i);
            axpy(to + at.n, T(1), from + n, columns_);
        }
        course_.gathering.end();
    }

    // Load F, PP and C; return the first block that goes elsewhere.
    int32_t load_pairs(const Front& front, const Parts& at) {
        const Shape& shape = front.shape;
        const int64_t p = shape.p, ld = at.ld;
        const bool dense = (shape.flags & kDenseJacobian) && !at.late;
        if (!dense) std::memset(at.f, 0, size_t(p * ld) * sizeof(T));
        T *f = at.f + at.late, *c = at.c + at.late;
        int32_t k = 0;
        for (; k < shape.num_blocks && shape.blocks[k].kind != kR; ++k) {
            const Block& block = shape.blocks[k];
            const T* src = call_.sources + front.sources[k];
            if (block.kind == kF && dense) {
                place<T, false>(block, src, f, ld);
            } else if (block.kind == kF) {
                place<T, true>(block, src, f, ld);
            } else if (block.kind == kPP) {
                place<T, true>(block, src, at.pp, at.ldp);
                place_diagonal(block, src, at.pair_bound);
            } else if (block.kind == kC) {
                place<T, true>(block, src, c, ld);
            }
        }
        const int32_t first_rest = k;
        if (!(shape.flags & kNested)) return first_rest;
        // F := (I - G)⁻¹F, from the last pair, which reads no other, to the first; and the magnitudes that went into it.
        T* size = at.w + p * ld;
        for (int64_t i = 0; i < p * ld; ++i) size[i] = abs(at.f[i]);
        for (int64_t row = p - 1; row >= 0; --row)
            for (k = 0; k < first_rest; ++k)
                if (shape.blocks[k].kind == kG)
                    for_row(shape.blocks[k], call_.sources + front.sources[k], row, [&](int64_t j, T v) {
                        axpy(f + row * ld, v, f + j * ld, int64_t(shape.q + shape.b));
                        axpy(size + row * ld, abs(v), size + j * ld, at.n);
                    });
        return first_rest;
    }

    // R = Fᵀ(PP·F + C) + CᵀF, with the right-hand sides of the pairs carried along.
    void substitute(bool cross, bool nested, int64_t p, const Parts& at) {
        const int64_t n = at.n, ld = at.ld, ldp = at.ldp, columns = columns_, end = padded<T>(n + columns);
        T *pp = at.pp, *f = at.f, *w = at.w, *c = at.c, *r = at.r, *bound = at.bound;
        for (int64_t i = 1; i < p; ++i)
            for (int64_t j = 0; j < i; ++j) pp[i * ldp + j] = pp[j * ldp + i];
        multiply_pairs(p, pp, ldp, n, f, ld, w);
        if (cross)
            for (int64_t i = 0; i < p; ++i) axpy(w + i * ld, T(1), c + i * ld, n);
        for (int64_t i = 0; i < p; ++i)
            for (int64_t j = 0; j < columns; ++j) w[i * ld + n + j] = pp[i * ldp + p + j];
        multiply_upper<T, kAdd>(p, 0, n, end, f, ld, w, ld, r, ld, at.panel);
        const T* size = nested ? w + p * ld : f;
        for (int64_t i = 0; i < p; ++i) {
            const T weight = abs(pp[i * ldp + i]), noise = at.pair_bound[i];
            for (int64_t k = 0; k < n; ++k) {
                const T x = size[i * ld + k];
                bound[k] += abs(x * w[i * ld + k]) + weight * x * x;
                at.through[k] += noise * x * x;
            }
        }
        if (!cross) return;
        for (int64_t i = 0; i < p; ++i) {
            for (int64_t k = 0; k < columns; ++k) f[i * ld + n + k] = 0;
            for (int64_t k = 0; k < n; ++k) bound[k] += abs(size[i * ld + k] * c[i * ld + k]);
        }
        multiply_upper<T, kAdd>(p, 0, n, end, c, ld, f, ld, r, ld, at.panel);
        Substituted<T>{p, n, ld, size, w, c, r}.flush(bound, at.panel);
    }

    // Free plans: the -1 of the pairs, the shift, and the right-hand sides of the inputs.
    void add_units(const Front& front, const Parts& at) {
        const Shape& shape = front.shape;
        for (int32_t i = 0; i < shape.num_pairs; ++i) {
            const int64_t x = at.late + shape.pairs[2 * i], y = at.late + shape.pairs[2 * i + 1];
            at.r[min(x, y) * at.ld + max(x, y)] -= 1;
        }
        for (int32_t i = 0; i < shape.num_inputs; ++i) {
            const int64_t x = shape.inputs[i];
            add_input(front.slots[x], at.late + x, at);
        }
    }

    // The shift and the right-hand sides of an input.
    void add_input(int32_t slot, int64_t row, const Parts& at) {
        at.r[row * at.ld + row] += call_.shift;
        at.bound[row] += abs(call_.shift);
        const T* given = call_.rhs + slot * columns_;
        for (int64_t j = 0; j < columns_; ++j) at.r[row * at.ld + at.n + j] += given[j];
    }

    // Pivots by search, a record, and delays.
    Status eliminate_carefully(int32_t number, const Front& front, int32_t num_children, const Parts& at) {
        const Shape& shape = front.shape;
        const int64_t n = at.n, m = at.m, late = at.late, p = shape.p;
        largest_ = max(largest_, n);
        const bool planned = plan_.causal() && !late;  // the plan has room for the rows of L
        if (!numbers_.reserve(numbers_end_ + (planned ? m : m * (n + 1)), numbers_end_) ||
            !index_.reserve(index_end_ + kRecordHeader + n + m + 1, index_end_) || !places_.reserve(2 * n + 1) ||
            !flags_.reserve(n + 1) || !off_.reserve(m + 1))
            return kOutOfMemory;
        T* l = planned ? course_.factor : numbers_.data() + numbers_end_;
        int32_t *record = index_.data() + index_end_, *ids = record + kRecordHeader;
        // The Schur complement takes the place of the children's, which are used up; so do the names of what is delayed.
        num_waiting_ -= num_children;
        const int64_t base = num_waiting_ ? waiting_[num_waiting_ - 1].end : 0;
        late_end_ -= late;
        if (late) std::memcpy(ids, late_.data() + late_end_, size_t(late) * sizeof(int32_t));
        std::memcpy(ids + late, front.slots + p, size_t(n - late) * sizeof(int32_t));

        CarefulFront<T> whole{at.r,
                              at.ld,
                              n,
                              m,
                              columns_,
                              probes_of<T>(n),
                              at.bound,
                              at.given,
                              at.local,
                              at.f,
                              at.pair_bound,
                              p,
                              ids,
                              places_.data(),
                              places_.data() + n,
                              flags_.data(),
                              l,
                              off_.data(),
                              at.y,
                              at.panel,
                              plan_.causal() ? plan_.num_slots() : plan_.num_inputs()};
        whole.write_probes();
        Search careful(whole, Assembled<T>(front, call_.sources, late, at.rows), course_.tally);
        for (int32_t i = 0; i < shape.num_pairs; ++i)
            if (max(shape.pairs[2 * i], shape.pairs[2 * i + 1]) < shape.q)
                careful.substitute(late + shape.pairs[2 * i + 1], late + shape.pairs[2 * i]);
        const int64_t taken = careful.eliminate();
        if (taken < 0) return kNonFinite;
        course_.lost = careful.lost();
        // A front that took the pivots of the plan needs no record.
        bool plain = planned && taken == m;
        for (int64_t i = 0; i < taken; ++i) plain = plain && off_[i] == 0 && whole.origin[i] == i;
        if (!plain) {
            if (!planned) numbers_end_ += taken * n;
            std::memcpy(numbers_.data() + numbers_end_, off_.data(), size_t(taken) * sizeof(T));
            numbers_end_ += taken;
            record[4] = planned;
        }
        for (int64_t i = 0; i < taken; ++i)
            for (int64_t j = 0; j < columns_; ++j) z_[ids[i] * columns_ + j] = at.y[i * columns_ + j];
        return pass_on(number, shape, at, taken, plain ? nullptr : record, ids, base);
    }

    // Write the Schur complement to the stack, without the rows that are null; in a root all that is left is null.
    Status pass_on(int32_t number, const Shape& shape, const Parts& at, int64_t taken, int32_t* record, int32_t* ids,
                   int64_t base) {
        const int64_t n = at.n, m = at.m;
        int64_t nulls = 0;
        if (!late_.reserve(late_end_ + m)) return kOutOfMemory;
        int32_t* kept = places_.data();  // rows that are passed on; no longer needed for anything else
        int64_t size = 0;
        for (int64_t i = taken; i < n; ++i) {
            if (i < m && (flags_[i] || shape.b == 0)) {
                if (!nulls_++) first_null_ = ids[i];
                call_.null[ids[i]] = 1;
                ids[n + nulls++] = ids[i];
                continue;
            }
            if (i < m) late_[late_end_++] = ids[i];
            kept[size++] = int32_t(i);
        }
        const int64_t delayed = size - shape.b;
        if (record) {
            record[0] = number;
            record[1] = int32_t(taken);
            record[2] = int32_t(n);
            record[3] = int32_t(nulls);
            record[kRecordHeader + n + nulls] = int32_t(kRecordHeader + n + nulls + 1);
            index_end_ += kRecordHeader + n + nulls + 1;
        }
        if (!shape.b) return kOk;
        delayed_ += delayed;
        const int64_t ldb = padded<T>(size), end = base + message_size<T>(size, columns_);
        if (!stack_.reserve(end)) return kOutOfMemory;
        T *schur = stack_.data() + base, *sizes = schur + size * ldb, *carried = sizes + ldb;
        const bool whole = size == n - taken;
        for (int64_t i = 0; i < size; ++i) {
            const T* from = at.r + kept[i] * at.ld;
            T* to = schur + i * ldb;
            if (whole)
                std::memcpy(to + i, from + taken + i, size_t(size - i) * sizeof(T));
            else
                for (int64_t j = i; j < size; ++j) to[j] = from[kept[j]];
            std::memcpy(carried + i * columns_, from + n, size_t(columns_) * sizeof(T));
            const T value = abs(from[kept[i]]), bound = at.bound[kept[i]];
            sizes[i] = mixed_ ? max(value, bound) : renewed(value, bound);
        }
        waiting_[num_waiting_++] = {base, end, number, int32_t(delayed)};
        return kOk;
    }

    Course<T>& course_;
    const Call<T>& call_;
    const PlanView& plan_;
    const int64_t columns_;
    int64_t& num_waiting_;
    int64_t nulls_, delayed_, numbers_end_, index_end_, late_end_, largest_ = 0;
    int32_t first_null_;
    bool mixed_;
    Buffer<T>&stack_, &z_, work_, off_;
    Buffer<Message>& waiting_;
    Buffer<int32_t> late_, places_;
    Region<T> numbers_;  // of the records
    Region<int32_t> index_;
    Buffer<int8_t> flags_;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
