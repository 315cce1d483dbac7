// The elimination along a plan, front by front, from the leaves up.
//
// A causal front is primal-only: its pairs are substituted, x_p = F [u; ξ], without a division, and duals are never computed; its
// inputs are eliminated by LDLᵀ with a test on every pivot. A front of a free plan holds duals and is eliminated carefully.
// So is a causal front where a test fails: it leaves a record, and what finds no stable pivot there is delayed to the
// parent, where those unknowns stand before the others. Other fronts do not notice.
#pragma once
#include "careful.hpp"
#include "extend.hpp"
#include "solve.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T>
class Elimination {
public:
    explicit Elimination(const Call<T>& call) : call_(call), plan_{call.plan}, columns_(call.columns) {}

    void run() {
        const Status status = eliminate_all();
        int32_t* info = call_.info;
        const int64_t pairs = plan_.causal() ? 0 : plan_.num_slots() - plan_.num_inputs();
        info[kStatus] = status;
        info[kPositive] = int32_t(tally_.positive - pairs);
        info[kNegative] = int32_t(tally_.negative - pairs);
        info[kZero] = int32_t(nulls_);
        info[kDelayed] = int32_t(delayed_);
        info[kMode] = plan_.causal() && !index_end_ ? kCausal : kGeneral;
        info[kFirstNull] = first_null_;
        call_.real[kLogDet] = nulls_ ? T(-HUGE_VAL) : T(tally_.logdet());
        call_.real[kSmallestPivot] = nulls_ ? T(0) : T(tally_.smallest);
        if (status > kSingular) {
            fail(call_);
            return;
        }
        info[kKept] = !numbers_.moved() && !index_.moved();
        // The last integers say where the records end.
        const int64_t ends[] = {numbers_end_, index_end_};
        std::memcpy(call_.index + call_.index_len - 4, ends, sizeof ends);
    }

    static void fail(const Call<T>& call) {
        for (int64_t i = 0; i < call.num_inputs * call.columns; ++i) call.solution[i] = T(NAN);
        call.real[kLogDet] = call.real[kSmallestPivot] = T(NAN);
    }

private:
    Status eliminate_all() {
        const int64_t unknowns = plan_.causal() ? plan_.num_slots() : plan_.num_unknowns();
        const int64_t given = call_.num_inputs * columns_;
        if (!reserve(plan_.data[kMaxPairs], plan_.data[kMaxRest]) || !waiting_.reserve(plan_.num_fronts() + 1) ||
            !z_.reserve(unknowns * columns_) || !stack_.reserve(1) || !late_.reserve(1))
            return kOutOfMemory;
        factor_ = call_.factor;
        if (!plan_.causal()) std::memset(z_.data(), 0, size_t(unknowns * columns_) * sizeof(T));
        for (int32_t f = 0; f < plan_.num_fronts(); ++f) {
            const Front front = plan_.front(f);
            const int64_t size = plan_.causal() ? int64_t(front.shape.q) * (front.shape.q + front.shape.b) : 0;
            if (factor_ - call_.factor + size > call_.factor_len) return kBadPlan;
            const Status status = eliminate(f, front);
            if (status != kOk) return status;
            factor_ += size;
        }
        if (!finite(tally_.logdet())) return kNonFinite;
        const Records<T> records{index_.data(), numbers_.data(), index_end_, numbers_end_};
        if (nulls_) zero_null(records, z_.data(), columns_);
        if (!local_.reserve((plan_.data[kMaxPairs] + max(largest_, int64_t(plan_.data[kMaxRest]))) * columns_)) return kOutOfMemory;
        back_substitute(plan_, call_.sources, factor_, records, z_.data(), columns_, local_.data());
        std::memcpy(call_.solution, z_.data(), size_t(given) * sizeof(T));
        return nulls_ ? kSingular : kOk;
    }

    // Make room for a front of p pairs and n other unknowns; numbers in the work space are lost.
    bool reserve(int64_t p, int64_t n) {
        const int64_t ld = padded<T>(n + columns_), ldp = padded<T>(p + columns_);
        return work_.reserve(p * (ldp + 1) + (4 * p + n + 8) * ld + n * columns_ + 64);
    }

