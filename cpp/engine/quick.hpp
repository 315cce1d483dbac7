// The quick elimination of a causal plan, where nothing is in doubt: pairs are substituted, inputs are eliminated in
// the order of the plan. Called by elimination.hpp.
//
// The quick form does not follow noise. Instead, every pivot is compared with what was summed into it. A pivot that
// lost more than a few digits, or a row of L that makes entries grow, puts the front in doubt: the front is left as it
// was, for the careful form (fronts.hpp), and the quick form goes on behind that front. A diagonal entry of pairs that
// lost digits is no pivot: such an entry only stands for more noise from there on.
#pragma once
#include "chain.hpp"
#include "course.hpp"
#include "lanes.hpp"
#include "ldl.hpp"
#include "lines.hpp"
#include "load.hpp"
#include "packed.hpp"
#include "prefetch.hpp"
#include "solve.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// The parts of a front in work space: p pairs, q inputs, a separator of b slots; n = q + b. R is the matrix of [q | b].
template <class T>
struct QuickParts {
    int64_t p, q, b, n, ld, ldp, ldr;  // leading dimensions: of parts with n columns, of PP, of R
    bool cross, nested;                // C is there; a pair reads another pair
    bool in_place;                     // PP is the message of the only child, on the stack
    bool straight;                     // R is a block of the front that is gathered
    bool apart;                        // the sources of R fill its first q rows, and wait beside R in h
    int64_t beside;                    // C has nothing in the columns before this one
    T *f, *w, *c, *spread;             // [p, ld]: x_p = F [u; ξ]; W = PP·F + C; C; magnitudes that went into F
    T *pp, *weight, *v;                // PP [p, ldp], what was summed into its diagonal, right-hand sides [p, columns]
    T *h, *r;                          // rows of the inputs as sources give them [q, ld]; R [n, ldr]
    T *rho, *size, *y;                 // right-hand sides of R [columns, ld], its sizes [ld]; rows of L [n, columns]

    T* rest() const { return apart ? h : r; }  // where the sources of R go
    const T* magnitudes() const { return nested ? spread : f; }
};

template <class T>
class Quick {
public:
    explicit Quick(Course<T>& course)
        : course_(course), call_(course.call), plan_(course.plan), lanes_(course), lines_(course) {}

    bool reserve() {
        const int64_t p = plan_.data[kMaxPairs], n = plan_.data[kMaxRest];
        return work_.reserve(work_size(p, n, 2 * n) + n * padded<T>(p)) && saved_.reserve(pair_sums_size<T>(p)) &&
               (n < kWide || packed_.reserve(packed_size<T>(padded<T>(n))));
    }

    // Eliminate fronts up to the first that is in doubt, which is left as it was. Whether there was none.
    bool ascend() {
        int32_t& f = course_.next;
        while (f < plan_.num_fronts()) {
            if (!lanes_.begin(f)) return false;
            const Front front = plan_.front(f);
            Gathering<T>& gathering = course_.gathering;
            if (plan_.causal() && !gathering.look_ahead(plan_, f, course_.columns)) return false;
            if (lanes_.done(f)) {
                if (!lanes_.pass_on(f, front.shape)) return false;
                go_on(f, front);
                continue;
            }
            if (!plan_.causal()) {
                if (!eliminate_small(f, front)) return false;
                continue;
            }
            if (gathering.is(f)) return false;
            if (gathering.ahead_of(f) && gathering.add_leaf(front, call_.sources, work_.data())) {
                ++f;
                continue;
            }
            if (any_delayed(front)) return false;
            bool good = true;
            if (!as_stages(f, front.shape,
                           [&](const auto& stage) {
                               clear(front.shape, false);
                               good = eliminate_chain(course_, stage, work_.data(), saved_.data());
                           }) &&
                !lines_.template ascend<false>(good) && !eliminate_small(f, front)) {
                ask_for_sources(f + 1, false);
                good = eliminate(f, front);
                if (good) go_on(f, front);
            }
            if (!good) return false;
        }
        return true;
    }

    // Eliminate lines of fronts, if the next front is in one, with noise followed as the careful form does: up to the
    // first front that is in no line, or is in doubt. Whether there was none.
    bool ascend_noisy() {
        bool good = true;
        while (good && course_.next < plan_.num_fronts()) {
            if (course_.num_waiting && course_.waiting[course_.num_waiting - 1].delayed) return false;
            if (!lines_.template ascend<true>(good)) return false;
        }
        return good;
    }

