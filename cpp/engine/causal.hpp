// The fast elimination along a causal plan: primal-only fronts. The pairs of a front are substituted, x_p = F [u; ξ],
// without a division; its inputs are eliminated by LDLᵀ with a test on every pivot. Duals are never computed.
#pragma once
#include "blocks.hpp"
#include "ldl.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// x_p = F [u; ξ], with F read from the sources: `x` is [p, columns], `z` [q + b, columns].
template <class T>
inline void substitute_pairs(const Front& front, const T* sources, T* x, const T* z, int64_t columns) {
    const Shape& shape = front.shape;
    std::memset(x, 0, size_t(shape.p * columns) * sizeof(T));
    for (int32_t k = 0; k < shape.num_blocks; ++k) {
        const Block& block = shape.blocks[k];
        if (block.kind != kF) break;  // blocks are sorted by kind
        const T* src = sources + front.sources[k];
        if (columns == 1 && !block.transposed) {
            rows_of(block, [&](int32_t i, const auto len, int64_t at) {
                x[block.row + i] += dot(src + at, z + block.col, len);
            });
        } else {
            for_each(block, src, [&](int64_t i, int64_t j, T v) { axpy(x + i * columns, v, z + j * columns, columns); });
        }
    }
    if (!(shape.flags & kNested)) return;
    // The last pair reads no other; each one before it reads later ones only.
    for (int32_t row = shape.p - 1; row >= 0; --row)
        for (int32_t k = 0; k < shape.num_blocks; ++k)
            if (shape.blocks[k].kind == kG)
                for_each(shape.blocks[k], sources + front.sources[k], [&](int64_t i, int64_t j, T v) {
                    if (i == row) axpy(x + i * columns, v, x + j * columns, columns);
                });
}

// Solutions from the roots down: z[slots, columns] holds the right-hand sides as rows of L at the inputs.
template <class T>
inline void back_substitute(const PlanView& plan, const T* sources, const T* factor_end, T* z, int64_t columns, T* local) {
    for (int64_t f = int64_t(plan.num_fronts()) - 1; f >= 0; --f) {
        const Front front = plan.front(f);
        const int64_t p = front.shape.p, q = front.shape.q, n = q + front.shape.b;
        const int32_t* slots = front.slots;
        T *x = local, *rest = local + p * columns;
        for (int64_t i = 0; i < n; ++i)
            for (int64_t c = 0; c < columns; ++c) rest[i * columns + c] = z[slots[p + i] * columns + c];
        factor_end -= q * n;
        for (int64_t k = q - 1; k >= 0; --k) {
            const T* l = factor_end + k * n;
            T* u = rest + k * columns;
            if (columns == 1) {
                u[0] -= dot(l + k + 1, rest + k + 1, n - k - 1);
                z[slots[p + k]] = u[0];
            } else {
                for (int64_t j = k + 1; j < n; ++j) axpy(u, -l[j], rest + j * columns, columns);
                for (int64_t c = 0; c < columns; ++c) z[slots[p + k] * columns + c] = u[c];
            }
        }
        if (!p) continue;
        substitute_pairs(front, sources, x, rest, columns);
        for (int64_t i = 0; i < p; ++i)
            for (int64_t c = 0; c < columns; ++c) z[slots[i] * columns + c] = x[i * columns + c];
    }
}

// Another right-hand side: up with Fᵀ and L, then down as above. z[slots, columns] starts with b at the inputs.
template <class T>
inline void solve_causal(const PlanView& plan, const T* sources, const T* factor, T* z, int64_t columns, T* local) {
    for (int64_t f = 0; f < plan.num_fronts(); ++f) {
        const Front front = plan.front(f);
        const Shape& shape = front.shape;
        const int64_t p = shape.p, q = shape.q, n = q + shape.b;
        const int32_t* slots = front.slots;
        T *x = local, *rest = local + p * columns;
        for (int64_t i = 0; i < p + n; ++i)
            for (int64_t c = 0; c < columns; ++c) local[i * columns + c] = z[slots[i] * columns + c];
        if (shape.flags & kNested)
            for (int32_t row = 0; row < p; ++row)
                for (int32_t k = 0; k < shape.num_blocks; ++k)
                    if (shape.blocks[k].kind == kG)
                        for_each(shape.blocks[k], sources + front.sources[k], [&](int64_t i, int64_t j, T v) {
                            if (i == row) axpy(x + j * columns, v, x + i * columns, columns);
                        });
        for (int32_t k = 0; k < shape.num_blocks; ++k) {
            const Block& block = shape.blocks[k];
            if (block.kind != kF) break;  // blocks are sorted by kind
            const T* src = sources + front.sources[k];
            if (columns == 1 && !block.transposed)
                rows_of(block, [&](int32_t i, const auto len, int64_t at) {
                    axpy(rest + block.col, x[block.row + i], src + at, len);
                });
            else
                for_each(block, src, [&](int64_t i, int64_t j, T v) {
                    axpy(rest + j * columns, v, x + i * columns, columns);
                });
        }
        for (int64_t k = 0; k < q; ++k, factor += n) {
            T* u = rest + k * columns;
            if (columns == 1)
                axpy(u + 1, -u[0], factor + k + 1, n - k - 1);
            else
                for (int64_t j = k + 1; j < n; ++j) axpy(rest + j * columns, -factor[j], u, columns);
            for (int64_t c = 0; c < columns; ++c) u[c] /= factor[k];
        }
        for (int64_t i = 0; i < n; ++i)
            for (int64_t c = 0; c < columns; ++c) z[slots[p + i] * columns + c] = rest[i * columns + c];
    }
    back_substitute(plan, sources, factor, z, columns, local);
}

