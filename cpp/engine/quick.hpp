// The elimination of a causal plan where nothing is in doubt: pairs are substituted, inputs eliminated in the order of the plan.
//
// Noise is not followed. Instead every pivot is compared with what was summed into it: one that lost more than a few digits, or a row
// of L that makes entries grow, puts the front in doubt. It is left as it was, for the careful elimination, and this one goes on behind it.
// A diagonal entry of pairs that lost digits is no pivot: it only stands for more noise from there on.
#pragma once
#include "chain.hpp"
#include "course.hpp"
#include "ldl.hpp"
#include "load.hpp"
#include "packed.hpp"
#include "prefetch.hpp"
#include "solve.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T>
class Quick {
public:
    explicit Quick(Course<T>& course)
        : course_(course),
          call_(course.call),
          plan_(course.plan),
          columns_(course.columns),
          num_waiting_(course.num_waiting),
          stack_(course.stack),
          z_(course.z),
          waiting_(course.waiting) {}

    bool reserve() {
        const int64_t p = plan_.data[kMaxPairs], n = plan_.data[kMaxRest];
        return work_.reserve(work_size(p, n, 2 * n) + n * padded<T>(p)) && saved_.reserve((p + 3) * padded<T>(p) + 8) &&
               (n < kWide || packed_.reserve(packed_size<T>(padded<T>(n))));
    }

    // Eliminate fronts up to the first that is in doubt, which is left as it was. Whether there was none.
    bool ascend() {
        int32_t& f = course_.next;
        while (f < plan_.num_fronts()) {
            const Front front = plan_.front(f);
            if (!course_.gathering.look_ahead(plan_, f, columns_) || course_.gathering.is(f)) return false;
            if (course_.gathering.ahead_of(f) && course_.gathering.add_leaf(front, call_.sources, work_.data())) {
                ++f;
                continue;
            }
            for (int32_t k = 1; k <= front.num_children; ++k)
                if (waiting_[num_waiting_ - k].delayed) return false;
            bool good = true;
            if (!as_stages(f, front.shape, [&](const auto& stage) {
                    clear(front.shape, false);
                    good = Chain<T>(course_).eliminate(stage, work_.data(), saved_.data());
                })) {
                ask_for_sources(f + 1, false);
                good = eliminate(f, front);
                if (good) course_.gather(f), ++f, course_.factor += rows_of_l(front.shape);
            }
            if (!good) return false;
        }
        return true;
    }

    // Solutions from the roots down, where all fronts are done.
    void descend(const Records<T>& records, T* local) {
        const T* factor = course_.factor;
        RecordWalk<T> record(records, true);
        record.previous();
        for (int32_t f = plan_.num_fronts() - 1; f >= 0;) {
            const Front front = plan_.front(f);
            if (record.front == f) {
                descend_record(front, record, record.rows(factor - rows_of_l(front.shape)), call_.sources, z_.data(),
                               columns_, local);
                record.previous();
            } else if (as_stages(f, front.shape, [&](const auto& stage) {
                           clear(front.shape, false);
                           f = Chain<T>(course_).descend(stage, f, int32_t(record.front), factor, work_.data());
                       })) {
                continue;
            } else {
                ask_for_sources(f - 1, true);
                engine::GNEWT_ISA::descend(front, call_.sources, factor - rows_of_l(front.shape), z_.data(), columns_,
                                           local);
            }
            factor -= rows_of_l(front.shape);
            --f;
        }
    }

private:
    // Numbers for a front of p pairs and n other unknowns, with so many rows of R and beside it.
    int64_t work_size(int64_t p, int64_t n, int64_t rows) const {
        const int64_t ld = padded<T>(n), ldp = padded<T>(p);
        return p * (ldp + columns_ + 1 + 4 * ld) + (rows + columns_ + 3) * ld + n * columns_ + 128;
    }
    // Columns that fill up vectors are computed with, too: what a front uses of the work space must have been cleared once.
    void clear(const Shape& shape, bool straight) {
        const int64_t n = shape.q + shape.b, size = work_size(shape.p, n, straight ? 0 : shape.q + n);
        if (size <= cleared_) return;
        std::memset(work_.data() + cleared_, 0, size_t(size - cleared_) * sizeof(T));
        cleared_ = size;
    }

