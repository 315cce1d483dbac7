// The work space of an elimination along a line (line_ascent.hpp), and operations on its rows, which are VECTORS
// vectors long.
#pragma once
#include "gemm.hpp"
#include "line.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T, int VECTORS>
class LineSpace {
public:
    static constexpr int64_t kRow = VECTORS * kWidth<T>;

    // Numbers of work space.
    static int64_t work_size(const Line<T>& line) {
        const int64_t parts = 2 * line.at.end + line.p * (5 * kRow + line.ldp), rows = 2 * (line.n + 4) * kRow;
        return Line<T>::kMostPairs + parts + rows + (4 * line.q + 17 + Line<T>::kMostRuns) * kRow +
               (3 + Line<T>::kMostRuns) * line.ldp;
    }

protected:
    GNEWT_INLINE explicit LineSpace(Line<T>& line)
        : line_(line), p_(line.p), q_(line.q), b_(line.b), n_(line.n), ldp_(line.ldp), cross_(line.beside < line.n) {}

    struct Row {
        Vec<T> v[VECTORS];
    };
    static GNEWT_INLINE Row row(const T* at) {
        Row out;
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) out.v[v] = load(at + v * kWidth<T>);
        return out;
    }
    static GNEWT_INLINE void put(T* at, const Row& x) {
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) store(at + v * kWidth<T>, x.v[v]);
    }
    // Call visit(v) for every vector of a row.
    template <class Visit>
    static GNEWT_INLINE void each(Visit visit) {
        for_constants<VECTORS>([&](const auto v) GNEWT_LAMBDA { visit(int(decltype(v)::value)); });
    }

    // Rows of a matrix with what stands above them: [Schur complement | sizes | right-hand sides], rows q.. of R.
    struct Rows {
        T* r;  // [n, kRow]
        T *size, *rho;
    };

    // Lay out the work space for H + shift·I.
    GNEWT_INLINE void lay_out(T* work, T shift) {
        T* at = work;
        const auto next = [&](int64_t count) GNEWT_LAMBDA {
            T* out = at;
            at += count;
            return out;
        };
        // What is moved is read from up to two rows, or as many numbers as there are pairs, before R on, and behind R.
        const int64_t rows = (n_ + 4) * kRow;
        next(Line<T>::kMostPairs);
        before_.r = next(rows) + 2 * kRow, after_.r = next(rows) + 2 * kRow;
        before_.size = next(kRow), before_.rho = next(kRow), after_.size = next(kRow), after_.rho = next(kRow);
        next(2 * kRow);
        w_ = next(p_ * kRow), c_ = next(p_ * kRow), unfolded_ = next(p_ * kRow), spread_ = next(p_ * kRow);
        closed_ = next(p_ * kRow);
        l_ = next(q_ * kRow), shift_ = next(q_ * kRow), x_ = next(q_ * kRow), y_ = next(q_ * kRow);
        d_ = next(2 * kRow), numbers_ = next(kRow);
        local_ = next(kRow), bound_ = next(kRow), unit_ = next(kRow), ones_ = next(kRow);
        rest_mask_ = next(Line<T>::kMostRuns * kRow), pair_mask_ = next(Line<T>::kMostRuns * ldp_);
        weight_ = next(ldp_), v_ = next(ldp_), pair_noise_ = next(ldp_);
        pp_ = next(p_ * ldp_);
        given_ = next(line_.at.end), next_ = next(line_.at.end);
        std::memset(work, 0, size_t(at - work) * sizeof(T));
        for (int64_t k = 0; k < kRow; ++k) numbers_[k] = T(k);
        for (int64_t k = 0; k < q_; ++k) shift_[k * kRow + k] = shift, ones_[k] = abs(shift);
        set_masks(line_.in_rest, line_.num_in_rest, rest_mask_, kRow);
        set_masks(line_.in_pairs, line_.num_in_pairs, pair_mask_, ldp_);
    }
    // All bits are set in the places of each run.
    static void set_masks(const LineRun* runs, int num, T* mask, int64_t width) {
        for (int k = 0; k < num; ++k)
            std::memset(mask + k * width + runs[k].place, 0xff, size_t(runs[k].length) * sizeof(T));
    }

    // What the message brings to a row of the rest: `from` is a row of the message, or its sizes or right-hand sides.
    GNEWT_INLINE void add_message(const T* from, Row& to) const {
        for (int k = 0; k < line_.num_in_rest; ++k) {
            const T *at = from + q_ + line_.in_rest[k].start - line_.in_rest[k].place, *mask = rest_mask_ + k * kRow;
            each([&](int v) GNEWT_LAMBDA {
                to.v[v] += (Vec<T>)((Lanes<T>)load(at + v * kWidth<T>) & (Lanes<T>)load(mask + v * kWidth<T>));
            });
        }
    }

    // to += x · from
    static GNEWT_INLINE void add_multiple(T* to, T x, const T* from) {
        each([&](int v) GNEWT_LAMBDA {
            store(to + v * kWidth<T>, load(to + v * kWidth<T>) + x * load(from + v * kWidth<T>));
        });
    }

    // Call run(row, number of rows as a constant) for the rows [from, to).
    template <class Run>
    static GNEWT_INLINE void over_rows(int64_t from, int64_t to, Run run) {
        constexpr int most = VECTORS == 1 ? 4 : VECTORS == 2 ? 4 : 2;
        int64_t i = from;
        for (; i + most <= to; i += most) run(i, Length<most>{});
        if constexpr (most > 2)
            if (i + 2 <= to) run(i, Length<2>{}), i += 2;
        if (i < to) run(i, Length<1>{});
    }

    Line<T>& line_;
    const int64_t p_, q_, b_, n_, ldp_;
    const bool cross_;
    Rows before_, after_;        // of the front before, whose last rows are the message; and of this front
    T *given_, *next_, *f_;      // sources of this front and of the next one; F
    T *w_, *c_;                  // W = PP·F + C; C: [p, kRow]
    T *unfolded_, *spread_;      // F where a pair reads another pair, and the magnitudes that went into it [p, kRow]
    T *pp_, *weight_, *v_;       // PP [p, ldp], weights and right-hand sides of pairs
    T* pair_noise_;              // the noise of PP's diagonal
    T *l_, *shift_, *y_;         // L, and the shift on a diagonal [q, kRow]; right-hand sides as rows of L [q]
    T *d_, *numbers_;            // pivots, with room for one more; the numbers 0, 1, ... [kRow]
    T *x_, *closed_;             // the inputs' answer to the rest [q, kRow], and F with this answer [p, kRow]
    T *local_, *bound_, *unit_;  // of R's diagonal: what arises in this front, the noise, units
    T *ones_, *rest_mask_, *pair_mask_;  // the shift's magnitude at the inputs; the places of runs
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