template <class T>
class Causal {
public:
    explicit Causal(const Call<T>& call) : call_(call), plan_{call.plan}, columns_(call.columns) {}

    // Return false where a pivot failed its test, memory ran out, or a number was not finite: nothing is known then.
    bool run() {
        const int64_t p = plan_.data[kMaxPairs], n = plan_.data[kMaxRest], ld = padded<T>(n + columns_);
        const int64_t ldp = padded<T>(p + columns_), front = p * ldp + (4 * p + n + kPanel) * ld + 2 * n + 64;
        if (!work_.reserve(front + (p + n) * columns_) || !offsets_.reserve(plan_.num_fronts() + 1)) return false;
        const int64_t slots = plan_.num_slots() * columns_, given = call_.num_inputs * columns_;
        if (!z_.reserve(slots + (p + n) * columns_) || !stack_.reserve(1)) return false;
        T* factor = call_.factor;
        int64_t room = call_.factor_len;
        for (int32_t f = 0; f < plan_.num_fronts(); ++f) {
            const Front at = plan_.front(f);
            const int64_t size = int64_t(at.shape.q) * (at.shape.q + at.shape.b);
            if ((room -= size) < 0 || !eliminate_any(f, at, factor)) return false;
            factor += size;
        }
        if (!finite(tally_.logdet())) return false;
        back_substitute(plan_, call_.sources, factor, z_.data(), columns_, z_.data() + slots);
        std::memcpy(call_.solution, z_.data(), size_t(given) * sizeof(T));
        int32_t* info = call_.info;
        info[kStatus] = kOk;
        info[kPositive] = int32_t(tally_.positive);
        info[kNegative] = int32_t(tally_.negative);
        info[kZero] = info[kDelayed] = 0;
        info[kKept] = 1;
        info[kMode] = kCausal;
        info[kFirstNull] = -1;
        call_.real[kLogDet] = T(tally_.logdet());
        call_.real[kSmallestPivot] = T(tally_.smallest);
        return true;
    }

private:
    // Schur complements wait on a stack, as [b, ld] with the right-hand sides in their last columns, then bounds.
    struct Waiting {
        int64_t at, end;
        int32_t front;
    };

    // Small stages of a chain have their sizes compiled in: there, loops cost more than arithmetic.
    bool eliminate_any(int32_t number, const Front& front, T* factor) {
        const Shape& s = front.shape;
        if (s.p == s.b && columns_ == 1) {
            if (s.p == 4 && s.q == 1) return eliminate<4, 1, 4, 1>(number, front, factor);
            if (s.p == 4 && s.q == 2) return eliminate<4, 2, 4, 1>(number, front, factor);
            if (s.p == 6 && s.q == 3) return eliminate<6, 3, 6, 1>(number, front, factor);
            if (s.p == 12 && s.q == 4) return eliminate<12, 4, 12, 1>(number, front, factor);
            if (s.p == 12 && s.q == 6) return eliminate<12, 6, 12, 1>(number, front, factor);
        }
        return eliminate<0, 0, 0, 0>(number, front, factor);
    }