    static int64_t rows_of_l(const Shape& shape) { return int64_t(shape.q) * (shape.q + shape.b); }

    // Ask for the sources of a front that has pairs; `back`: of F alone.
    void ask_for_sources(int32_t f, bool back) {
        if (f < 0 || f >= plan_.num_fronts()) return;
        const int32_t *fronts = plan_.data + plan_.data[kFrontsAt] + 4 * int64_t(f),
                      *starts = plan_.data + plan_.data[kSourcesAt] + fronts[2];
        if (fronts[0] != asked_shape_ || back != asked_back_) {
            const Shape shape = plan_.front(f).shape;
            int32_t last = shape.p ? min(shape.num_blocks, 16) : 0;
            while (back && last && shape.blocks[last - 1].kind != kF) --last;
            ahead_ = Ahead<T>(shape, 0, last, starts);
            asked_shape_ = fronts[0], asked_back_ = back;
        }
        ahead_.ask(call_.sources, starts);
    }

    // Call run(stage) if front f, of shape s, is a stage of a chain. What is none is remembered: fronts that follow often look alike.
    template <class Run>
    bool as_stages(int32_t f, const Shape& s, Run run) {
        const int32_t shape = plan_.data[plan_.data[kFrontsAt] + 4 * int64_t(f)];
        if (shape == no_stage_) return false;
        const bool is = match_stage(s, run);
        if (!is) no_stage_ = shape;
        return is;
    }
    template <class Run>
    bool match_stage(const Shape& s, Run run) const {
        if (columns_ != 1 || s.p != s.b || !s.p || !s.q) return false;
        if (s.p == 4 && s.q == 1) return as_stage(Fixed<4, 1>{}, s, run);
        if (s.p == 12 && s.q == 6) return as_stage(Fixed<12, 6>{}, s, run);
        if constexpr (kTileVectors >
                      2) {  // not in the build for old machines, which need not be fast but quick to build
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
        const int64_t p = front.shape.p, before = num_waiting_, at = before ? waiting_[before - 1].at : 0;
        const size_t bytes = front.shape.flags & kChildIsPairs ? size_t((p + 1) * padded<T>(p)) * sizeof(T) : 0;
        std::memcpy(saved_.data(), stack_.data() + at, bytes);
        if (attempt(number, front, course_.factor)) return true;
        num_waiting_ = before;
        std::memcpy(stack_.data() + at, saved_.data(), bytes);
        return false;
    }

    bool attempt(int32_t number, const Front& front, T* __restrict factor) {
        const Shape& shape = front.shape;
        const int64_t p = shape.p, q = shape.q, b = shape.b, n = q + b, columns = columns_;
        const int64_t ld = padded<T>(n), ldp = padded<T>(p), ldb = padded<T>(b);
        const bool cross = shape.flags & kCross, nested = shape.flags & kNested, in_place = shape.flags & kChildIsPairs;
        // A leaf may add its Schur complement straight to the front that is gathered.
        const bool straight = course_.gathering.is_open_to(number, front);
        const int64_t ldr = straight ? course_.gathering.width() : ld;
        clear(shape, straight);
        T *f = work_.data(), *w = f + p * ld, *h = w + p * ld, *r = h + q * ld,
          *rho = (straight ? h : r + n * ld) + kWidth<T>;
        T *size = rho + columns * ld, *y = size + ld, *weight = y + n * columns, *pp = weight + ldp, *v = pp + p * ldp;
        T *c = v + p * columns, *spread = c + p * ld;
        const int32_t num_children = front.num_children;
        const Messages<T> children{plan_, waiting_.data() + num_waiting_ - num_children, num_children, stack_.data(),
                                   columns};
        if (n >= kWide && p == 0 && indefinite(call_, front, children, size)) return false;
        int64_t beside = n;  // C has nothing in the columns before this one
        if (cross) {
            std::memset(c, 0, size_t(p * ld) * sizeof(T));
            beside = children.first_column(p, n);
            for (int32_t k = 0; k < shape.num_blocks; ++k)
                if (shape.blocks[k].kind == kC) beside = min(beside, int64_t(shape.blocks[k].col));
        }
        if (in_place) {
            pp = stack_.data() + children.first[0].at;
            weight = pp + p * ldp;
            v = weight + ldp;
        } else if (p) {
            std::memset(weight, 0, size_t(ldp + p * (ldp + columns)) * sizeof(T));
            children.add_to_pairs(p, pp, ldp, v, c, ld, weight);
        }
        if (straight) {
            r = course_.gathering.block_of(shape);
            for (int64_t i = 0; i < b; ++i) y[i] = r[i * (ldr + 1)];
        }
        // Where the sources of R fill its first q rows and no others, they wait beside it.
        const bool apart = p && in_place && shape.num_set;
        T* rest = apart ? h : r;
        if (!apart && !straight) std::memset(r, 0, size_t(n * ld) * sizeof(T));
        std::memset(size, 0, size_t(ld) * sizeof(T));
        std::memset(rho, 0, size_t(columns * ld) * sizeof(T));
        const int32_t first = load_sources(call_, front, apart, p, pp, ldp, weight, f, c, rest, ld, size);
        if (!in_place && num_children) children.add_to_rest(p, r, ld, rho, ld, size);
        for (int64_t i = 0; i < q; ++i) {
            rest[i * ld + i] += call_.shift;
            size[i] += abs(call_.shift);
            const T* given = call_.rhs + front.slots[p + i] * columns;
            for (int64_t j = 0; j < columns; ++j) rho[j * ld + i] += given[j];
        }
        if (nested) unfold(call_, front, first, p, n, f, spread, ld);
        if (p && !substitute(cross, p, q, n, columns, pp, weight, v, f, nested ? spread : f, w, c, beside, ld, rest, r,
                             ldr, rho, size))
            return false;
        if (straight) {
            course_.gathering.add_sizes(shape, size, y);
            return true;
        }

        // The Schur complement takes the place of the children's, which are used up.
        num_waiting_ -= num_children;
        const int64_t base = num_waiting_ ? waiting_[num_waiting_ - 1].end : 0,
                      end = base + message_size<T>(b, columns);
        if (!stack_.reserve(end)) return false;
        T *schur = stack_.data() + base, *sizes = schur + b * ldb, *carried = sizes + ldb;
        const Rows<T> rows{r, ld, n, rho, columns, size, factor, y};
        if (!eliminate_rows<T, 0, false>(rows, q, kUpper, schur, ldb, course_.tally, [] {})) {
            course_.lost = lost_row(rows, q);
            return false;
        }
        for (int64_t i = 0; i < q; ++i)
            for (int64_t j = 0; j < columns; ++j) z_[front.slots[p + i] * columns + j] = y[i * columns + j];
        if (!b) return true;
        for (int64_t i = 0; i < b; ++i) sizes[i] = max(size[q + i], abs(schur[i * (ldb + 1)]));
        for (int64_t i = 0; i < b; ++i)
            for (int64_t j = 0; j < columns; ++j) carried[i * columns + j] = rho[j * ld + q + i];
        waiting_[num_waiting_++] = {base, end, number};
        return true;
    }

    // R += Fᵀ(PP·F + C) + CᵀF, with the right-hand sides of the pairs carried along; and what this adds to the diagonal at most.
    GNEWT_INLINE
    bool substitute(bool cross, int64_t p, int64_t q, int64_t n, int64_t columns, T* pp, T* weight, const T* v, T* f,
                    const T* spread, T* w, T* c, int64_t beside, int64_t ld, const T* h, T* r, int64_t ldr, T* rho,
                    T* size) {
        const int64_t ldp = padded<T>(p);
        bool definite = true, all = true;
        for (int64_t i = 0; i < p; ++i) {
            const T d = pp[i * ldp + i];
            definite &= d > 0;
            all &= kept(d, weight[i]);
        }
        mirror(p, pp, ldp);
        if (!all && !renew_weights(p, pp, ldp, weight)) return !(course_.lost = true);
        for (int64_t i = 0; all && i < p; ++i) weight[i] = abs(pp[i * ldp + i]);
        if (!definite && bare_row(p, pp, ldp)) return false;
        multiply_pairs(p, pp, ldp, n, f, ld, w);
        for (int64_t i = 0; cross && i < p; ++i) axpy(w + i * ld + beside, T(1), c + i * ld + beside, n - beside);
        if (n >= kWide && indefinite(p, q, f, w, c, cross, ld, h)) return false;
        int64_t j = 0;
        if (definite) {
            for (; j + 3 * kWidth<T> < n; j += 4 * kWidth<T>)
                add_sizes<4, false>(p, weight, spread + j, w + j, ld, size + j);
            for (; j < n; j += kWidth<T>) add_sizes<1, false>(p, weight, spread + j, w + j, ld, size + j);
        } else {
            for (; j + 3 * kWidth<T> < n; j += 4 * kWidth<T>)
                add_sizes<4, true>(p, weight, spread + j, w + j, ld, size + j);
            for (; j < n; j += kWidth<T>) add_sizes<1, true>(p, weight, spread + j, w + j, ld, size + j);
        }
        multiply<T, kAdd, false>(p, 0, columns, kWhole, n, v, columns, f, ld, rho, ld, rho, ld);
        if (h != r) {
            multiply<T, kAdd, false>(p, 0, q, kUpper, n, f, ld, w, ld, h, ld, r, ld);
            multiply<T, kSet, false>(p, q, n, kUpper, n, f, ld, w, ld, r, ld, r, ld);
        } else {
            multiply_upper<T, kAdd>(p, 0, n, n, f, ld, w, ld, r, ldr, packed_.data());
        }
        if (!cross) return true;
        for (int64_t i = 0; i < p; ++i)
            for (int64_t k = beside; k < n; ++k) size[k] += abs(spread[i * ld + k] * c[i * ld + k]);
        multiply_upper<T, kAdd>(p, beside, n, n, c, ld, f, ld, r, ldr, packed_.data());
        return true;
    }

    // size[j] += Σ_i weight[i] F[i, j]²: for a definite PP this bounds all that cancels in Fᵀ PP F; else the terms of FᵀW as well.
    template <int VECTORS, bool BOTH>
    static GNEWT_INLINE
    void add_sizes(int64_t p, const T* weight, const T* f, const T* w, int64_t ld, T* size) {
        Vec<T> sums[VECTORS];
        for (int v = 0; v < VECTORS; ++v) sums[v] = load(size + v * kWidth<T>);
        for (int64_t i = 0; i < p; ++i, f += ld, w += ld) {
            const T d = weight[i];
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; ++v) {
                const Vec<T> x = load(f + v * kWidth<T>);
                sums[v] += d * x * x;
                if (BOTH) sums[v] += vabs<T>(x * load(w + v * kWidth<T>));
            }
        }
        for (int v = 0; v < VECTORS; ++v) store(size + v * kWidth<T>, sums[v]);
    }