    // Solutions from the roots down, where all fronts are done.
    void descend(const Records<T>& records, T* local) {
        const T* factor = course_.factor;
        T* z = course_.z.data();
        RecordWalk<T> record(records, true);
        record.previous();
        for (int32_t f = plan_.num_fronts() - 1; f >= 0;) {
            const Front front = plan_.front(f);
            const T* l = factor - rows_of_l(front.shape);
            if (record.front == f) {
                descend_record(front, record, record.rows(l), call_.sources, z, course_.columns, local);
                record.previous();
            } else if (as_stages(f, front.shape, [&](const auto& stage) {
                           clear(front.shape, false);
                           f = descend_chain(course_, stage, f, int32_t(record.front), factor, work_.data());
                       })) {
                continue;
            } else if (const int32_t before = lines_.descend(f, int32_t(record.front), factor); before < f) {
                f = before;
                continue;
            } else {
                ask_for_sources(f - 1, true);
                engine::GNEWT_ISA::descend(front, call_.sources, l, z, course_.columns, local);
            }
            factor = l;
            --f;
        }
    }

private:
    // Numbers for a front of p pairs and n other unknowns, with so many rows of R and beside R.
    int64_t work_size(int64_t p, int64_t n, int64_t rows) const {
        const int64_t ld = padded<T>(n), ldp = padded<T>(p), columns = course_.columns;
        return p * (ldp + columns + 1 + 4 * ld) + (rows + columns + 3) * ld + n * columns + 128;
    }
    // Columns that fill up vectors are computed with, too: what a front uses of the work space must have been cleared
    // once.
    void clear(const Shape& shape, bool straight) {
        const int64_t n = shape.q + shape.b, size = work_size(shape.p, n, straight ? 0 : shape.q + n);
        if (size <= cleared_) return;
        std::memset(work_.data() + cleared_, 0, size_t(size - cleared_) * sizeof(T));
        cleared_ = size;
    }

    // Front f is done: its message is on the stack.
    void go_on(int32_t& f, const Front& front) {
        course_.gather(f);
        ++f;
        course_.factor += rows_of_l(front.shape);
    }
    bool any_delayed(const Front& front) {
        bool any = false;
        for (int32_t k = 1; k <= front.num_children; ++k)
            any |= course_.waiting[course_.num_waiting - k].delayed != 0;
        return any;
    }
    // Eliminate front f if it is small and has no pairs; false where it is not, or is in doubt.
    bool eliminate_small(int32_t& f, const Front& front) {
        if (front.shape.p || course_.columns != 1 || !LaneFronts<T>::is_small(front.shape) || any_delayed(front))
            return false;
        if (!lanes_.eliminate(f, front)) return false;
        go_on(f, front);
        return true;
    }

    static int64_t rows_of_l(const Shape& shape) { return int64_t(shape.q) * (shape.q + shape.b); }

    // Ask for the sources of a front that has pairs; `back`: of F alone.
    void ask_for_sources(int32_t f, bool back) {
        if (f < 0 || f >= plan_.num_fronts()) return;
        const FrontRecord& front = plan_.fronts()[f];
        const int32_t* starts = plan_.sources() + front.sources;
        if (front.shape != asked_shape_ || back != asked_back_) {
            const Shape shape = plan_.front(f).shape;
            int32_t blocks = shape.p ? min(shape.num_blocks, kAskedBlocks) : 0;
            while (back && blocks && shape.blocks[blocks - 1].kind != kF) --blocks;
            ahead_ = Ahead<T>(shape, blocks, starts);
            asked_shape_ = front.shape, asked_back_ = back;
        }
        ahead_.ask(call_.sources, starts);
    }

    // Call run(stage) if front f, of shape s, is a stage of a chain. A shape that is none is remembered: fronts that
    // follow each other often look alike.
    template <class Run>
    bool as_stages(int32_t f, const Shape& s, Run run) {
        const int32_t shape = plan_.fronts()[f].shape;
        if (shape == no_stage_) return false;
        const bool is = match_stage(s, run);
        if (!is) no_stage_ = shape;
        return is;
    }
    template <class Run>
    bool match_stage(const Shape& s, Run run) const {
        if (course_.columns != 1 || s.p != s.b || !s.p || !s.q) return false;
        if (s.p == 4 && s.q == 1) return as_stage(Fixed<4, 1>{}, s, run);
        if (s.p == 12 && s.q == 6) return as_stage(Fixed<12, 6>{}, s, run);
        // The build for old machines need not be fast, but quick to compile.
        if constexpr (kTileVectors > 2) {
            if (s.p == 4 && s.q == 2) return as_stage(Fixed<4, 2>{}, s, run);
            if (s.p == 6 && s.q == 3) return as_stage(Fixed<6, 3>{}, s, run);
            if (s.p == 12 && s.q == 4) return as_stage(Fixed<12, 4>{}, s, run);
        }
        return as_stage(Any{s.p, s.q}, s, run);
    }
    template <class Sizes, class Run>
    static bool as_stage(const Sizes& sizes, const Shape& shape, Run run) {
        Stage<T, Sizes> stage;
        stage.sizes = sizes;
        if (!stage.matches(shape)) return false;
        run(stage);
        return true;
    }

