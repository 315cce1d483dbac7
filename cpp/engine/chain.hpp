// Chains: stages that follow each other are eliminated in one go, and their Schur complements take the same place on
// the stack. ChainAscent eliminates, descend_chain computes the solution. Called by quick.hpp.
//
// A stage has p pairs, q inputs and p states; n = p + q. Its rows and columns without pairs are [u | x].
#pragma once
#include "course.hpp"
#include "prefetch.hpp"
#include "stage.hpp"
#include "stage_ldl.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// Numbers of work space for PP of a stage, its diagonal and weights: `sum` of a ChainAscent.
template <class T>
inline int64_t pair_sums_size(int64_t p) {
    return (p + 3) * padded<T>(p) + 8;
}

// The sums over F (see Sums) in all of its columns.
template <class T>
GNEWT_INLINE void sum_columns(int64_t rows, int64_t cols, PairVectors<T> pairs, const Strided<T>& f, T* size, T* rho) {
    over_columns<T, 3>(cols, [&](int64_t j, const auto width) GNEWT_LAMBDA {
        Sums<T, int(decltype(width)::value)> sums;
        sums.add(rows, pairs, f.view().from(0, j));
        sums.put(size + j, rho + j);
    });
}

// The elimination of the stages of a chain, as long as they look alike and nothing is in doubt. All functions but run()
// are inlined into run(), so that members are local variables there.
template <class T, class Sizes>
class ChainAscent {
public:
    // `ahead`: the sources of a stage, in ranges of cache lines. `work`: work space for a stage, see Quick::work_size.
    // `sum`: pair_sums_size(p).
    GNEWT_INLINE ChainAscent(Course<T>& course, const Stage<T, Sizes>& stage, const Ahead<T>& ahead, T* work, T* sum)
        : course_(course),
          call_(course.call),
          stage_(stage),
          p_(stage.sizes.p),
          q_(stage.sizes.q),
          n_(p_ + q_),
          ld_(stage.width()),
          at_(stage.states()),
          ldp_(padded<T>(p_)),
          message_(course.waiting[course.num_waiting - 1]),
          factor_(course.factor),
          split_(stage.apart() && stage.sizes.q <= kBlock),
          z_(course.z.data()),
          all_slots_(course.plan.slots()),
          all_starts_(course.plan.sources()),
          ahead_(ahead) {
        lay_out(work, sum);
        reach_[0] = ahead_.in_steps(0, split_ ? steps_of_multiply<T>(p_, q_, p_) : steps_of_multiply<T>(p_, p_, ld_));
        reach_[1] = ahead_.in_steps(1, steps_of_multiply<T>(p_, p_, ld_ - at_));
    }

    // Eliminate the next fronts that look alike, each the only child of the front behind it, up to the first front that
    // is in doubt. Whether there was none.
    GNEWT_INLINE bool run() {
        std::memset(f_, 0, size_t(w_ - f_) * sizeof(T));  // columns that fill up vectors are computed with, too
        fill_triangle(before_, 1, ldp_);
        const PlanView& plan = course_.plan;
        int32_t k = course_.next;
        const int32_t num_fronts = plan.num_fronts(), kind = plan.fronts()[k].shape;
        const FrontRecord* front = plan.fronts() + k;
        if (kEarly) load_stage(all_starts_ + front->sources, f_, h_);
        bool good = true;
        for (; k < num_fronts && front->shape == kind; ++k, ++front, factor_ += q_ * n_) {
            const bool more = k + 1 < num_fronts && front[1].shape == kind;
            slots_ = all_slots_ + front->slots + p_;
            starts_ = all_starts_ + front->sources;
            next_ = all_starts_ + front[more ? 1 : 0].sources;
            if (!Sizes::small) ask_for<true>(factor_ + q_ * n_, more ? q_ * n_ : 0);
            good = add_pairs() && eliminate();
            if (!good) break;
            pass_on();
        }
        fill_triangle(before_, ldp_, 1);
        if (k > course_.next) message_ = {message_.at, message_.end, k - 1};
        course_.next = k;
        course_.factor = factor_;
        return good;
    }

private:
    // A small stage is loaded while the stage before waits for pivots.
    static constexpr bool kEarly = Sizes::small;
    // Sums over F of other stages are taken while the stage itself waits for pivots, if three or more pivots are there
    // to wait for.
    static constexpr bool kLate = !kEarly && Sizes::known > 2 && known_apart<T>(Sizes{}) > 0;