    // The lower triangle from the upper.
    static GNEWT_INLINE
    void mirror(int64_t n, T* a, int64_t ld) {
        for (int64_t i = 0; i + 4 <= n; i += 4)
            for (int64_t j = 0; j <= i; j += 4) {
                const T* from = a + j * ld + i;
                T* to = a + i * ld + j;
                Quad<T> x = load4(from), y = load4(from + ld), z = load4(from + 2 * ld), w = load4(from + 3 * ld);
                if (i == j) {
                    const Quad<T> s = x, t = y, u = z;
                    Quad<T> last = w;
                    transpose<T>(x, y, z, w);
                    store4(to, s);
                    store4(to + ld, GNEWT_SHUFFLE(y, t, 0, 5, 6, 7));
                    store4(to + 2 * ld, GNEWT_SHUFFLE(z, u, 0, 1, 6, 7));
                    store4(to + 3 * ld, GNEWT_SHUFFLE(w, last, 0, 1, 2, 7));
                    continue;
                }
                transpose<T>(x, y, z, w);
                store4(to, x);
                store4(to + ld, y);
                store4(to + 2 * ld, z);
                store4(to + 3 * ld, w);
            }
        for (int64_t k = n / 4 * 4; k < n; ++k)
            for (int64_t j = 0; j < k; ++j) a[k * ld + j] = a[j * ld + k];
    }

    Course<T>& course_;
    const Call<T>& call_;
    const PlanView& plan_;
    const int64_t columns_;
    int64_t& num_waiting_;
    Ahead<T> ahead_;
    int32_t asked_shape_ = -1, no_stage_ = -1;
    bool asked_back_ = false;
    int64_t cleared_ = 0;
    Buffer<T>&stack_, &z_, work_, saved_, packed_;
    Buffer<Message>& waiting_;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
