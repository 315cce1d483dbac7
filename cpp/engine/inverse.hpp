// Selected inversion along the tree, and draws: from the roots down, with the rows of L that an elimination has kept.
// Called by inverse_ffi.cpp; compiled once per instruction set (inverse_*.cpp).
//
// The inverse of K is dense. Of all its entries those are computed whose row and column stand in one front: what a front
// needs of its separator lies in the front of its parent. A clique is such a block, [rest | pairs]: the rows of L that
// the front has taken, then the rows that it has passed on, then its pairs.
#pragma once
#include "inverse_call.hpp"
#include "solve.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// The rows of one front as they were eliminated: [taken | passed on], m = taken + passed. `off`: see records.hpp.
template <class T>
struct TakenRows {
    int64_t taken, m;
    const int32_t* ids;
    const T *l, *off;

    // The inverse of the pivot of row k on its diagonal; `beside`: its entry for row k + 1, where both are one pivot.
    T inverse_pivot(int64_t k, T& beside) const {
        beside = 0;
        const bool first = off && off[k] != 0, second = off && k > 0 && off[k - 1] != 0;
        if (!first && !second) return 1 / l[k * m + k];
        const int64_t i = first ? k : k - 1;
        const T b = off[i], x = l[i * m + i] / b, y = l[(i + 1) * m + i + 1] / b, t = 1 / ((x * y - 1) * b);
        if (first) beside = -t;
        return (first ? y : x) * t;
    }
};

// The rows of every front, from the last front to the first.
template <class T>
class TakenWalk {
public:
    TakenWalk(const PlanView& plan, const T* factor, const int32_t* index, int64_t index_len)
        : record_(records(plan, factor, index, index_len), true), factor_(factor + plan.rows_size()) {
        record_.previous();
    }
    TakenRows<T> previous(int64_t f, const Front& front) {
        const int64_t q = front.shape.q, n = q + front.shape.b;
        factor_ -= q * n;
        if (record_.front != f) return {q, n, front.slots + front.shape.p, factor_, nullptr};
        const TakenRows<T> found{record_.taken, record_.n, record_.ids, record_.rows(factor_), record_.off};
        record_.previous();
        return found;
    }
    static Records<T> records(const PlanView& plan, const T* factor, const int32_t* index, int64_t index_len) {
        int64_t ends[2];
        std::memcpy(ends, index + index_len - 4, sizeof ends);
        return {index, factor + plan.rows_size(), ends[1], ends[0]};
    }

private:
    RecordWalk<T> record_;
    const T* factor_;
};

template <class T>
class Inverse {
public:
    explicit Inverse(const InverseCall<T>& call) : call_(call), plan_{call.plan} {}

    // Write the diagonal; false where there is no memory.
    bool run() {
        if (!where_.reserve(plan_.num_unknowns() + 1)) return false;
        TakenWalk<T> walk(plan_, call_.factor, call_.index, call_.index_len);
        for (int64_t f = int64_t(plan_.num_fronts()) - 1; f >= 0; --f) {
            const Front front = plan_.front(f);
            if (!visit(front, walk.previous(f, front))) return false;
        }
        return true;
    }

private:
    // A clique that children will read: where its matrix and its names begin, its size, how many children are to come.
    struct Clique {
        int64_t at, names, size, ld;
        int32_t children;
    };
    static constexpr int64_t kBlock = 16;  // rows of L that are taken at once

    bool visit(const Front& front, const TakenRows<T>& rows) {
        const int64_t p = front.shape.p, m = rows.m, passed = m - rows.taken, size = m + p, ld = padded<T>(size);
        if (passed && !read_separator(rows.ids + rows.taken, passed)) return false;
        const int64_t at = count_ ? top().at + top().size * top().ld : 0, names = count_ ? top().names + top().size : 0;
        if (!numbers_.reserve(at + size * ld) || !names_.reserve(names + size)) return false;
        T* z = numbers_.data() + at;
        for (int64_t i = 0; i < passed; ++i)
            std::memcpy(z + (rows.taken + i) * ld + rows.taken, separator_.data() + i * passed,
                        size_t(passed) * sizeof(T));
        if (!invert(rows, {z, ld})) return false;
        if (call_.sensitivities) {
            add_sensitivities(front, rows, {z, ld});
        } else {
            for (int64_t k = 0; k < rows.taken; ++k) report(rows.ids[k], z[k * (ld + 1)]);
        }
        if (p && !add_pairs(front, rows, {z, ld})) return false;
        for (int64_t i = 0; i < p; ++i) report(front.slots[i], z[(m + i) * (ld + 1)]);
        if (!front.num_children) return true;
        std::memcpy(names_.data() + names, rows.ids, size_t(m) * sizeof(int32_t));
        std::memcpy(names_.data() + names + m, front.slots, size_t(p) * sizeof(int32_t));
        if (!cliques_.reserve(count_ + 1)) return false;
        cliques_[count_++] = {at, names, size, ld, front.num_children};
        named_ = false;
        return true;
    }