    // The parts of a front in the work space. `late` unknowns were delayed by the children; they come first in [late | q | b].
    struct Parts {
        T *pp, *f, *w, *c, *r, *panel, *bound, *given, *local, *through, *pair_bound, *y;
        int64_t late, m, n, ld, ldp;  // m = late + q, n = m + b
    };

    Status eliminate(int32_t number, const Front& front) {
        const Shape& shape = front.shape;
        const Waiting* first = waiting_.data() + num_waiting_ - front.num_children;
        int64_t late = 0;
        for (int32_t k = 0; k < front.num_children; ++k) late += first[k].delayed;
        const int64_t p = shape.p, q = shape.q, b = shape.b, m = late + q, n = m + b;
        if (late && !reserve(p, n)) return kOutOfMemory;
        Parts at;
        at.late = late, at.m = m, at.n = n, at.ld = padded<T>(n + columns_), at.ldp = padded<T>(p + columns_);
        at.pp = work_.data();
        at.f = at.pp + p * at.ldp;
        at.w = at.f + p * at.ld;
        at.c = at.w + 2 * p * at.ld;
        at.r = at.c + p * at.ld;
        at.panel = at.r + n * at.ld;
        at.bound = at.panel + 4 * at.ld;
        at.given = at.bound + at.ld;      // the bounds as they were before the elimination, ...
        at.local = at.given + at.ld;      // ... the part of them that arises in this front, ...
        at.through = at.local + at.ld;    // ... and the part that comes through the pairs
        at.y = at.through + at.ld;
        at.pair_bound = at.y + n * columns_;
        const Children<T> children{plan_, first, front.num_children, stack_.data(), columns_, late};
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
        std::memset(at.r, 0, size_t(n * at.ld) * sizeof(T));
        int32_t first_rest = 0;
        if (p) {
            first_rest = load_pairs(front, at);
            substitute(cross, shape.flags & kNested, p, at);
        }
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
        return eliminate_carefully(number, front, at);
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
        multiply<T, kSet, false>(p, 0, p, false, n, pp, ldp, f, ld, w, ld, w, ld);
        if (cross)
            for (int64_t i = 0; i < p; ++i) axpy(w + i * ld, T(1), c + i * ld, n);
        for (int64_t i = 0; i < p; ++i)
            for (int64_t j = 0; j < columns; ++j) w[i * ld + n + j] = pp[i * ldp + p + j];
        multiply<T, kSet, false>(p, 0, n, true, end, f, ld, w, ld, r, ld, r, ld);
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
        multiply<T, kAdd, false>(p, 0, n, true, end, c, ld, f, ld, r, ld, r, ld);
        for (int64_t k = 0; k < n; ++k)
            if (bound[k] == 0) flush_row(k, p, n, ld, size, w, c, r);
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
    Status eliminate_carefully(int32_t number, const Front& front, const Parts& at) {
        const Shape& shape = front.shape;
        const int64_t n = at.n, m = at.m, late = at.late, p = shape.p;
        largest_ = max(largest_, n);
        if (!index_end_) {
            const int64_t rows = plan_.rows_size();
            numbers_.lend(call_.factor + rows, call_.factor_len - rows);
            index_.lend(call_.index, call_.index_len - 4);
        }
        if (!numbers_.reserve(numbers_end_ + m * (n + 1), numbers_end_) ||
            !index_.reserve(index_end_ + kRecordHeader + n + m + 1, index_end_) || !places_.reserve(2 * n + 1) || !flags_.reserve(n + 1) || !off_.reserve(m + 1))
            return kOutOfMemory;
        T* l = numbers_.data() + numbers_end_;
        int32_t *record = index_.data() + index_end_, *ids = record + kRecordHeader;
        const Waiting* children = waiting_.data() + num_waiting_ - front.num_children;
        int64_t at_id = 0;
        for (int32_t k = 0; k < front.num_children; ++k)
            for (int32_t i = 0; i < children[k].delayed; ++i) ids[at_id++] = late_[children[k].ids_at + i];
        // The Schur complement takes the place of the children's, which are used up.
        const int64_t base = num_waiting_ > front.num_children ? children[-1].end : 0;
        if (front.num_children) late_end_ = children[0].ids_at;
        num_waiting_ -= front.num_children;
        std::memcpy(ids + late, front.slots + p, size_t(n - late) * sizeof(int32_t));

        const auto assembled = [&](int64_t i, int64_t j) -> T {
            if (i < late || j < late) return 0;
            T sum = 0;
            for (int32_t k = 0; k < shape.num_blocks; ++k)
                if (shape.blocks[k].kind == kR)
                    sum += magnitude_at(shape.blocks[k], call_.sources + front.sources[k], min(i, j) - late, max(i, j) - late);
            return sum;
        };
        const CarefulFront<T> whole{at.r,  at.ld, n,          m,       columns_, at.bound, at.given, at.local, at.f, at.pair_bound, p, ids, places_.data(), places_.data() + n,
                                    flags_.data(), l,     off_.data(), at.y, at.panel,
                                    plan_.causal() ? plan_.num_slots() : plan_.num_inputs()};
        Careful<T, decltype(assembled)> careful(whole, assembled, tally_);
        for (int32_t i = 0; i < shape.num_pairs; ++i)
            if (max(shape.pairs[2 * i], shape.pairs[2 * i + 1]) < shape.q)
                careful.substitute(late + shape.pairs[2 * i + 1], late + shape.pairs[2 * i]);
        const int64_t taken = careful.eliminate();
        if (taken < 0) return kNonFinite;
        // A front that took the pivots of the plan has its place in the factor, and needs no record.
        bool plain = plan_.causal() && !late && taken == m;
        for (int64_t i = 0; i < taken; ++i) plain = plain && off_[i] == 0 && whole.origin[i] == i;
        if (plain) {
            std::memcpy(factor_, l, size_t(taken * n) * sizeof(T));
        } else {
            std::memcpy(l + taken * n, off_.data(), size_t(taken) * sizeof(T));
            numbers_end_ += taken * (n + 1);
        }
        for (int64_t i = 0; i < taken; ++i)
            for (int64_t j = 0; j < columns_; ++j) z_[ids[i] * columns_ + j] = at.y[i * columns_ + j];
        return pass_on(number, shape, at, taken, plain ? nullptr : record, ids, base);
    }

    // Write the Schur complement to the stack, without the rows that are null; in a root all that is left is null.
    Status pass_on(int32_t number, const Shape& shape, const Parts& at, int64_t taken, int32_t* record, int32_t* ids, int64_t base) {
        const int64_t n = at.n, m = at.m;
        int64_t nulls = 0;
        if (!late_.reserve(late_end_ + m)) return kOutOfMemory;
        int32_t* kept = places_.data();  // rows that are passed on; no longer needed for anything else
        int64_t size = 0;
        const int64_t ids_at = late_end_;
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
        const int64_t ldb = padded<T>(size + columns_), end = base + size * ldb + padded<T>(size);
        if (!stack_.reserve(end)) return kOutOfMemory;
        T* schur = stack_.data() + base;
        const bool whole = size == n - taken;
        for (int64_t i = 0; i < size; ++i) {
            const T* from = at.r + kept[i] * at.ld;
            T* to = schur + i * ldb;
            if (whole)
                std::memcpy(to + i, from + taken + i, size_t(size - i + columns_) * sizeof(T));
            else
                for (int64_t j = i; j < size + columns_; ++j) to[j] = from[j < size ? kept[j] : n + j - size];
            const T bound = at.bound[kept[i]];
            schur[size * ldb + i] = renewed(abs(from[kept[i]]), bound);
        }
        waiting_[num_waiting_++] = {base, end, ids_at, number, int32_t(delayed)};
        return kOk;
    }

    const Call<T>& call_;
    PlanView plan_;
    int64_t columns_, num_waiting_ = 0, nulls_ = 0, delayed_ = 0, numbers_end_ = 0, index_end_ = 0, late_end_ = 0, largest_ = 0;
    int32_t first_null_ = -1;
    T* factor_ = nullptr;  // where the rows of the next front go
    Tally tally_;
    Buffer<T> work_, stack_, z_, local_, off_;
    Buffer<int32_t> late_, places_;
    Region<T> numbers_;  // of the records
    Region<int32_t> index_;
    Buffer<int8_t> flags_;
    Buffer<Waiting> waiting_;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
