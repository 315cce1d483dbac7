// The careful elimination, one front at a time: pivots by search, bounds of noise, records, delays. Called by
// elimination.hpp, for all fronts of a free plan and for the fronts of a causal plan that are in doubt.
//
// A causal front is primal-only: its pairs are substituted, x_p = F [u; ξ], without a division, and duals are never
// computed; its inputs are eliminated by LDLᵀ with a test on every pivot. A front of a free plan holds duals. A front
// whose pivots are not those of the plan leaves a record. Unknowns that find no stable pivot are delayed to the parent:
// delayed unknowns stand before the others there.
#pragma once
#include "careful.hpp"
#include "course.hpp"
#include "load.hpp"
#include "solve.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T>
class CarefulFronts {
public:
    explicit CarefulFronts(Course<T>& course) : course_(course), call_(course.call), plan_(course.plan) { begin(true); }

    // `mixed`: some fronts are eliminated quickly. The quick form needs to know what was summed into a diagonal, not
    // how much of it may be noise.
    void begin(bool mixed) {
        mixed_ = mixed;
        const int64_t rows = plan_.rows_size();
        nulls_ = delayed_ = numbers_end_ = index_end_ = late_end_ = 0;
        first_null_ = -1;
        numbers_.lend(call_.factor + rows, call_.factor_len - rows);
        index_.lend(call_.index, call_.index_len - kEndIntegers);
    }

    // Eliminate the next front.
    Status eliminate() {
        const int32_t number = course_.next;
        const Front front = plan_.front(number);
        if (plan_.causal() && !course_.gathering.look_ahead(plan_, number, course_.columns)) return kOutOfMemory;
        const Status status = eliminate(number, front);
        if (status == kOk) course_.gather(number);
        ++course_.next;
        course_.factor += int64_t(front.shape.q) * (front.shape.q + front.shape.b);
        return status;
    }

    Records<T> records() const { return {index_.data(), numbers_.data(), index_end_, numbers_end_}; }
    bool kept() const { return !numbers_.moved() && !index_.moved(); }  // whether the caller has all of the records
    int64_t nulls() const { return nulls_; }
    int64_t delayed() const { return delayed_; }
    int64_t largest() const { return largest_; }  // the largest front, without its pairs
    int32_t first_null() const { return first_null_; }

    static constexpr int64_t kEndIntegers = 4;  // at the end of the index: two int64, the ends of the records

private:
    using Search = Careful<T, Assembled<T>>;

    // The parts of a front in work space: p pairs and [late | q | b], where `late` unknowns were delayed by the
    // children. m = late + q, n = m + b; ld and ldp are leading dimensions, of parts with n columns and of PP.
    // PP [p, ldp] has right-hand sides in the columns p..; F [p, ld]; W is there twice, [2p, ld]; C [p, ld].
    struct Parts {
        int64_t p, late, m, n, ld, ldp;
        T *pp, *f, *w, *c;
        T *r, *panel;              // R [n, ld] with right-hand sides in the columns n..; work space of the search
        T *bound, *given, *local;  // bounds of R, the same before the elimination, the part that arises in this front
        T *through, *pair_bound;   // the part of the bounds that comes through pairs; bounds of PP [p]
        T *rows, *y;               // work space of Assembled; right-hand sides as rows of L [n, columns]
    };

    // Where the parts of a front are. `ready`: R is where it was gathered. False where there is no memory.
    bool lay_out(const Shape& shape, int64_t late, bool ready, Parts& at) {
        const int64_t p = at.p = shape.p, m = at.m = late + shape.q, n = at.n = m + shape.b, columns = course_.columns,
                      rows = ready ? 0 : n;
        const int64_t ld = at.ld = front_width<T>(n, columns), ldp = at.ldp = padded<T>(p + columns);
        const int64_t scratch = Search::scratch_size(n, ld);
        if (!work_.reserve(p * (ldp + 1) + (4 * p + rows + 5) * ld + n * columns + scratch + 64)) return false;
        at.late = late;
        at.pp = work_.data();
        at.f = at.pp + p * ldp;
        at.w = at.f + p * ld;
        at.c = at.w + 2 * p * ld;
        at.r = at.c + p * ld;
        at.panel = at.r + rows * ld;
        at.bound = at.panel + scratch;
        at.given = at.bound + ld;
        at.local = at.given + ld;
        at.through = at.local + ld;
        at.rows = at.through + ld;
        at.y = at.rows + ld;
        at.pair_bound = at.y + n * columns;
        if (ready) at.r = course_.gathering.matrix();
        return true;
    }