    GNEWT_INLINE void lay_out(T* work, T* sum) {
        f_ = work;
        h_ = f_ + p_ * ld_;
        next_f_ = kEarly ? h_ + q_ * ld_ : f_;
        next_h_ = next_f_ + p_ * ld_;
        w_ = next_h_ + q_ * ld_;
        r_ = w_ + p_ * ld_;
        rho_ = r_ + n_ * ld_ + kWidth<T>;
        size_ = rho_ + ld_;
        y_ = size_ + ld_;
        g_ = y_ + ld_;
        const MessageParts<T> child = message_parts(course_.stack.data() + message_.at, p_);
        before_ = child.schur, weight_before_ = child.sizes, v_ = child.carried;
        pp_ = sum;
        weight_ = sum + p_ * ldp_;
        diag_ = weight_ + ldp_ + 4;  // filled up to fours, as the weights are
    }

    // One triangle of `before` from the other. (i, j) with i > j is at i·row + j·col of the given triangle.
    GNEWT_INLINE void fill_triangle(T* a, int64_t row, int64_t col) const {
        for (int64_t i = 0; i < p_; ++i)
            for (int64_t j = 0; j < i; ++j) a[j * row + i * col] = a[i * row + j * col];
    }

    GNEWT_INLINE void load_inputs(const int32_t* starts, T* to) const {
        if (split_)
            stage_.template load_inputs<true>(call_.sources, starts, to);
        else
            stage_.template load_inputs<false>(call_.sources, starts, to);
    }
    GNEWT_INLINE void load_stage(const int32_t* starts, T* f, T* h) const {
        stage_.load_jacobian(call_.sources, starts, f);
        load_inputs(starts, h);
    }

    // PP of this stage, and its weights. False where PP is in doubt.
    GNEWT_INLINE bool add_pairs() {
        stage_.add_pairs(call_.sources, starts_, before_, weight_before_, pp_, diag_, weight_);
        auto above = Quad<T>{} == 0, large = above;
        for (int64_t i = 0; i < p_; i += 4) {
            const Quad<T> d = load4(diag_ + i), magnitude = abs4<T>(d);
            above &= d > 0;
            large &= magnitude >= T(kDoubtful) * load4(weight_ + i);
            store4(diag_ + i, magnitude);
        }
        definite_ = all4(above);
        if (all4(large))
            swap(weight_, diag_);
        else
            course_.lost = !renew_weights(p_, pp_, ldp_, weight_);
        return !course_.lost && (definite_ || !bare_row(p_, pp_, ldp_));
    }

    // Eliminate the inputs of this stage. False where a pivot is in doubt.
    GNEWT_INLINE bool eliminate() {
        const bool in_place = find_parts();
        if constexpr (kLate) {
            if (!in_place) stage_.load_jacobian(call_.sources, starts_, f_);
        } else {
            sum_early(in_place);
        }
        const Rows<T> rows{r_, ld_, n_, rho_, 1, size_, factor_, y_, at_ - q_};
        bool good;
        if constexpr (known_apart<T>(Sizes{}) < 0)
            good = split_ ? eliminate_apart(rows) : eliminate_joined(rows);
        else if constexpr (known_apart<T>(Sizes{}))
            good = eliminate_apart(rows);
        else
            good = eliminate_joined(rows);
        if (!good) course_.lost = lost_row(rows, q_);
        return good;
    }

    // Where F and the rows of the inputs are read: in place, where their sources are laid out well, or in work space.
    GNEWT_INLINE bool find_parts() {
        f_u_ = {f_, ld_}, f_x_ = {f_ + at_, ld_}, h_u_ = {h_, ld_}, h_x_ = {h_ + at_, ld_};
        const bool in_place = !kEarly && split_ && stage_.in_place(call_.sources_len, starts_);
        if (in_place) {
            f_u_ = stage_.rows_of(stage_.on_inputs, call_.sources, starts_);
            f_x_ = stage_.rows_of(stage_.on_states, call_.sources, starts_);
            h_u_ = stage_.rows_of(stage_.inputs[0], call_.sources, starts_);
            h_x_ = stage_.rows_of(stage_.cross[0], call_.sources, starts_);
        } else if (!kEarly) {
            load_inputs(starts_, h_);
        }
        return in_place;
    }