    // Zero stands for a size that is known at run time only.
    template <int P, int Q, int B, int COLUMNS>
    bool eliminate(int32_t number, const Front& front, T* factor) {
        constexpr bool fixed = P > 0;
        const Shape& shape = front.shape;
        const int64_t p = fixed ? P : shape.p, q = fixed ? Q : shape.q, b = fixed ? B : shape.b, n = q + b;
        const int64_t columns = fixed ? COLUMNS : columns_;
        const int64_t ld = padded<T>(n + columns), ldp = padded<T>(p + columns);
        T* pp = work_.data();
        T* f = pp + p * ldp;
        T* w = f + p * ld;  // [2p, ld]: W, and F again where there are cross terms
        T* c = w + 2 * p * ld;
        T* r = c + p * ld;
        T* panel = r + n * ld;
        T* bound = panel + kPanel * ld;
        const bool tracked_below = shape.flags & kInputBelow;
        const int64_t tracked = tracked_below ? n : q;
        const Waiting* children = offsets_.data() + waiting_ - front.num_children;

        if (shape.flags & kChildIsPairs)
            pp = stack_.data() + children[0].at;  // its leading dimension is that of [p | right-hand sides] too
        else if (p)
            std::memset(pp, 0, size_t(p * ldp) * sizeof(T));
        if (shape.flags & kCross) std::memset(c, 0, size_t(p * ld) * sizeof(T));
        if (!(shape.flags & kChildIsPairs) && p && front.num_children) extend_all(children, front, pp, ldp, c, ld, nullptr, nullptr);
        int32_t first_rest = 0;
        if (p) {
            first_rest = load_pairs(front, pp, ldp, f, c, ld);
            substitute<fixed>(shape.flags, p, n, columns, pp, ldp, f, w, c, r, ld, bound, tracked);
        } else {
            std::memset(r, 0, size_t(n * ld) * sizeof(T));
            std::memset(bound, 0, size_t(n) * sizeof(T));
        }
        for (int32_t k = first_rest; k < shape.num_blocks; ++k)
            place<T, true>(shape.blocks[k], call_.sources + front.sources[k], r, ld);
        const int32_t* diagonal = front.sources + shape.num_blocks;
        for (int32_t k = 0; k < shape.num_diag; ++k) bound[shape.diag[k]] += abs(call_.sources[diagonal[k]]);
        if (!(shape.flags & kChildIsPairs) && front.num_children) extend_all(children, front, nullptr, 0, nullptr, ld, r, bound);
        for (int64_t i = 0; i < q; ++i) {
            r[i * ld + i] += call_.shift;
            bound[i] += abs(call_.shift);
            const T* given = call_.rhs + front.slots[p + i] * columns;
            for (int64_t j = 0; j < columns; ++j) r[i * ld + n + j] += given[j];
        }
        T* y = z_.data() + plan_.num_slots() * columns;
        // The Schur complement takes the place of the children's, which are used up.
        waiting_ -= front.num_children;
        const int64_t at = waiting_ ? offsets_[waiting_ - 1].end : 0, ldb = padded<T>(b + columns);
        const int64_t end = at + b * ldb + (tracked_below ? padded<T>(b) : 0);
        if (!stack_.reserve(end)) return false;
        T* schur = stack_.data() + at;
        if (!eliminate_rows<T, fixed>(r, ld, q, n, columns, bound, tracked, panel, factor, y, schur, ldb, tally_)) return false;
        for (int64_t i = 0; i < q; ++i)
            for (int64_t j = 0; j < columns; ++j) z_[front.slots[p + i] * columns + j] = y[i * columns + j];
        if (!b) return true;
        if (tracked_below) std::memcpy(schur + b * ldb, bound + q, size_t(b) * sizeof(T));
        offsets_[waiting_++] = {at, end, number};
        return true;
    }


    // Load F, PP and C; return the first block that goes elsewhere.
    int32_t load_pairs(const Front& front, T* pp, int64_t ldp, T* f, T* c, int64_t ld) {
        const Shape& shape = front.shape;
        const int64_t p = shape.p;
        const bool dense = shape.flags & kDenseJacobian;
        if (!dense) std::memset(f, 0, size_t(p * ld) * sizeof(T));
        int32_t k = 0;
        for (; k < shape.num_blocks && shape.blocks[k].kind != kR; ++k) {
            const Block& block = shape.blocks[k];
            const T* src = call_.sources + front.sources[k];
            if (block.kind == kF && dense)
                place<T, false>(block, src, f, ld);
            else if (block.kind == kF)
                place<T, true>(block, src, f, ld);
            else if (block.kind == kPP)
                place<T, true>(block, src, pp, ldp);
            else if (block.kind == kC)
                place<T, true>(block, src, c, ld);
        }
        const int32_t first_rest = k;
        if (!(shape.flags & kNested)) return first_rest;
        // F := (I - G)⁻¹F, from the last pair, which reads no other, to the first.
        for (int64_t row = p - 1; row >= 0; --row)
            for (k = 0; k < first_rest; ++k)
                if (shape.blocks[k].kind == kG)
                    for_each(shape.blocks[k], call_.sources + front.sources[k], [&](int64_t i, int64_t j, T v) {
                        if (i == row) axpy(f + i * ld, v, f + j * ld, int64_t(shape.q + shape.b));
                    });
        return first_rest;
    }