    Status eliminate(int32_t number, const Front& front) {
        const bool gathered = course_.gathering.is(number);
        const int32_t num_children = front.num_children - (gathered ? course_.gathering.added() : 0);
        int64_t late = 0;
        for (int32_t k = 1; k <= num_children; ++k) late += course_.waiting[course_.num_waiting - k].delayed;
        const bool ready = gathered && !late && !front.shape.p;
        Parts at;
        if (!lay_out(front.shape, late, ready, at)) return kOutOfMemory;
        assemble(front, course_.messages(num_children, late), gathered, at);
        return eliminate_parts(number, front, num_children, at);
    }

    // Put a front together: messages, sources, shift, right-hand sides; and the bounds of noise.
    void assemble(const Front& front, const Messages<T>& children, bool gathered, const Parts& at) {
        const Shape& shape = front.shape;
        const int64_t p = at.p, n = at.n, ld = at.ld, late = at.late;
        std::memset(at.bound, 0, size_t(ld) * sizeof(T));
        std::memset(at.through, 0, size_t(ld) * sizeof(T));
        if (!gathered || at.r != course_.gathering.matrix()) std::memset(at.r, 0, size_t(n * ld) * sizeof(T));
        int32_t first_rest = 0;  // the first block of R
        if (p) first_rest = assemble_pairs(front, children, at);
        if (gathered) take_gathered(at);
        T *r = at.r + late * (ld + 1), *bound = at.bound + late;
        for (int32_t k = first_rest; k < shape.num_blocks; ++k) {
            place<T, true>(shape.blocks[k], call_.sources + front.sources[k], r, ld);
            place_diagonal(shape.blocks[k], call_.sources + front.sources[k], bound);
        }
        children.add_to_rest({p, {at.r, ld}, {at.r + n, ld, 1}, at.bound});
        if (plan_.causal())
            for (int64_t i = 0; i < shape.q; ++i) add_input(front.slots[p + i], late + i, at);
        else
            add_units(front, at);
        for (int64_t i = 0; i < n; ++i) {
            at.local[i] = at.bound[i];
            at.given[i] = at.bound[i] += at.through[i];
        }
    }

    // Put PP, F and C together, and substitute the pairs; return the first block of R.
    int32_t assemble_pairs(const Front& front, const Messages<T>& children, const Parts& at) {
        const Shape& shape = front.shape;
        const int64_t p = at.p, ld = at.ld;
        const bool cross = (shape.flags & kCross) || at.late, nested = shape.flags & kNested;
        const bool dense = (shape.flags & kDenseJacobian) && !at.late;
        std::memset(at.pp, 0, size_t(p * at.ldp) * sizeof(T));
        std::memset(at.pair_bound, 0, size_t(p) * sizeof(T));
        if (cross) std::memset(at.c, 0, size_t(p * ld) * sizeof(T));
        children.add_to_pairs({p, {at.pp, at.ldp}, {at.c, ld}, {at.pp + p, at.ldp, 1}, at.pair_bound});
        if (!dense) std::memset(at.f, 0, size_t(p * ld) * sizeof(T));
        const int32_t first_rest = load_pairs(
            call_, front, {{at.f + at.late, ld}, {at.pp, at.ldp}, {at.c + at.late, ld}, at.pair_bound, dense});
        if (nested) unfold(call_, front, at.n, {at.f, ld}, at.w + p * ld);
        substitute(cross, nested, at);
        return first_rest;
    }

    // R = Fᵀ(PP·F + C) + CᵀF, with the right-hand sides of the pairs carried along; and the bounds of R.
    void substitute(bool cross, bool nested, const Parts& at) {
        const int64_t p = at.p, n = at.n, ld = at.ld, ldp = at.ldp, columns = course_.columns;
        T *pp = at.pp, *f = at.f, *w = at.w, *c = at.c, *bound = at.bound;
        const Extent extent{0, n, kUpper, padded<T>(n + columns)};
        for (int64_t i = 1; i < p; ++i)
            for (int64_t j = 0; j < i; ++j) pp[i * ldp + j] = pp[j * ldp + i];
        multiply_pairs<T>(p, n, {pp, ldp}, {f, ld}, {w, ld});
        if (cross)
            for (int64_t i = 0; i < p; ++i) axpy(w + i * ld, T(1), c + i * ld, n);
        for (int64_t i = 0; i < p; ++i)
            for (int64_t j = 0; j < columns; ++j) w[i * ld + n + j] = pp[i * ldp + p + j];
        multiply_upper<T, kAdd>(p, extent, {f, ld}, {w, ld}, {at.r, ld}, at.panel);
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
        multiply_upper<T, kAdd>(p, extent, {c, ld}, {f, ld}, {at.r, ld}, at.panel);
        Substituted<T>{p, n, ld, size, w, c, at.r}.flush(bound, at.panel);
    }

