// Solutions for all unknowns, with right-hand sides on all rows of K:
//
//     [ K_uu  K_ux   Jᵀ   ] [δu]   [r_u]
//     [ K_xu  K_xx   Jᵀ-I ] [δx] = [r_x]      rows of multipliers: J δ - δx = r_λ
//     [ J     J - I   0   ] [δλ]   [r_λ]
//
// A factor of a causal plan has no rows of pairs. Three walks over the tree serve instead, and none of them runs an open
// loop: 1. down with the offsets -r_λ, where inputs answer by their rows of L; 2. up with what is left of r_u and r_x,
// and down again; 3. up with what is then left: what arrives at a pair is -δλ. Inputs take part in each walk, so that
// errors are damped by the policy of the factor, as in a closed loop, where the plain sweeps may grow without bound.
// The numerics are compiled once, for every machine: a walk reads each number once.
#define GNEWT_ISA isa_baseline
#include "solve.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {
namespace {

template <class T>
class Whole {
public:
    explicit Whole(const SolveCall<T>& call) : call_(call), plan_{call.plan}, columns_(call.columns) {}

    bool run() {
        if (!find_factor()) return fail();
        const int64_t unknowns = plan_.num_unknowns();
        int64_t widest = plan_.data[kMaxRest];
        RecordWalk<T> record(records_, false);
        for (record.next(); record.front >= 0; record.next()) widest = max(widest, record.n);
        widest += plan_.data[kMaxPairs];
        if (!local_.reserve(2 * widest * columns_)) return fail();
        if (plan_.causal()) return run_causal();
        std::memcpy(call_.solution, call_.rhs, size_t(unknowns * columns_) * sizeof(T));
        solve_again(plan_, call_.sources, factor_, records_, call_.solution, columns_, local_.data());
        return true;
    }

private:
    int64_t num_slots() const { return plan_.num_slots(); }
    int64_t pairs() const { return plan_.num_slots() - plan_.num_inputs(); }

    bool fail() {
        for (int64_t i = 0; i < plan_.num_unknowns() * columns_; ++i) call_.solution[i] = T(NAN);
        return false;
    }

    bool run_causal() {
        const int64_t size = num_slots() * columns_;
        if (!z_.reserve(size) || !left_.reserve(size)) return fail();
        T *delta = call_.solution, *lam = call_.solution + size;
        const T* offset = call_.rhs + size;
        std::memset(delta, 0, size_t(size) * sizeof(T));
        down(delta, offset);
        for (int round = 0; round < 2; ++round) {
            residual(delta, left_.data());
            std::memcpy(z_.data(), left_.data(), size_t(size) * sizeof(T));
            up(z_.data(), lam);
            if (round) break;
            zero_null(records_, z_.data(), columns_);
            down(z_.data(), nullptr);
            for (int64_t i = 0; i < size; ++i) delta[i] += z_[i];
        }
        return true;
    }

    // The factor of the call; where none was kept, because it had outgrown its buffers, it is made again in larger ones.
    bool find_factor() {
        const int64_t rows = plan_.rows_size();
        if (call_.info[kKept]) {
            read(call_.factor, call_.index, call_.index_len);
            return true;
        }
        int64_t numbers = 2 * rows + 4096, integers = 4 * plan_.num_unknowns() + 4096;
        for (int attempt = 0; attempt < kAttempts; ++attempt, numbers *= 4, integers *= 4) {
            if (!own_factor_.reserve(numbers) || !own_index_.reserve(integers) ||
                !null_.reserve(plan_.num_unknowns()) || !z_.reserve(plan_.num_inputs() + 1))
                return false;
            std::memset(z_.data(), 0, size_t(plan_.num_inputs()) * sizeof(T));
            int32_t info[kInfoSize];
            T real[kRealSize];
            const Call<T> again{call_.plan,
                                call_.plan_len,
                                call_.sources,
                                call_.sources_len,
                                call_.real[kShift],
                                z_.data(),
                                call_.num_inputs,
                                1,
                                z_.data(),
                                own_factor_.data(),
                                numbers,
                                own_index_.data(),
                                integers,
                                info,
                                real,
                                null_.data()};
            factor(again);
            if (info[kStatus] > kSingular) return false;
            if (!info[kKept]) continue;
            read(own_factor_.data(), own_index_.data(), integers);
            return true;
        }
        return false;
    }
    static void factor(const Call<double>& call) { chosen_engine().factor_f64(call); }
    static void factor(const Call<float>& call) { chosen_engine().factor_f32(call); }