    void report(int32_t unknown, T variance) {
        if (unknown < call_.num_slots) call_.variances[unknown] = variance;
    }

    // ∂log|det K| / ∂K_ij is Z_ij, once for the diagonal and twice beside it. Fronts of free plans are all R.
    void add_sensitivities(const Front& front, const TakenRows<T>& rows, View<T> z) {
        name(rows);
        for (int32_t k = 0; k < front.shape.num_blocks; ++k) {
            T* to = call_.sensitivities + front.sources[k];
            for_places(front.shape.blocks[k], [&](int64_t i, int64_t j, int64_t at) {
                const int64_t row = rows.off ? where_[front.slots[i]] : i, col = rows.off ? where_[front.slots[j]] : j;
                to[at] += (row == col ? 1 : 2) * z.at[row * z.ld + col];
            });
        }
    }

    // Note the places of rows that do not stand in the order of the plan.
    void name(const TakenRows<T>& rows) {
        if (!rows.off) return;
        for (int64_t i = 0; i < rows.m; ++i) where_[rows.ids[i]] = int32_t(i);
        named_ = false;
    }

    Clique& top() { return cliques_[count_ - 1]; }

    // Copy what is known of the rows that a front has passed on; its parent is the clique on top. The parent goes with
    // its last child.
    bool read_separator(const int32_t* ids, int64_t n) {
        if (!separator_.reserve(n * n) || !places_.reserve(n)) return false;
        Clique& parent = top();
        if (!named_)
            for (int64_t i = 0; i < parent.size; ++i) where_[names_[parent.names + i]] = int32_t(i);
        named_ = true;
        for (int64_t i = 0; i < n; ++i) places_[i] = where_[ids[i]];
        const T* z = numbers_.data() + parent.at;
        T* to = separator_.data();
        const int32_t* place = places_.data();
        for (int64_t i = 0; i < n; ++i, to += n) {
            const T* row = z + place[i] * parent.ld;
            for (int64_t j = 0; j < n; ++j) to[j] = row[place[j]];
        }
        if (--parent.children == 0) {
            --count_;
            named_ = false;
        }
        return true;
    }

    // Z on [taken | passed], from Z on the rows that were passed on: L Z = D⁻¹ L⁻ᵀ, from the last row to the first.
    bool invert(const TakenRows<T>& rows, View<T> z) {
        const int64_t m = rows.m, ldg = padded<T>(m);
        if (!products_.reserve((kBlock + 1) * ldg) || !turned_.reserve((m + 1) * 2 * kBlock)) return false;
        for (int64_t end = rows.taken, begin; end > 0; end = begin) {
            begin = max(int64_t(0), end - kBlock);
            if (begin && rows.off && rows.off[begin - 1] != 0) --begin;
            multiply_block(rows, begin, end, z, ldg);
            for (int64_t k = end - 1; k >= begin; --k)
                invert_row(rows, k, end, products_.data() + (k - begin) * ldg, z);
        }
        return true;
    }