    // What goes into the diagonal and the right-hand sides, but for the terms of FᵀW; and F, if it is not there yet.
    // The compiler must be told what is usual: it unrolls no loops in branches that it takes for cold.
    GNEWT_INLINE void sum_early(bool in_place) const {
        if (__builtin_expect(in_place, true)) {
            sum_inputs();
            sum_states();
        } else if (!kEarly && stage_.has_room(call_.sources_len, starts_)) {
            stage_.carry_jacobian(call_.sources, starts_, {weight_, v_}, f_, size_, rho_);
        } else {
            if (!kEarly) stage_.load_jacobian(call_.sources, starts_, f_);
            sum_columns<T>(p_, ld_, {weight_, v_}, f_u_, size_, rho_);
        }
        add_given();
    }
    GNEWT_INLINE void sum_inputs() const { sum_columns<T>(p_, at_, {weight_, v_}, f_u_, size_, rho_); }
    GNEWT_INLINE void sum_states() const {
        sum_columns<T>(p_, ld_ - at_, {weight_, v_}, f_x_, size_ + at_, rho_ + at_);
    }

    // The magnitudes and right-hand sides of the inputs.
    GNEWT_INLINE void add_given() const {
        stage_.add_magnitudes(call_.sources, starts_, abs(call_.shift), size_);
        for (int64_t i = 0; i < q_; ++i) rho_[i] += call_.rhs[slots_[i]];
    }

    // W = PP·F in the columns [first, ld), which are those of `from`. Meanwhile a range of the next stage's sources is
    // asked for.
    GNEWT_INLINE void multiply_pairs(const Strided<T>& from, int64_t first, int range) const {
        const Asking ask{ahead_.begin(call_.sources, next_, range), reach_[range]};
        multiply_asking<T, Sizes::small>(p_, p_, ld_ - first, {pp_, ldp_}, from.view(), {w_ + first, ld_}, ask);
    }
    // Where PP is not definite, the terms of FᵀW in the columns [first, last) go into the sizes as well.
    GNEWT_INLINE void add_terms(const Strided<T>& from, int64_t first, int64_t last) const {
        if (definite_) return;
        for (int64_t i = 0; i < p_; ++i)
            for (int64_t j = first; j < last; ++j) size_[j] += abs(from.row(i)[j - first] * w_[i * ld_ + j]);
    }
    GNEWT_INLINE void load_next() const {
        if (kEarly) load_stage(next_, next_f_, next_h_);
    }

    // The elimination where states begin with a vector: rows are computed where they are eliminated, with G = F_uᵀ·PP.
    GNEWT_INLINE bool eliminate_apart(const Rows<T>& rows) {
        multiply_asking<T, Sizes::small>(p_, q_, p_, f_u_.view(), {pp_, ldp_}, {g_, ldp_},
                                         {ahead_.begin(call_.sources, next_, 0), reach_[0]});
        const ConstView<T> g{g_, ldp_};
        const StageProducts<T> products{
            {p_, g, f_u_, h_u_}, call_.shift, {p_, g, f_x_, h_x_, at_}, {p_, f_x_.view(), {w_ + at_, ld_}}};
        const auto between = [&](const auto number) GNEWT_LAMBDA {
            constexpr int64_t done = decltype(number)::value;
            if constexpr (kLate && done == 0) sum_inputs();
            if constexpr (kLate && done == 2) sum_states(), add_given();
        };
        const auto meanwhile = [&]() GNEWT_LAMBDA {
            multiply_pairs(f_x_, at_, 1);
            add_terms(f_x_, at_, at_ + p_);
            for (int64_t i = 0; !definite_ && i < p_; ++i)
                for (int64_t j = 0; j < q_; ++j) size_[j] += abs(f_u_.row(i)[j] * g_[j * ldp_ + i]);
            if (!Sizes::small) ahead_.ask(call_.sources, next_, 2);
            load_next();
        };
        return eliminate_stage<T, Sizes::known, Sizes::small>(rows, q_, products, {before_, ldp_}, course_.tally,
                                                              between, meanwhile);
    }

    // The elimination where inputs and states share a vector: R = H + FᵀW in one piece.
    GNEWT_INLINE bool eliminate_joined(const Rows<T>& rows) {
        const View<T> f{f_, ld_}, w{w_, ld_}, r{r_, ld_};
        for (int64_t i = 0; i < q_; ++i) h_[i * ld_ + i] += call_.shift;
        multiply_pairs(f_u_, 0, 0);
        add_terms(f_u_, 0, ld_);
        if (!Sizes::small) ahead_.ask(call_.sources, next_, 1);
        multiply<T, kAdd, Sizes::small>(p_, {0, q_, kUpper, ld_}, f, w, {h_, ld_}, r);
        const auto meanwhile = [&]() GNEWT_LAMBDA {
            // A row that was just stored as one vector is loaded as one: with the columns before q.
            if (ld_ == kWidth<T>)
                multiply<T, kSet, Sizes::small>(p_, {q_, n_, kLower, n_}, f, w, r);
            else
                multiply<T, kSet, Sizes::small>(p_, {0, p_, kLower, p_}, f.from(0, at_), w.from(0, at_),
                                                r.from(q_, at_));
            load_next();
        };
        return eliminate_rows<T, Sizes::known, Sizes::small>(rows, q_, kLower, {before_, ldp_}, course_.tally,
                                                             meanwhile);
    }

