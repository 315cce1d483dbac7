// Chains: stages that follow each other are eliminated one after the other, in one go, and the Schur complement stays
// where it is on the stack. ChainAscent eliminates, descend_chain computes the solution. Called by quick.hpp.
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

// The elimination of the stages of a chain, as long as they look alike and nothing is in doubt. All functions but run()
// are inlined into run(), so that members are local variables there.
template <class T, class Sizes>
class ChainAscent {
public:
    // `ahead`: the sources of a stage, in ranges of cache lines. `work`: work space for a stage, see Quick::work_size.
    // `sum`: pair_sums_size(p).
    GNEWT_INLINE
    ChainAscent(Course<T>& course, const Stage<T, Sizes>& stage, const Ahead<T>& ahead, T* work, T* sum)
        : course_(course),
          call_(course.call),
          stage_(stage),
          message_(course.waiting[course.num_waiting - 1]),
          factor_(course.factor),
          split_(stage.apart() && stage.sizes.q <= kBlock),
          all_starts_(course.plan.sources()),
          ahead_(ahead) {
        lay_out(work, sum);
        reach_[0] =
            ahead_.in_steps(0, split_ ? steps_of_multiply<T>(p(), q(), p()) : steps_of_multiply<T>(p(), p(), ld()));
        reach_[1] = ahead_.in_steps(1, steps_of_multiply<T>(p(), p(), ld() - at()));
    }

    // Eliminate the next fronts that look alike, each the only child of the front behind it, up to the first front that
    // is in doubt. Whether there was none.
    GNEWT_INLINE
    bool run() {
        std::memset(f_, 0, size_t(w_ - f_) * sizeof(T));  // columns that fill up vectors are computed with, too
        fill_triangle(before_, 1, ldp());
        const PlanView& plan = course_.plan;
        int32_t k = course_.next;
        const int32_t num_fronts = plan.num_fronts(), kind = plan.fronts()[k].shape;
        const FrontRecord* front = plan.fronts() + k;
        if (kEarly) load_stage(all_starts_ + front->sources, f_, h_);
        bool good = true;
        for (; k < num_fronts && front->shape == kind; ++k, ++front, factor_ += q() * n()) {
            const bool more = k + 1 < num_fronts && front[1].shape == kind;
            slots_ = plan.slots() + front->slots + p();
            starts_ = all_starts_ + front->sources;
            next_ = all_starts_ + front[more ? 1 : 0].sources;
            if (!Sizes::small) ask_for<true>(factor_ + q() * n(), more ? q() * n() : 0);
            good = add_pairs() && eliminate();
            if (!good) break;
            pass_on();
        }
        fill_triangle(before_, ldp(), 1);
        if (k > course_.next) message_ = {message_.at, message_.end, k - 1};
        course_.next = k;
        course_.factor = factor_;
        return good;
    }

private:
    // A small stage is loaded while the stage before it waits for its pivots.
    static constexpr bool kEarly = Sizes::small;
    // Sums over F of other stages are taken while the stage itself waits for pivots, if three or more pivots are there to
    // wait for.
    static constexpr bool kLate = !kEarly && Sizes::known > 2 && known_apart<T>(Sizes{}) > 0;

    GNEWT_INLINE
    int64_t p() const { return stage_.sizes.p; }
    GNEWT_INLINE
    int64_t q() const { return stage_.sizes.q; }
    GNEWT_INLINE
    int64_t n() const { return p() + q(); }
    GNEWT_INLINE
    int64_t ld() const { return stage_.width(); }
    GNEWT_INLINE
    int64_t at() const { return stage_.states(); }  // the first column of the states
    GNEWT_INLINE
    int64_t ldp() const { return padded<T>(p()); }

