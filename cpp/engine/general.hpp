// The careful elimination: any plan, any rank. Symmetric indefinite fronts with duals; what finds no stable pivot
// in its front is delayed to the parent, so fronts grow as needed.
#pragma once
#include "blocks.hpp"
#include "pivots.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// A factor as it is kept: per front, index = {pivots, rest, is root, ids...} and factor = {L of pivots and rest, row by row,
// diagonal of D, off-diagonal of D}.
template <class T>
struct KeptFactor {
    const T* numbers;
    const int32_t* index;
    int64_t numbers_end, index_end;  // of the last front
};

// Solve with a factor for z[unknowns, columns] in place. Fronts are stored one after the other; each is preceded
// by nothing and followed by the length of its index, so that they can be walked backwards.
template <class T>
inline void solve_general(const KeptFactor<T>& f, T* z, int64_t columns) {
    const int32_t* index = f.index;
    const T* l = f.numbers;
    for (const int32_t* end = f.index + f.index_end; index < end;) {
        const int64_t q = index[0], n = q + index[1];
        const int32_t* ids = index + 3;
        for (int64_t i = 0; i < n; ++i, l += q)
            for (int64_t j = 0; j < min(i, q); ++j)
                if (l[j] != 0)
                    for (int64_t c = 0; c < columns; ++c) z[ids[i] * columns + c] -= l[j] * z[ids[j] * columns + c];
        l += 2 * q;
        index += 4 + n;
    }
    index = f.index + f.index_end;
    l = f.numbers + f.numbers_end;
    while (index > f.index) {
        index -= index[-1];
        const int64_t q = index[0], n = q + index[1];
        const int32_t* ids = index + 3;
        const T *off = l - q, *diag = off - q;
        l = diag - n * q;
        if (index[2])  // what is left in a root are null unknowns
            for (int64_t i = q; i < n; ++i)
                for (int64_t c = 0; c < columns; ++c) z[ids[i] * columns + c] = 0;
        for (int64_t i = 0; i < q; ++i) {
            T* zi = z + ids[i] * columns;
            if (off[i] == 0) {
                for (int64_t c = 0; c < columns; ++c) zi[c] /= diag[i];
                continue;
            }
            T* zj = z + ids[i + 1] * columns;
            const T x = diag[i] / off[i], y = diag[i + 1] / off[i], t = 1 / ((x * y - 1) * off[i]);
            for (int64_t c = 0; c < columns; ++c) {
                const T u = zi[c], v = zj[c];
                zi[c] = (y * u - v) * t;
                zj[c] = (x * v - u) * t;
            }
            ++i;
        }
        for (int64_t i = n - 1; i > 0; --i)
            for (int64_t j = 0; j < min(i, q); ++j)
                if (l[i * q + j] != 0)
                    for (int64_t c = 0; c < columns; ++c)
                        z[ids[j] * columns + c] -= l[i * q + j] * z[ids[i] * columns + c];
    }
}

template <class T>
class General {
public:
    explicit General(const Call<T>& call) : call_(call), plan_{call.plan} {}

    void run() {
        const Status status = factor();
        int32_t* info = call_.info;
        const int64_t pairs = plan_.num_slots() - plan_.num_inputs();
        info[kStatus] = status;
        info[kPositive] = int32_t(tally_.positive - pairs);
        info[kNegative] = int32_t(tally_.negative - pairs);
        info[kZero] = int32_t(nulls_);
        info[kDelayed] = int32_t(delayed_);
        info[kMode] = kGeneral;
        info[kFirstNull] = first_null_;
        call_.real[kLogDet] = nulls_ ? T(-HUGE_VAL) : T(tally_.logdet());
        call_.real[kSmallestPivot] = nulls_ ? T(0) : T(tally_.smallest);
        if (status > kSingular || !solve()) {
            if (status <= kSingular) info[kStatus] = kOutOfMemory;
            for (int64_t i = 0; i < call_.num_inputs * call_.columns; ++i) call_.solution[i] = T(NAN);
            call_.real[kLogDet] = call_.real[kSmallestPivot] = T(NAN);
            return;
        }
        // The last integers say where the kept factor ends: it may be much shorter than its buffers.
        const bool keep = numbers_end_ <= call_.factor_len && index_end_ + 4 <= call_.index_len;
        info[kKept] = keep;
        if (!keep) return;
        std::memcpy(call_.factor, numbers_.data(), size_t(numbers_end_) * sizeof(T));
        std::memcpy(call_.index, index_.data(), size_t(index_end_) * sizeof(int32_t));
        std::memcpy(call_.index + call_.index_len - 4, &numbers_end_, 8);
        std::memcpy(call_.index + call_.index_len - 2, &index_end_, 8);
    }

private:
    // What a front leaves for its parent: the lower triangles of its Schur complement and of the bounds.
    struct Message {
        int64_t at, ids_at;
        int32_t size, delayed, front;
    };