    // Eliminate a front, or leave everything as it was.
    bool eliminate(int32_t number, const Front& front) {
        const int64_t p = front.shape.p, before = course_.num_waiting, at = before ? course_.waiting[before - 1].at : 0;
        const size_t bytes = front.shape.flags & kChildIsPairs ? size_t((p + 1) * padded<T>(p)) * sizeof(T) : 0;
        std::memcpy(saved_.data(), course_.stack.data() + at, bytes);
        if (attempt(number, front)) return true;
        course_.num_waiting = before;
        std::memcpy(course_.stack.data() + at, saved_.data(), bytes);
        return false;
    }

    bool attempt(int32_t number, const Front& front) {
        const Shape& shape = front.shape;
        // A leaf may add its Schur complement straight to the front that is gathered.
        const bool straight = course_.gathering.is_open_to(number, front);
        clear(shape, straight);
        const Messages<T> children = course_.messages(front.num_children);
        QuickParts<T> at = lay_out(shape, straight, children);
        if (at.n >= kWide && at.p == 0 && indefinite(call_, front, children, at.size)) return false;
        assemble(front, children, at);
        if (at.p && !substitute(at)) return false;
        if (straight) {
            course_.gathering.add_sizes(shape, at.size, at.y);
            return true;
        }
        return pass_on(number, front, at);
    }

    // Where the parts of a front are.
    GNEWT_INLINE QuickParts<T> lay_out(const Shape& shape, bool straight, const Messages<T>& children) {
        QuickParts<T> at;
        const int64_t p = at.p = shape.p, q = at.q = shape.q, n = at.n = shape.q + shape.b, columns = course_.columns;
        const int64_t ld = at.ld = padded<T>(n), ldp = at.ldp = padded<T>(p);
        at.b = shape.b;
        at.ldr = straight ? course_.gathering.width() : ld;
        at.cross = shape.flags & kCross, at.nested = shape.flags & kNested;
        at.in_place = shape.flags & kChildIsPairs, at.straight = straight;
        at.apart = p && at.in_place && shape.num_set;
        at.beside = n;
        at.f = work_.data();
        at.w = at.f + p * ld;
        at.h = at.w + p * ld;
        at.r = at.h + q * ld;
        at.rho = (straight ? at.h : at.r + n * ld) + kWidth<T>;
        at.size = at.rho + columns * ld;
        at.y = at.size + ld;
        at.weight = at.y + n * columns;
        at.pp = at.weight + ldp;
        at.v = at.pp + p * ldp;
        at.c = at.v + p * columns;
        at.spread = at.c + p * ld;
        if (at.in_place) {
            const MessageParts<T> child = message_parts(course_.stack.data() + children.first[0].at, p);
            at.pp = child.schur, at.weight = child.sizes, at.v = child.carried;
        }
        if (straight) at.r = course_.gathering.block_of(shape);
        return at;
    }