    // Take R, if it is not there, and its bounds from where they were gathered: behind the late unknowns.
    void take_gathered(const Parts& at) {
        const int64_t n = at.n - at.late, ld = course_.gathering.width();
        const T *from = course_.gathering.matrix(), *bound = course_.gathering.bound();
        const bool ready = at.r == from;
        for (int64_t i = 0; i < n; ++i, from += ld) {
            at.bound[at.late + i] += bound[i];
            if (ready) continue;
            T* to = at.r + (at.late + i) * at.ld;
            axpy(to + at.late + i, T(1), from + i, n - i);
            axpy(to + at.n, T(1), from + n, course_.columns);
        }
        course_.gathering.end();
    }

    // Free plans: the -1 of the pairs, the shift, and the right-hand sides of the inputs.
    void add_units(const Front& front, const Parts& at) {
        const Shape& shape = front.shape;
        for (int32_t i = 0; i < shape.num_pairs; ++i) {
            const int64_t x = at.late + dual_of(shape, i), y = at.late + state_of(shape, i);
            at.r[min(x, y) * at.ld + max(x, y)] -= 1;
        }
        for (int32_t i = 0; i < shape.num_inputs; ++i) {
            const int64_t x = shape.inputs[i];
            add_input(front.slots[x], at.late + x, at);
        }
    }
    static int64_t dual_of(const Shape& shape, int32_t pair) { return shape.pairs[2 * pair]; }
    static int64_t state_of(const Shape& shape, int32_t pair) { return shape.pairs[2 * pair + 1]; }

    // The shift and the right-hand sides of an input.
    void add_input(int32_t slot, int64_t row, const Parts& at) {
        const int64_t columns = course_.columns;
        at.r[row * at.ld + row] += call_.shift;
        at.bound[row] += abs(call_.shift);
        const T* given = call_.rhs + slot * columns;
        for (int64_t j = 0; j < columns; ++j) at.r[row * at.ld + at.n + j] += given[j];
    }

    // Memory for the search and for a record; `planned`: the plan has room for the rows of L.
    bool reserve(const Parts& at, bool planned) {
        const int64_t n = at.n, m = at.m;
        return numbers_.reserve(numbers_end_ + (planned ? m : m * (n + 1)), numbers_end_) &&
               index_.reserve(index_end_ + record_length(n, m), index_end_) && places_.reserve(2 * n + 1) &&
               flags_.reserve(n + 1) && off_.reserve(m + 1) && late_.reserve(late_end_ + m);
    }

    // Pivots by search, a record, and a message.
    Status eliminate_parts(int32_t number, const Front& front, int32_t num_children, const Parts& at) {
        const Shape& shape = front.shape;
        const int64_t late = at.late;
        largest_ = max(largest_, at.n);
        const bool planned = !late;
        if (!reserve(at, planned)) return kOutOfMemory;
        T* l = planned ? course_.factor : numbers_.data() + numbers_end_;
        // The message takes the place of the children's, which are used up; so do the names of delayed unknowns.
        course_.num_waiting -= num_children;
        late_end_ -= late;
        int32_t* ids = index_.data() + index_end_ + kRecordHeader;
        if (late) std::memcpy(ids, late_.data() + late_end_, size_t(late) * sizeof(int32_t));
        std::memcpy(ids + late, front.slots + at.p, size_t(at.n - late) * sizeof(int32_t));

        CarefulFront<T> whole = careful_front(at, ids, l);
        whole.write_probes();
        Search search(whole, Assembled<T>(front, call_.sources, late, at.rows), course_.tally);
        for (int32_t i = 0; i < shape.num_pairs; ++i)
            if (max(dual_of(shape, i), state_of(shape, i)) < shape.q)
                search.substitute(late + state_of(shape, i), late + dual_of(shape, i));
        const int64_t taken = search.eliminate();
        if (taken < 0) return kNonFinite;
        course_.lost = search.lost();
        scatter(at.y, course_.z.data(), ids, taken, course_.columns);
        // A front that took the pivots of the plan needs no record.
        bool plain = planned && taken == at.m && !shape.num_twins;
        for (int64_t i = 0; i < taken; ++i) plain = plain && off_[i] == 0 && whole.origin[i] == i;
        int64_t passed;
        const int64_t nulls = sort_rows(shape, at, taken, ids, passed);
        if (!plain) write_record({number, int32_t(taken), int32_t(at.n), int32_t(nulls), planned});
        return shape.b ? pass_on(number, at, taken, passed, shape.b) : kOk;
    }