    Status factor() {
        // One element at least: nothing is copied from or to a null pointer, however empty a front is.
        if (!messages_.reserve(plan_.num_fronts() + 1) || !numbers_.reserve(1) || !stack_.reserve(1) || !pivots_.reserve(1))
            return kOutOfMemory;
        for (int32_t i = 0; i < plan_.num_fronts(); ++i) {
            const Status status = eliminate(i);
            if (status != kOk) return status;
        }
        return nulls_ ? kSingular : kOk;
    }

    Status eliminate(int32_t number) {
        const Front front = plan_.front(number);
        const Shape& shape = front.shape;
        const Message* children = messages_.data() + num_messages_ - front.num_children;
        int64_t late = 0;
        for (int32_t c = 0; c < front.num_children; ++c) late += children[c].delayed;
        const int64_t candidates = late + 2 * shape.p + shape.q, n = candidates + shape.b;
        if (!work_.reserve(2 * n * n + 3 * n) || !ids_.reserve(ids_top_ + 3 * n)) return kOutOfMemory;
        T *a = work_.data(), *s = a + n * n;
        std::memset(a, 0, size_t(2 * n * n) * sizeof(T));
        int32_t* ids = ids_.data() + ids_top_;
        name_unknowns(front, ids + late);
        if (!assemble(front, late, n, a, s)) return kNonFinite;
        int64_t at = 0;
        for (int32_t c = 0; c < front.num_children; ++c) {
            const Message& child = children[c];
            const int32_t* theirs = ids_.data() + child.ids_at;
            for (int32_t j = 0; j < child.delayed; ++j) ids[at + j] = theirs[j];
            extend(child, at, late, shape.p, n, a, s, ids + n);
            at += child.delayed;
        }
        if (front.num_children) {
            top_ = children[0].at;
            // The names move down, over those of the children.
            std::memmove(ids_.data() + children[0].ids_at, ids, size_t(n) * sizeof(int32_t));
            ids_top_ = children[0].ids_at;
            ids = ids_.data() + ids_top_;
        }
        num_messages_ -= front.num_children;
        return pivot(number, shape, late, n, candidates, a, s, ids);
    }

    Status pivot(int32_t number, const Shape& shape, int64_t late, int64_t n, int64_t candidates, T* a, T* s,
                 int32_t* ids) {
        // The pivots are written where they are kept, behind L; their number is known only afterwards.
        if (!pivots_.reserve(2 * candidates)) return kOutOfMemory;
        T *diag = pivots_.data(), *off = diag + candidates;
        std::memset(s + n * n, 0, size_t(3 * n) * sizeof(T));
        DenseFront<T> dense(a, s, n, candidates, ids, diag, off, s + n * n, ids + n);
        for (int64_t i = 0; i < shape.p; ++i) dense.substitute(late + i, late + shape.p + i, tally_);
        for (int32_t i = 0; i < shape.num_pairs; ++i)
            dense.substitute(late + shape.pairs[2 * i + 1], late + shape.pairs[2 * i], tally_);
        const int64_t q = dense.eliminate(tally_);
        if (q < 0) return kNonFinite;
        const int64_t rest = n - q;
        if (!numbers_.reserve(numbers_end_ + (n + 2) * q) || !index_.reserve(index_end_ + n + 4)) return kOutOfMemory;
        T* l = numbers_.data() + numbers_end_;
        for (int64_t i = 0; i < n; ++i, l += q) std::memcpy(l, a + i * n, size_t(q) * sizeof(T));
        std::memcpy(l, diag, size_t(q) * sizeof(T));
        std::memcpy(l + q, off, size_t(q) * sizeof(T));
        numbers_end_ += (n + 2) * q;
        int32_t* index = index_.data() + index_end_;
        index[0] = int32_t(q);
        index[1] = int32_t(rest);
        index[2] = shape.b == 0;
        std::memcpy(index + 3, ids, size_t(n) * sizeof(int32_t));
        index[3 + n] = int32_t(n + 4);
        index_end_ += n + 4;
        if (shape.b == 0) {
            for (int64_t i = q; i < n; ++i) {
                if (!nulls_++) first_null_ = ids[i];
                call_.null[ids[i]] = 1;
            }
            return kOk;
        }
        delayed_ += candidates - q;
        if (!stack_.reserve(top_ + 2 * rest * rest)) return kOutOfMemory;
        T *schur = stack_.data() + top_, *bound = schur + rest * rest;
        for (int64_t i = 0; i < rest; ++i) {
            std::memcpy(schur + i * rest, a + (q + i) * n + q, size_t(i + 1) * sizeof(T));
            std::memcpy(bound + i * rest, s + (q + i) * n + q, size_t(i + 1) * sizeof(T));
        }
        std::memmove(ids, ids + q, size_t(rest) * sizeof(int32_t));
        messages_[num_messages_++] = {top_, ids_top_, int32_t(rest), int32_t(candidates - q), number};
        top_ += 2 * rest * rest;
        ids_top_ += rest;
        return kOk;
    }