    // G = L Z for the rows of L in [begin, end), over the columns behind them.
    void multiply_block(const TakenRows<T>& rows, int64_t begin, int64_t end, View<T> z, int64_t ldg) {
        const int64_t m = rows.m, rest = m - end, count = end - begin;
        T* g = products_.data();
        if (!rest) return;
        if (count < 4 || rest < 2 * kWidth<T>) {
            std::memset(g, 0, size_t(count * ldg) * sizeof(T));
            for (int64_t k = begin; k < end; ++k, g += ldg)
                for (int64_t i = end; i < m; ++i) axpy(g, rows.l[k * m + i], z.at + i * z.ld + end, rest);
            return;
        }
        T* turned = turned_.data();
        for (int64_t i = 0; i < rest; ++i)
            for (int64_t k = 0; k < count; ++k) turned[i * 2 * kBlock + k] = rows.l[(begin + k) * m + end + i];
        const View<T> out{g, ldg};
        const ConstView<T> left{turned, 2 * kBlock}, right = ConstView<T>(z).from(end, end);
        multiply<T, kSet, false>(rest, Extent{0, count, kWhole, rest}, left, right, out);
    }

    // Row k of Z, and by symmetry its column. `g`: minus what the rows behind the block bring to it.
    static void invert_row(const TakenRows<T>& rows, int64_t k, int64_t end, const T* g, View<T> z) {
        const int64_t m = rows.m, rest = m - end;
        const T* l = rows.l + k * m;
        T *row = z.at + k * z.ld, beside;
        const T pivot = rows.inverse_pivot(k, beside);
        for (int64_t j = 0; j < rest; ++j) row[end + j] = -g[j];
        for (int64_t i = k + 1; i < end; ++i) axpy(row + end, -l[i], z.at + i * z.ld + end, rest);
        for (int64_t j = k + 1; j < end; ++j) {
            const T* other = z.at + j * z.ld;
            row[j] = (j == k + 1 ? beside : T(0)) - dot(l + k + 1, other + k + 1, m - k - 1);
        }
        row[k] = pivot - dot(l + k + 1, row + k + 1, m - k - 1);
        for (int64_t j = k + 1; j < m; ++j) z.at[j * z.ld + k] = row[j];
    }

    // Z on the pairs, x_p = F [u; ξ]: Z_pr = F Z_rr and Z_pp = Z_pr Fᵀ.
    bool add_pairs(const Front& front, const TakenRows<T>& rows, View<T> z) {
        const int64_t p = front.shape.p, n = front.shape.q + front.shape.b, m = rows.m, ldp = padded<T>(p),
                      ldm = padded<T>(max(m, p)), ldn = padded<T>(n);
        if (!pairs_.reserve(p * ldn + m * ldp + p * ldm)) return false;
        T *f = pairs_.data(), *turned = f + p * ldn, *x = turned + m * ldp;
        read_jacobian(front, {f, ldn});
        name(rows);
        if (rows.off) std::memset(turned, 0, size_t(m * ldp) * sizeof(T));
        for (int64_t j = 0; j < n; ++j) {
            T* to = turned + (rows.off ? where_[front.slots[p + j]] : j) * ldp;
            for (int64_t i = 0; i < p; ++i) to[i] = f[i * ldn + j];
        }
        multiply<T, kSet, false>(m, Extent{0, p, kWhole, m}, {turned, ldp}, z, {x, ldm});
        for (int64_t i = 0; i < p; ++i) {
            std::memcpy(z.at + (m + i) * z.ld, x + i * ldm, size_t(m) * sizeof(T));
            for (int64_t j = 0; j < m; ++j) z.at[j * z.ld + m + i] = x[i * ldm + j];
        }
        multiply<T, kSet, false>(m, Extent{0, p, kWhole, p}, ConstView<T>(z).from(0, m), {turned, ldp}, {x, ldm});
        for (int64_t i = 0; i < p; ++i) std::memcpy(z.at + (m + i) * z.ld + m, x + i * ldm, size_t(p) * sizeof(T));
        return true;
    }

    // F [p, q + b] := (I - G)⁻¹F, from the sources.
    void read_jacobian(const Front& front, View<T> f) const {
        const Shape& shape = front.shape;
        std::memset(f.at, 0, size_t(shape.p * f.ld) * sizeof(T));
        for (int32_t k = 0; k < shape.num_blocks && shape.blocks[k].kind == kF; ++k)
            place<T, true>(shape.blocks[k], call_.sources + front.sources[k], f.at, f.ld);
        if (!(shape.flags & kNested)) return;
        for (int32_t row = shape.p - 1; row >= 0; --row)
            for_reads(front, call_.sources, row,
                      [&](int64_t j, T v) { axpy(f.at + row * f.ld, v, f.at + j * f.ld, f.ld); });
    }