    CarefulFront<T> careful_front(const Parts& at, int32_t* ids, T* l) {
        CarefulFront<T> out;
        out.r = at.r, out.ld = at.ld, out.n = at.n, out.candidates = at.m;
        out.columns = course_.columns, out.probes = probes_of<T>(at.n);
        out.bound = at.bound, out.given = at.given, out.local = at.local;
        out.f = at.f, out.pair_bound = at.pair_bound, out.pairs = at.p;
        out.ids = ids, out.place = places_.data(), out.origin = places_.data() + at.n, out.null = flags_.data();
        out.l = l, out.off = off_.data(), out.y = at.y, out.scratch = at.panel;
        out.share = course_.lost_share();
        out.primal = plan_.causal() ? plan_.num_slots() : plan_.num_inputs();
        return out;
    }

    // Sort the rows that are left: null rows are named behind `ids`, delayed rows in late_, rows that are passed on in
    // places_, which the search needs no more; `passed` counts those. In a root all that is left is null. Return the
    // number of null rows.
    int64_t sort_rows(const Shape& shape, const Parts& at, int64_t taken, int32_t* ids, int64_t& passed) {
        int64_t nulls = 0;
        passed = 0;
        for (int64_t i = taken; i < at.n; ++i) {
            if (i < at.m && (flags_[i] || shape.b == 0)) {
                if (!nulls_++) first_null_ = ids[i];
                call_.null[ids[i]] = 1;
                ids[at.n + nulls++] = ids[i];
                continue;
            }
            if (i < at.m) late_[late_end_++] = ids[i];
            places_[passed++] = int32_t(i);
        }
        return nulls;
    }

    // Write a record, whose names and rows of L are there.
    void write_record(const RecordHeader& header) {
        const int64_t taken = header.taken, length = record_length(header.n, header.nulls);
        if (!header.planned) numbers_end_ += taken * header.n;
        std::memcpy(numbers_.data() + numbers_end_, off_.data(), size_t(taken) * sizeof(T));
        numbers_end_ += taken;
        std::memcpy(index_.data() + index_end_, &header, sizeof header);
        index_end_ += length;
        index_.data()[index_end_ - 1] = int32_t(length);
    }

    // Write the message: the Schur complement of the rows in places_, of which the last b are the separator.
    Status pass_on(int32_t number, const Parts& at, int64_t taken, int64_t passed, int64_t b) {
        const int64_t columns = course_.columns, base = course_.stack_end(),
                      end = base + message_size<T>(passed, columns), delayed = passed - b;
        if (!course_.stack.reserve(end)) return kOutOfMemory;
        delayed_ += delayed;
        const MessageParts<T> message = message_parts(course_.stack.data() + base, passed);
        const int32_t* places = places_.data();
        const bool all = passed == at.n - taken;
        for (int64_t i = 0; i < passed; ++i) {
            const T* from = at.r + places[i] * at.ld;
            T* to = message.schur + i * message.ld;
            if (all)
                std::memcpy(to + i, from + taken + i, size_t(passed - i) * sizeof(T));
            else
                for (int64_t j = i; j < passed; ++j) to[j] = from[places[j]];
            std::memcpy(message.carried + i * columns, from + at.n, size_t(columns) * sizeof(T));
            const T value = abs(from[places[i]]), bound = at.bound[places[i]];
            message.sizes[i] = mixed_ ? max(value, bound) : renewed(value, bound);
        }
        course_.waiting[course_.num_waiting++] = {base, end, number, int32_t(delayed)};
        return kOk;
    }

    Course<T>& course_;
    const Call<T>& call_;
    const PlanView& plan_;
    int64_t nulls_, delayed_, numbers_end_, index_end_, late_end_, largest_ = 0;
    int32_t first_null_;
    bool mixed_;
    Buffer<T> work_, off_;
    Buffer<int32_t> late_, places_;  // late_: names of the unknowns that messages on the stack delay
    Region<T> numbers_;              // of the records
    Region<int32_t> index_;          // of the records
    Buffer<int8_t> flags_;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