    // The solution's right-hand sides, and the sizes and right-hand sides of the message to the next stage.
    GNEWT_INLINE void pass_on() {
        if (kEarly) swap(f_, next_f_), swap(h_, next_h_);
        for (int64_t i = 0; i < q_; ++i) z_[slots_[i]] = y_[i];
        int64_t i = 0;
        for (; i + 4 <= p_; i += 4) {
            const T* d = before_ + i * (ldp_ + 1);
            const Quad<T> left = diagonal<T>(load4(d), load4(d + ldp_), load4(d + 2 * ldp_), load4(d + 3 * ldp_));
            store4(weight_before_ + i, max4<T>(load4(size_ + at_ + i), abs4<T>(left)));
            store4(v_ + i, load4(rho_ + at_ + i));
        }
        for (; i < p_; ++i) {
            weight_before_[i] = max(size_[at_ + i], abs(before_[i * (ldp_ + 1)]));
            v_[i] = rho_[at_ + i];
        }
    }

    Course<T>& course_;
    const Call<T>& call_;
    const Stage<T, Sizes>& stage_;
    const int64_t p_, q_, n_, ld_, at_, ldp_;  // at: the first column of the states; ld, ldp: leading dimensions
    Message& message_;                         // of the stage before; becomes that of the last stage
    T* __restrict factor_;                     // where the rows of L of this stage go
    const bool split_;                         // states begin with a vector, and one block holds the inputs
    T* const z_;
    const int32_t *const all_slots_, *const all_starts_;  // of all fronts: slots, and where sources begin
    const Ahead<T>& ahead_;
    int64_t reach_[2];  // bytes of a range that are asked for with every step of a product

    T *f_, *h_;                         // F [p, ld]; the rows of the inputs as sources give them [q, ld]
    T *next_f_, *next_h_;               // the same of the next stage, where stages are loaded early
    T *w_, *r_, *g_;                    // W = PP·F [p, ld]; R [n, ld]; G = F_uᵀ·PP [q, ldp]
    T *rho_, *size_, *y_;               // right-hand sides, sizes [ld]; right-hand sides as rows of L [q]
    T *before_, *weight_before_, *v_;   // the message from the stage before: matrix [p, ldp], sizes, right-hand sides
    T *pp_, *weight_, *diag_;           // PP [p, ldp], its weights, and the magnitudes on its diagonal
    const int32_t *slots_, *starts_;    // of this stage: slots of the inputs, where sources begin
    const int32_t* next_;               // where the sources of the next stage begin
    Strided<T> f_u_, f_x_, h_u_, h_x_;  // columns of the inputs and of the states in F and in the rows of the inputs
    bool definite_;                     // whether the diagonal of PP is positive
};

template <class T, class Sizes>
bool eliminate_chain(Course<T>& course, const Stage<T, Sizes>& stage, T* __restrict work, T* __restrict sum) {
    const Front front = course.plan.front(course.next);
    const Ahead<T> ahead(front.shape, front.shape.num_blocks, front.sources);
    ChainAscent<T, Sizes> chain(course, stage, ahead, work, sum);
    return chain.run();
}

// The solution in the stages of a chain, from `last` back to the first front that looks alike and has no record; the
// front before that one is returned. What one stage hands to the next does not go through the slots. `record`: the last
// front that has a record. `factor`: behind the rows of L of the last stage.
template <class T, class Sizes>
int32_t descend_chain(Course<T>& course, const Stage<T, Sizes>& stage, int32_t last, int32_t record, const T*& factor,
                      T* __restrict work) {
    const int64_t p = stage.sizes.p, q = stage.sizes.q, n = p + q;
    const PlanView& plan = course.plan;
    T *x = work, *next = x + padded<T>(p) + 8, *u = next + padded<T>(p) + 8, *z = course.z.data();
    const FrontRecord* front = plan.fronts() + last;
    const int32_t *slots = plan.slots() + front->slots, shape = front->shape;
    for (int64_t i = 0; i < p; ++i) x[i] = z[slots[n + i]];
    int32_t k = last;
    for (; k > record && front->shape == shape; --k, --front) {
        slots = plan.slots() + front->slots;
        factor -= q * n;
        stage.descend({course.call.sources, factor, plan.sources() + front->sources, slots + p}, z, x, u, next);
        swap(x, next);
    }
    for (int64_t i = 0; i < p; ++i) z[slots[i]] = x[i];
    return k;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