    const InverseCall<T>& call_;
    const PlanView plan_;
    Buffer<T> numbers_, separator_, products_, turned_, pairs_;
    Buffer<int32_t> names_, where_, places_;
    Buffer<Clique> cliques_;
    int64_t count_ = 0;
    bool named_ = false;  // whether where_ holds the places of the names of the clique on top
};

// y with the covariance D⁻¹, from standard normal noise; the rows of both stand under the names of the rows of L.
template <class T>
inline void scale_noise(const TakenRows<T>& rows, T* z, int64_t columns) {
    for (int64_t k = 0; k < rows.taken; ++k) {
        T* y = z + rows.ids[k] * columns;
        const T a = rows.l[k * rows.m + k];
        if (!rows.off || rows.off[k] == 0) {
            for (int64_t c = 0; c < columns; ++c) y[c] /= std::sqrt(a);
            continue;
        }
        // D = C Cᵀ with a lower triangle C; y = C⁻ᵀ noise.
        const T b = rows.off[k] / std::sqrt(a), d = std::sqrt(rows.l[(k + 1) * rows.m + k + 1] - b * b);
        T* other = z + rows.ids[k + 1] * columns;
        for (int64_t c = 0; c < columns; ++c) {
            other[c] /= d;
            y[c] = (y[c] - b * other[c]) / std::sqrt(a);
        }
        ++k;
    }
}

template <class T>
bool draw_kept(const DrawCall<T>& call) {
    const PlanView plan{call.plan};
    const int64_t given = call.num_inputs * call.columns, total = plan.num_unknowns() * call.columns;
    const Records<T> records = TakenWalk<T>::records(plan, call.factor, call.index, call.index_len);
    RecordWalk<T> record(records, false);
    int64_t n = plan.data[kMaxRest];
    for (record.next(); record.front >= 0; record.next()) n = max(n, record.n);
    Buffer<T> z;
    if (!z.reserve(total + (plan.data[kMaxPairs] + n) * call.columns)) return false;
    std::memset(z.data(), 0, size_t(total) * sizeof(T));
    std::memcpy(z.data(), call.noise, size_t(given) * sizeof(T));
    TakenWalk<T> walk(plan, call.factor, call.index, call.index_len);
    for (int64_t f = int64_t(plan.num_fronts()) - 1; f >= 0; --f)
        scale_noise(walk.previous(f, plan.front(f)), z.data(), call.columns);
    back_substitute(plan, call.sources, call.factor + plan.rows_size(), records, z.data(), call.columns,
                    z.data() + total);
    std::memcpy(call.draws, z.data(), size_t(given) * sizeof(T));
    return true;
}

template <class T>
void invert(const InverseCall<T>& call) {
    bool good = call.plan_len >= kHeaderSize && call.plan[kVersion] == kPlanVersion &&
                call.plan[kNumSources] == call.sources_len && call.plan[kNumSlots] == call.num_slots &&
                call.info[kStatus] == kOk && call.info[kKept] && !(call.sensitivities && call.plan[kIsCausal]);
    T* out = call.sensitivities ? call.sensitivities : call.variances;
    const int64_t size = call.sensitivities ? call.sources_len : call.num_slots;
    std::memset(out, 0, size_t(size) * sizeof(T));
    good = good && Inverse<T>(call).run();
    for (int64_t i = 0; i < size && !good; ++i) out[i] = T(NAN);
}

template <class T>
void draw(const DrawCall<T>& call) {
    const bool there = fits(call.plan, call.plan_len, call.sources_len, call.num_inputs) && call.plan[kIsCausal] &&
                       call.info[kStatus] == kOk && call.info[kKept];
    if (!there || !draw_kept(call))
        for (int64_t i = 0; i < call.num_inputs * call.columns; ++i) call.draws[i] = T(NAN);
}

}  // namespace GNEWT_ISA

const Inverter* GNEWT_ISA_INVERTER() {
    using namespace GNEWT_ISA;
    static const Inverter inverter{invert<double>, invert<float>, draw<double>, draw<float>};
    return &inverter;
}

}  // namespace gnewt::engine