    GNEWT_INLINE
    void lay_out(T* work, T* sum) {
        f_ = work;
        h_ = f_ + p() * ld();
        next_f_ = kEarly ? h_ + q() * ld() : f_;
        next_h_ = next_f_ + p() * ld();
        w_ = next_h_ + q() * ld();
        r_ = w_ + p() * ld();
        rho_ = r_ + n() * ld() + kWidth<T>;
        size_ = rho_ + ld();
        y_ = size_ + ld();
        g_ = y_ + ld();
        const MessageParts<T> child = message_parts(course_.stack.data() + message_.at, p());
        before_ = child.schur, weight_before_ = child.sizes, v_ = child.carried;
        pp_ = sum;
        weight_ = sum + p() * ldp();
        diag_ = weight_ + ldp() + 4;  // filled up to fours, as the weights are
    }

    // One triangle of `before` from the other. (i, j) with i > j is at i·row + j·col of the given triangle.
    GNEWT_INLINE
    void fill_triangle(T* a, int64_t row, int64_t col) const {
        for (int64_t i = 0; i < p(); ++i)
            for (int64_t j = 0; j < i; ++j) a[j * row + i * col] = a[i * row + j * col];
    }

    GNEWT_INLINE
    void load_inputs(const int32_t* starts, T* to) const {
        if (split_)
            stage_.template load_inputs<true>(call_.sources, starts, to);
        else
            stage_.template load_inputs<false>(call_.sources, starts, to);
    }
    GNEWT_INLINE
    void load_stage(const int32_t* starts, T* f, T* h) const {
        stage_.load_jacobian(call_.sources, starts, f);
        load_inputs(starts, h);
    }

    // PP of this stage, and its weights. False where PP is in doubt.
    GNEWT_INLINE
    bool add_pairs() {
        stage_.add_pairs(call_.sources, starts_, before_, weight_before_, {pp_, diag_, weight_});
        auto above = Quad<T>{} == 0, large = above;
        for (int64_t i = 0; i < p(); i += 4) {
            const Quad<T> d = load4(diag_ + i), magnitude = abs4<T>(d);
            above &= d > 0;
            large &= magnitude >= T(kDoubtful) * load4(weight_ + i);
            store4(diag_ + i, magnitude);
        }
        definite_ = all4(above);
        if (all4(large))
            swap(weight_, diag_);
        else
            course_.lost = !renew_weights(p(), pp_, ldp(), weight_);
        return !course_.lost && (definite_ || !bare_row(p(), pp_, ldp()));
    }

    // Eliminate the inputs of this stage. False where a pivot is in doubt.
    GNEWT_INLINE
    bool eliminate() {
        const bool in_place = find_parts();
        if constexpr (kLate) {
            if (!in_place) stage_.load_jacobian(call_.sources, starts_, f_);
        } else {
            sum_early(in_place);
        }
        const Rows<T> rows{r_, ld(), n(), rho_, 1, size_, factor_, y_, at() - q()};
        bool good;
        if constexpr (known_apart<T>(Sizes{}) < 0)
            good = split_ ? eliminate_apart(rows) : eliminate_joined(rows);
        else if constexpr (known_apart<T>(Sizes{}))
            good = eliminate_apart(rows);
        else
            good = eliminate_joined(rows);
        if (!good) course_.lost = lost_row(rows, q());
        return good;
    }