    // Put a front together: messages, sources, shift and right-hand sides.
    GNEWT_INLINE void assemble(const Front& front, const Messages<T>& children, QuickParts<T>& at) {
        const Shape& shape = front.shape;
        const int64_t p = at.p, q = at.q, n = at.n, ld = at.ld, columns = course_.columns;
        if (at.cross) {
            std::memset(at.c, 0, size_t(p * ld) * sizeof(T));
            at.beside = children.first_column(p, n);
            for (int32_t k = 0; k < shape.num_blocks; ++k)
                if (shape.blocks[k].kind == kC) at.beside = min(at.beside, int64_t(shape.blocks[k].col));
        }
        if (!at.in_place && p) {
            std::memset(at.weight, 0, size_t(at.ldp + p * (at.ldp + columns)) * sizeof(T));  // weights, PP, v
            children.add_to_pairs({p, {at.pp, at.ldp}, {at.c, ld}, {at.v, columns, 1}, at.weight});
        }
        if (at.straight)  // the diagonal before this front
            for (int64_t i = 0; i < at.b; ++i) at.y[i] = at.r[i * (at.ldr + 1)];
        T* rest = at.rest();
        if (!at.apart && !at.straight) std::memset(at.r, 0, size_t(n * ld) * sizeof(T));
        std::memset(at.size, 0, size_t(ld) * sizeof(T));
        std::memset(at.rho, 0, size_t(columns * ld) * sizeof(T));
        const bool dense = shape.flags & kDenseJacobian;
        load_sources(call_, front, {{at.f, ld}, {at.pp, at.ldp}, {at.c, ld}, at.weight, dense}, at.apart, {rest, ld},
                     at.size);
        if (!at.in_place && children.count) children.add_to_rest({p, {at.r, ld}, {at.rho, 1, ld}, at.size});
        for (int64_t i = 0; i < q; ++i) {
            rest[i * ld + i] += call_.shift;
            at.size[i] += abs(call_.shift);
            const T* given = call_.rhs + front.slots[p + i] * columns;
            for (int64_t j = 0; j < columns; ++j) at.rho[j * ld + i] += given[j];
        }
        if (at.nested) unfold(call_, front, n, {at.f, ld}, at.spread);
    }

    // R += Fᵀ(PP·F + C) + CᵀF, with the right-hand sides of the pairs carried along; and what these terms add to the
    // diagonal at most. False where the front is in doubt.
    GNEWT_INLINE bool substitute(const QuickParts<T>& at) {
        const int64_t p = at.p, n = at.n, ld = at.ld, columns = course_.columns;
        const View<T> f{at.f, ld}, w{at.w, ld}, c{at.c, ld}, r{at.r, at.ldr}, rho{at.rho, ld};
        bool definite = true;
        if (!renew_pairs(at, definite)) return false;
        multiply_pairs<T>(p, n, {at.pp, at.ldp}, f, w);
        for (int64_t i = 0; at.cross && i < p; ++i)
            axpy(at.w + i * ld + at.beside, T(1), at.c + i * ld + at.beside, n - at.beside);
        if (n >= kWide && has_indefinite_diagonal(at)) return false;
        if (definite)
            add_all_sizes<false>(at);
        else
            add_all_sizes<true>(at);
        multiply<T, kAdd, false>(p, {0, columns, kWhole, n}, {at.v, columns}, f, rho);
        if (at.apart) {
            multiply<T, kAdd, false>(p, {0, at.q, kUpper, n}, f, w, {at.h, ld}, r);
            multiply<T, kSet, false>(p, {at.q, n, kUpper, n}, f, w, r);
        } else {
            multiply_upper<T, kAdd>(p, {0, n, kUpper, n}, f, w, r, packed_.data());
        }
        if (!at.cross) return true;
        const T* spread = at.magnitudes();
        for (int64_t i = 0; i < p; ++i)
            for (int64_t k = at.beside; k < n; ++k) at.size[k] += abs(spread[i * ld + k] * at.c[i * ld + k]);
        multiply_upper<T, kAdd>(p, {at.beside, n, kUpper, n}, c, f, r, packed_.data());
        return true;
    }

    // Make PP whole and set its weights. False where PP is in doubt. `definite`: whether its diagonal is positive.
    GNEWT_INLINE bool renew_pairs(const QuickParts<T>& at, bool& definite) {
        const int64_t p = at.p, ldp = at.ldp;
        bool all = true;
        for (int64_t i = 0; i < p; ++i) {
            const T d = at.pp[i * ldp + i];
            definite &= d > 0;
            all &= kept(d, at.weight[i]);
        }
        mirror(p, at.pp, ldp);
        if (!all && !renew_weights(p, at.pp, ldp, at.weight)) return !(course_.lost = true);
        for (int64_t i = 0; all && i < p; ++i) at.weight[i] = abs(at.pp[i * ldp + i]);
        return definite || !bare_row(p, at.pp, ldp);
    }

    // The test of `indefinite` (load.hpp) for a front with pairs, given W.
    static GNEWT_INLINE bool has_indefinite_diagonal(const QuickParts<T>& at) {
        const T* h = at.rest();
        for (int64_t j = 0; j < at.q; ++j) {
            T sum = h[j * (at.ld + 1)];
            for (int64_t i = 0, k = j; i < at.p; ++i, k += at.ld)
                sum += at.f[k] * (at.w[k] + (at.cross ? at.c[k] : T(0)));
            if (!(sum > 0)) return true;
        }
        return false;
    }