    // Local order of a front: the delayed, x of the pairs, λ of the pairs, inputs, separator.
    void name_unknowns(const Front& front, int32_t* ids) const {
        const Shape& shape = front.shape;
        const int32_t dual = plan_.num_slots() - plan_.num_inputs();
        for (int32_t i = 0; i < shape.p; ++i) {
            ids[i] = front.slots[i];
            ids[shape.p + i] = front.slots[i] + dual;
        }
        for (int32_t i = shape.p; i < shape.p + shape.q + shape.b; ++i) ids[shape.p + i] = front.slots[i];
    }

    bool assemble(const Front& front, int64_t late, int64_t n, T* a, T* s) const {
        const Shape& shape = front.shape;
        const int64_t p = shape.p, inputs = late + 2 * p;
        T probe = 0;
        auto add = [&](int64_t i, int64_t j, T v) {
            const int64_t k = i < j ? j * n + i : i * n + j;
            a[k] += v;
            s[k] += abs(v);
            probe += v * 0;
        };
        // Row and column where the parts of a front begin, by Kind: F, G, PP, C, R.
        const int64_t row0[] = {late + p, late + p, late, late, inputs};
        const int64_t col0[] = {inputs, late, late, inputs, inputs};
        for (int32_t k = 0; k < shape.num_blocks; ++k) {
            const Block& block = shape.blocks[k];
            const int64_t r = row0[block.kind], c = col0[block.kind];
            for_each(block, call_.sources + front.sources[k],
                     [&](int64_t i, int64_t j, T v) { add(r + i, c + j, v); });
        }
        for (int64_t i = 0; i < p; ++i) add(late + p + i, late + i, T(-1));
        if (plan_.causal()) {
            for (int64_t i = 0; i < shape.q; ++i) add(inputs + i, inputs + i, call_.shift);
        } else {
            for (int32_t i = 0; i < shape.num_pairs; ++i)
                add(late + shape.pairs[2 * i], late + shape.pairs[2 * i + 1], T(-1));
            for (int32_t i = 0; i < shape.num_inputs; ++i)
                add(late + shape.inputs[i], late + shape.inputs[i], call_.shift);
        }
        return probe == 0;
    }

    // Add a child's message; `at` is where its delayed unknowns stand.
    void extend(const Message& child, int64_t at, int64_t late, int64_t p, int64_t n, T* a, T* s, int32_t* place) const {
        const Shape shape = plan_.front(child.front).shape;
        for (int32_t i = 0; i < child.delayed; ++i) place[i] = int32_t(at + i);
        for (int32_t k = 0; k < shape.num_runs; ++k) {
            const int32_t *run = shape.runs + 3 * k, to = run[1];
            for (int32_t i = 0; i < run[2]; ++i)
                place[child.delayed + run[0] + i] = int32_t(late + to + i + (to < p ? 0 : p));
        }
        const int64_t m = child.size;
        const T *schur = stack_.data() + child.at, *bound = schur + m * m;
        for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j <= i; ++j) {
                const int64_t x = max(place[i], place[j]), y = min(place[i], place[j]);
                a[x * n + y] += schur[i * m + j];
                s[x * n + y] += bound[i * m + j];
            }
    }

    bool solve() {
        const int64_t c = call_.columns, total = plan_.num_unknowns() * c, given = call_.num_inputs * c;
        if (!solution_.reserve(total)) return false;
        std::memset(solution_.data(), 0, size_t(total) * sizeof(T));
        std::memcpy(solution_.data(), call_.rhs, size_t(given) * sizeof(T));
        solve_general<T>({numbers_.data(), index_.data(), numbers_end_, index_end_}, solution_.data(), c);
        std::memcpy(call_.solution, solution_.data(), size_t(given) * sizeof(T));
        return true;
    }

    const Call<T>& call_;
    PlanView plan_;
    Tally tally_;
    int64_t nulls_ = 0, delayed_ = 0, numbers_end_ = 0, index_end_ = 0, top_ = 0, ids_top_ = 0, num_messages_ = 0;
    int32_t first_null_ = -1;
    Buffer<T> numbers_, work_, pivots_, solution_;
    mutable Buffer<T> stack_;
    Buffer<int32_t> index_, ids_;
    Buffer<Message> messages_;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