    // The last four integers of the index (CarefulFronts::kEndIntegers) are the ends of the records.
    void read(const T* numbers, const int32_t* index, int64_t index_len) {
        int64_t ends[2];
        std::memcpy(ends, index + index_len - 4, sizeof ends);
        factor_ = numbers;
        records_ = {index, numbers + plan_.rows_size(), ends[1], ends[0]};
    }

    // Right-hand sides z [slots, columns] up the tree; `passed` [pairs, columns] gets minus what arrives at each pair.
    void up(T* z, T* passed) {
        RecordWalk<T> record(records_, false);
        record.next();
        const T* l = factor_;
        for (int64_t f = 0; f < plan_.num_fronts(); ++f) {
            const Front front = plan_.front(f);
            const int64_t p = front.shape.p, q = front.shape.q, n = q + front.shape.b;
            T *x = local_.data(), *rest = x + p * columns_;
            gather(x, z, front.slots, p + n, columns_);
            if (p) {
                lift_pairs(front, call_.sources, x, rest, columns_);
                for (int64_t i = 0; i < p; ++i)
                    for (int64_t c = 0; c < columns_; ++c)
                        passed[(front.slots[i] - plan_.num_inputs()) * columns_ + c] = -x[i * columns_ + c];
                scatter(rest, z, front.slots + p, n, columns_);
            }
            if (record.front == f) {
                lift_record(record, record.rows(l), z, columns_, rest);
                record.next();
            } else {
                for (int64_t k = 0; k < q; ++k) {
                    T* u = rest + k * columns_;
                    subtract_multiples(u + columns_, l + k * n + k + 1, u, n - k - 1, columns_);
                    for (int64_t c = 0; c < columns_; ++c) u[c] /= l[k * n + k];
                }
                scatter(rest, z, front.slots + p, n, columns_);
            }
            l += q * n;
        }
    }

    // Solutions z [slots, columns] down the tree, pairs of leaves too. `offset` [pairs, columns], or null: what is
    // subtracted from each pair.
    void down(T* z, const T* offset) {
        RecordWalk<T> record(records_, true);
        record.previous();
        const T* l = factor_ + plan_.rows_size();
        for (int64_t f = int64_t(plan_.num_fronts()) - 1; f >= 0; --f) {
            const Front front = plan_.front(f);
            const int64_t p = front.shape.p, q = front.shape.q, n = q + front.shape.b;
            T *x = local_.data(), *rest = x + p * columns_;
            l -= q * n;
            if (record.front == f) {
                const T* rows = record.rows(l);
                gather(rest, z, record.ids, record.n, columns_);
                solve_rows(rows, record.taken, record.n, rest);
                scatter(rest, z, record.ids, record.taken, columns_);
                record.previous();
            } else {
                gather(rest, z, front.slots + p, n, columns_);
                solve_rows(l, q, n, rest);
                scatter(rest, z, front.slots + p, q, columns_);
            }
            if (!p) continue;
            gather(rest, z, front.slots + p, n, columns_);
            for (int64_t i = 0; i < p; ++i)
                for (int64_t c = 0; c < columns_; ++c)
                    x[i * columns_ + c] = offset ? -offset[(front.slots[i] - plan_.num_inputs()) * columns_ + c] : T(0);
            substitute(front, x, rest);
            scatter(x, z, front.slots, p, columns_);
        }
    }