    // size[j] += Σ_i weight[i] F[i, j]²: for a definite PP this bounds all that cancels in Fᵀ PP F. BOTH: for another
    // PP the terms of FᵀW are added as well.
    template <bool BOTH>
    static GNEWT_INLINE void add_all_sizes(const QuickParts<T>& at) {
        int64_t j = 0;
        for (; j + 3 * kWidth<T> < at.n; j += 4 * kWidth<T>) add_sizes<4, BOTH>(at, j);
        for (; j < at.n; j += kWidth<T>) add_sizes<1, BOTH>(at, j);
    }
    template <int VECTORS, bool BOTH>
    static GNEWT_INLINE void add_sizes(const QuickParts<T>& at, int64_t first) {
        const T *f = at.magnitudes() + first, *w = at.w + first;
        T* size = at.size + first;
        Vec<T> sums[VECTORS];
        for (int v = 0; v < VECTORS; ++v) sums[v] = load(size + v * kWidth<T>);
        for (int64_t i = 0; i < at.p; ++i, f += at.ld, w += at.ld) {
            const T d = at.weight[i];
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; ++v) {
                const Vec<T> x = load(f + v * kWidth<T>);
                sums[v] += d * x * x;
                if (BOTH) sums[v] += vabs<T>(x * load(w + v * kWidth<T>));
            }
        }
        for (int v = 0; v < VECTORS; ++v) store(size + v * kWidth<T>, sums[v]);
    }

    // Eliminate the inputs, and write the message: the Schur complement takes the place of the children's, which are
    // used up. False where the front is in doubt.
    GNEWT_INLINE bool pass_on(int32_t number, const Front& front, const QuickParts<T>& at) {
        const int64_t q = at.q, b = at.b, ld = at.ld, columns = course_.columns;
        course_.num_waiting -= front.num_children;
        const int64_t base = course_.stack_end(), end = base + message_size<T>(b, columns);
        if (!course_.stack.reserve(end)) return false;
        const MessageParts<T> message = message_parts(course_.stack.data() + base, b);
        const Rows<T> rows{at.r, ld, at.n, at.rho, columns, at.size, course_.factor, at.y};
        if (!eliminate_rows<T, 0, false>(rows, q, kUpper, {message.schur, message.ld}, course_.tally, [] {})) {
            course_.lost = lost_row(rows, q, course_.lost_share());
            return false;
        }
        scatter(at.y, course_.z.data(), front.slots + at.p, q, columns);
        if (!b) return true;
        for (int64_t i = 0; i < b; ++i)
            message.sizes[i] = max(at.size[q + i], abs(message.schur[i * (message.ld + 1)]));
        for (int64_t i = 0; i < b; ++i)
            for (int64_t j = 0; j < columns; ++j) message.carried[i * columns + j] = at.rho[j * ld + q + i];
        course_.waiting[course_.num_waiting++] = {base, end, number};
        return true;
    }

    // The lower triangle from the upper.
    static GNEWT_INLINE void mirror(int64_t n, T* a, int64_t ld) {
        for (int64_t i = 0; i + 4 <= n; i += 4)
            for (int64_t j = 0; j <= i; j += 4) {
                const T* from = a + j * ld + i;
                T* to = a + i * ld + j;
                Quad<T> x = load4(from), y = load4(from + ld), z = load4(from + 2 * ld), w = load4(from + 3 * ld);
                const Quad<T> s = x, t = y, u = z, last = w;
                transpose<T>(x, y, z, w);
                if (i == j) {
                    x = s;
                    y = GNEWT_SHUFFLE(y, t, 0, 5, 6, 7);
                    z = GNEWT_SHUFFLE(z, u, 0, 1, 6, 7);
                    w = GNEWT_SHUFFLE(w, last, 0, 1, 2, 7);
                }
                store4(to, x);
                store4(to + ld, y);
                store4(to + 2 * ld, z);
                store4(to + 3 * ld, w);
            }
        for (int64_t k = n / 4 * 4; k < n; ++k)
            for (int64_t j = 0; j < k; ++j) a[k * ld + j] = a[j * ld + k];
    }

    static constexpr int32_t kAskedBlocks = 16;  // blocks of a front that are asked for at most

    Course<T>& course_;
    const Call<T>& call_;
    const PlanView& plan_;
    LaneFronts<T> lanes_;
    Lines<T> lines_;
    Ahead<T> ahead_;
    int32_t asked_shape_ = -1, no_stage_ = -1;
    bool asked_back_ = false;
    int64_t cleared_ = 0;              // numbers of the work space that have been cleared
    Buffer<T> work_, saved_, packed_;  // saved_: the message that is PP, for a front in doubt
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