    // Where F and the rows of the inputs are read: in place, where their sources are laid out well, or in work space.
    GNEWT_INLINE
    bool find_parts() {
        f_u_ = {f_, ld()}, f_x_ = {f_ + at(), ld()}, h_u_ = {h_, ld()}, h_x_ = {h_ + at(), ld()};
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
    GNEWT_INLINE
    void sum_early(bool in_place) const {
        if (in_place) {
            sum_inputs();
            sum_states();
        } else if (!kEarly && stage_.has_room(call_.sources_len, starts_)) {
            stage_.carry_jacobian(call_.sources, starts_, {weight_, v_}, f_, size_, rho_);
        } else {
            if (!kEarly) stage_.load_jacobian(call_.sources, starts_, f_);
            sum_columns(ld(), f_u_, 0);
        }
        add_given();
    }
    GNEWT_INLINE
    void sum_inputs() const { sum_columns(at(), f_u_, 0); }
    GNEWT_INLINE
    void sum_states() const { sum_columns(ld() - at(), f_x_, at()); }

    // The sums over F (see Sums) in `cols` columns, which are those from `first` on.
    GNEWT_INLINE
    void sum_columns(int64_t cols, const Strided<T>& f, int64_t first) const {
        over_columns<T, 3>(cols, [&](int64_t j, const auto width) GNEWT_LAMBDA {
            Sums<T, int(decltype(width)::value)> sums;
            sums.add(p(), {weight_, v_}, f.matrix().from(0, j));
            sums.put(size_ + first + j, rho_ + first + j);
        });
    }
    // The magnitudes and right-hand sides of the inputs.
    GNEWT_INLINE
    void add_given() const {
        stage_.add_magnitudes(call_.sources, starts_, abs(call_.shift), size_);
        for (int64_t i = 0; i < q(); ++i) rho_[i] += call_.rhs[slots_[i]];
    }

    // W = PP·F in the columns [first, ld), which are those of `from`. Meanwhile a range of the next stage's sources is
    // asked for.
    GNEWT_INLINE
    void multiply_pairs(const Strided<T>& from, int64_t first, int range) const {
        const Asking ask{ahead_.begin(call_.sources, next_, range), reach_[range]};
        multiply_asking<T, Sizes::small>(p(), p(), ld() - first, {pp_, ldp()}, from.matrix(), {w_ + first, ld()}, ask);
    }
    // Where PP is not definite, the terms of FᵀW in the columns [first, last) go into the sizes as well.
    GNEWT_INLINE
    void add_terms(const Strided<T>& from, int64_t first, int64_t last) const {
        if (definite_) return;
        for (int64_t i = 0; i < p(); ++i)
            for (int64_t j = first; j < last; ++j) size_[j] += abs(from.row(i)[j - first] * w_[i * ld() + j]);
    }
    GNEWT_INLINE
    void load_next() const {
        if (kEarly) load_stage(next_, next_f_, next_h_);
    }

    // The elimination where states begin with a vector: rows are computed where they are eliminated, with G = F_uᵀ·PP.
    GNEWT_INLINE
    bool eliminate_apart(const Rows<T>& rows) {
        multiply_asking<T, Sizes::small>(p(), q(), p(), f_u_.matrix(), {pp_, ldp()}, {g_, ldp()},
                                         {ahead_.begin(call_.sources, next_, 0), reach_[0]});
        const ConstMatrix<T> g{g_, ldp()};
        const StageProducts<T> products{
            {p(), g, f_u_, h_u_}, call_.shift, {p(), g, f_x_, h_x_, at()}, {p(), f_x_.matrix(), {w_ + at(), ld()}}};
        const auto between = [&](const auto number) GNEWT_LAMBDA {
            constexpr int64_t done = decltype(number)::value;
            if constexpr (kLate && done == 0) sum_inputs();
            if constexpr (kLate && done == 2) sum_states(), add_given();
        };
        const auto meanwhile = [&]() GNEWT_LAMBDA {
            multiply_pairs(f_x_, at(), 1);
            add_terms(f_x_, at(), at() + p());
            for (int64_t i = 0; !definite_ && i < p(); ++i)
                for (int64_t j = 0; j < q(); ++j) size_[j] += abs(f_u_.row(i)[j] * g_[j * ldp() + i]);
            if (!Sizes::small) ahead_.ask(call_.sources, next_, 2);
            load_next();
        };
        return eliminate_stage<T, Sizes::known, Sizes::small>(rows, q(), products, {before_, ldp()}, course_.tally,
                                                              between, meanwhile);
    }

    // The elimination where inputs and states share a vector: R = H + FᵀW in one piece.
    GNEWT_INLINE
    bool eliminate_joined(const Rows<T>& rows) {
        const Matrix<T> f{f_, ld()}, w{w_, ld()}, r{r_, ld()};
        for (int64_t i = 0; i < q(); ++i) h_[i * ld() + i] += call_.shift;
        multiply_pairs(f_u_, 0, 0);
        add_terms(f_u_, 0, ld());
        if (!Sizes::small) ahead_.ask(call_.sources, next_, 1);
        multiply<T, kAdd, Sizes::small>(p(), {0, q(), kUpper, ld()}, f, w, {h_, ld()}, r);
        const auto meanwhile = [&]() GNEWT_LAMBDA {
            if (ld() ==
                kWidth<T>)  // with the columns before q: a row that was just stored as one vector is loaded as one
                multiply<T, kSet, Sizes::small>(p(), {q(), n(), kLower, n()}, f, w, r);
            else
                multiply<T, kSet, Sizes::small>(p(), {0, p(), kLower, p()}, f.from(0, at()), w.from(0, at()),
                                                r.from(q(), at()));
            load_next();
        };
        return eliminate_rows<T, Sizes::known, Sizes::small>(rows, q(), kLower, {before_, ldp()}, course_.tally,
                                                             meanwhile);
    }

    // The solution's right-hand sides, and the sizes and right-hand sides of the message to the next stage.
    GNEWT_INLINE
    void pass_on() {
        if (kEarly) swap(f_, next_f_), swap(h_, next_h_);
        T* z = course_.z.data();
        for (int64_t i = 0; i < q(); ++i) z[slots_[i]] = y_[i];
        int64_t i = 0;
        for (; i + 4 <= p(); i += 4) {
            const T* d = before_ + i * (ldp() + 1);
            const Quad<T> left = diagonal<T>(load4(d), load4(d + ldp()), load4(d + 2 * ldp()), load4(d + 3 * ldp()));
            store4(weight_before_ + i, max4<T>(load4(size_ + at() + i), abs4<T>(left)));
            store4(v_ + i, load4(rho_ + at() + i));
        }
        for (; i < p(); ++i) {
            weight_before_[i] = max(size_[at() + i], abs(before_[i * (ldp() + 1)]));
            v_[i] = rho_[at() + i];
        }
    }

    Course<T>& course_;
    const Call<T>& call_;
    const Stage<T, Sizes>& stage_;
    Message& message_;      // from the stage before; it becomes the message of the last stage
    T* __restrict factor_;  // where the rows of L of this stage go
    const bool split_;      // states begin with a vector, and one block holds the inputs
    const int32_t* all_starts_;
    const Ahead<T>& ahead_;
    int64_t reach_[2];  // bytes of a range that are asked for with every step of a product

    T *f_, *h_;                        // F [p, ld]; the rows of the inputs as sources give them [q, ld]
    T *next_f_, *next_h_;              // the same of the next stage, where stages are loaded early
    T *w_, *r_, *g_;                   // W = PP·F [p, ld]; R [n, ld]; G = F_uᵀ·PP [q, ldp]
    T *rho_, *size_, *y_;              // right-hand sides, sizes [ld]; right-hand sides as rows of L [q]
    T *before_, *weight_before_, *v_;  // the message from the stage before: matrix [p, ldp], sizes, right-hand sides
    T *pp_, *weight_, *diag_;          // PP [p, ldp], its weights, and the magnitudes on its diagonal
    const int32_t *slots_, *starts_,
        *next_;                         // of this stage: inputs' slots, starts of sources; starts of the next stage
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

// The solution in the stages of a chain, from `last` back to the first front that looks alike and has no record; the front
// before that one is returned. What one stage hands to the next does not go through the slots. `record`: the last front
// that has a record. `factor`: behind the rows of L of the last stage.
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
        stage.descend({course.call.sources, factor, plan.sources() + front->sources, slots + p, z, x, next}, u);
        swap(x, next);
    }
    for (int64_t i = 0; i < p; ++i) z[slots[i]] = x[i];
    return k;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