    // R = Fᵀ(PP·F + C) + CᵀF, with the right-hand sides of the pairs carried along.
    template <bool FIXED>
    GNEWT_INLINE void substitute(int32_t flags, int64_t p, int64_t n, int64_t columns, T* pp, int64_t ldp, T* f, T* w, T* c, T* r,
                                 int64_t ld, T* bound, int64_t tracked) {
        const int64_t end = padded<T>(n + columns);
        for (int64_t i = 1; i < p; ++i)
            for (int64_t j = 0; j < i; ++j) pp[i * ldp + j] = pp[j * ldp + i];
        multiply<T, kSet, FIXED>(p, 0, p, false, n, pp, ldp, f, ld, w, ld, w, ld);
        const bool cross = flags & kCross;
        if (cross)
            for (int64_t i = 0; i < p; ++i) axpy(w + i * ld, T(1), c + i * ld, n);
        for (int64_t i = 0; i < p; ++i)
            for (int64_t j = 0; j < columns; ++j) w[i * ld + n + j] = pp[i * ldp + p + j];
        multiply<T, kSet, FIXED>(p, 0, n, true, end, f, ld, w, ld, r, ld, r, ld);
        std::memset(bound, 0, size_t(n) * sizeof(T));
        for (int64_t i = 0; i < p; ++i)
            for (int64_t j = 0; j < tracked; ++j) bound[j] += abs(f[i * ld + j] * w[i * ld + j]);
        if (!cross) return;
        for (int64_t i = 0; i < p; ++i) {
            for (int64_t j = 0; j < columns; ++j) f[i * ld + n + j] = 0;
            for (int64_t j = 0; j < tracked; ++j) bound[j] += abs(f[i * ld + j] * c[i * ld + j]);
        }
        multiply<T, kAdd, FIXED>(p, 0, n, true, end, c, ld, f, ld, r, ld, r, ld);
    }

    // Add the messages of all children to the parts of the front that are given (PP and C, or R).
    void extend_all(const Waiting* children, const Front& front, T* pp, int64_t ldp, T* c, int64_t ld, T* r, T* bound) {
        const int64_t p = front.shape.p, n = front.shape.q + front.shape.b;
        for (int32_t k = 0; k < front.num_children; ++k) {
            const Shape child = plan_.front(children[k].front).shape;
            const int64_t m = child.b, ldb = padded<T>(m + columns_);
            const T* schur = stack_.data() + children[k].at;
            for (int32_t x = 0; x < child.num_runs; ++x) {
                const int32_t* rows = child.runs + 3 * x;
                const bool pair_rows = rows[1] < p;
                for (int32_t y = x; y < child.num_runs; ++y)
                    extend(schur, ldb, rows, child.runs + 3 * y, p, pp, ldp, c, ld, r);
                const T* given = schur + rows[0] * ldb + m;
                for (int32_t i = 0; i < rows[2]; ++i, given += ldb)
                    for (int64_t j = 0; j < columns_; ++j) {
                        if (pair_rows && pp) pp[(rows[1] + i) * ldp + p + j] += given[j];
                        if (!pair_rows && r) r[(rows[1] - p + i) * ld + n + j] += given[j];
                    }
                if (bound && !pair_rows && (child.flags & kInputBelow))
                    for (int32_t i = 0; i < rows[2]; ++i) bound[rows[1] - p + i] += schur[m * ldb + rows[0] + i];
            }
        }
    }

    // Add the part of a Schur complement where two runs meet; the later run may stand first in the parent.
    static void extend(const T* schur, int64_t ldb, const int32_t* rows, const int32_t* cols, int64_t p, T* pp,
                       int64_t ldp, T* c, int64_t ld, T* r) {
        const bool flipped = cols[1] < rows[1];
        const int64_t row = flipped ? cols[1] : rows[1], col = flipped ? rows[1] : cols[1];
        T* to;
        int64_t stride;
        if (row >= p) {
            to = r ? r + (row - p) * ld + col - p : nullptr;
            stride = ld;
        } else if (col >= p) {
            to = c ? c + row * ld + col - p : nullptr;
            stride = ld;
        } else {
            to = pp ? pp + row * ldp + col : nullptr;
            stride = ldp;
        }
        if (!to) return;
        const bool same = rows == cols;
        for (int32_t i = 0; i < rows[2]; ++i) {
            const T* from = schur + (rows[0] + i) * ldb + cols[0];
            if (flipped)
                for (int32_t j = 0; j < cols[2]; ++j) to[j * stride + i] += from[j];
            else
                for (int32_t j = same ? i : 0; j < cols[2]; ++j) to[i * stride + j] += from[j];
        }
    }

    const Call<T>& call_;
    PlanView plan_;
    int64_t columns_, waiting_ = 0;
    Tally tally_;
    Buffer<T> work_, stack_, z_;
    Buffer<Waiting> offsets_;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