    void solve_rows(const T* l, int64_t taken, int64_t n, T* rest) {
        for (int64_t k = taken - 1; k >= 0; --k)
            subtract_rows(rest + k * columns_, l + k * n + k + 1, rest + (k + 1) * columns_, n - k - 1, columns_);
    }

    // x := (I - G)⁻¹ (x + F rest).
    void substitute(const Front& front, T* x, const T* rest) {
        for (int32_t k = 0; k < front.shape.num_blocks; ++k) {
            const Block& block = front.shape.blocks[k];
            if (block.kind != kF) break;  // blocks are sorted by kind
            for_each(block, call_.sources + front.sources[k],
                     [&](int64_t i, int64_t j, T v) { axpy(x + i * columns_, v, rest + j * columns_, columns_); });
        }
        if (!(front.shape.flags & kNested)) return;
        for (int32_t row = front.shape.p - 1; row >= 0; --row)
            for_reads(front, call_.sources, row,
                      [&](int64_t j, T v) { axpy(x + row * columns_, v, x + j * columns_, columns_); });
    }

    // left := rhs - L delta on the slots, with L the second derivatives in K, and the shift on inputs.
    void residual(const T* delta, T* left) {
        const int64_t c = columns_;
        std::memcpy(left, call_.rhs, size_t(num_slots() * c) * sizeof(T));
        const T shift = call_.real[kShift];
        if (shift != 0)
            for (int64_t i = 0; i < plan_.num_inputs() * c; ++i) left[i] -= shift * delta[i];
        for (int64_t f = 0; f < plan_.num_fronts(); ++f) {
            const Front front = plan_.front(f);
            const int64_t p = front.shape.p, all = p + front.shape.q + front.shape.b;
            T *here = local_.data(), *sum = here + all * c;
            gather(here, delta, front.slots, all, c);
            std::memset(sum, 0, size_t(all * c) * sizeof(T));
            for (int32_t k = 0; k < front.shape.num_blocks; ++k) {
                const Block& block = front.shape.blocks[k];
                if (block.kind == kF || block.kind == kG) continue;
                const int64_t row = block.kind == kR ? p : 0, col = block.kind == kPP ? 0 : p;
                for_each(block, call_.sources + front.sources[k], [&](int64_t i, int64_t j, T v) {
                    const int64_t a = row + i, b = col + j;
                    axpy(sum + a * c, v, here + b * c, c);
                    if (a != b) axpy(sum + b * c, v, here + a * c, c);
                });
            }
            for (int64_t i = 0; i < all; ++i)
                for (int64_t k = 0; k < c; ++k) left[front.slots[i] * c + k] -= sum[i * c + k];
        }
    }

    static constexpr int kAttempts = 8;  // each with four times the room of the one before

    const SolveCall<T>& call_;
    const PlanView plan_;
    const int64_t columns_;
    const T* factor_ = nullptr;
    Records<T> records_{};
    Buffer<T> z_, left_, local_, own_factor_;
    Buffer<int32_t> own_index_;
    Buffer<int8_t> null_;
};

template <class T>
void run(const SolveCall<T>& call) {
    const bool good = fits(call.plan, call.plan_len, call.sources_len, call.num_inputs);
    if (good && call.info[kStatus] <= kSingular) {
        Whole<T>(call).run();
        return;
    }
    const int64_t unknowns = PlanView{call.plan}.num_unknowns();
    for (int64_t i = 0; i < unknowns * call.columns; ++i) call.solution[i] = T(NAN);
}

}  // namespace
}  // namespace GNEWT_ISA

void solve_whole(const SolveCall<double>& call) { GNEWT_ISA::run(call); }
void solve_whole(const SolveCall<float>& call) { GNEWT_ISA::run(call); }

}  // namespace gnewt::engine
