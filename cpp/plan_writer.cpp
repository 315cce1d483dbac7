// The plan as the native engine reads it: one flat int32 array; see engine/plan_view.hpp for what it holds, and
// kkt/engines/native/packing.py for the parts of a front.
#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "plan_writer.hpp"

namespace gnewt {

namespace {

constexpr Index kPlanVersion = 3, kHeaderSize = 14;
enum Kind : Index { kF, kG, kPP, kC, kR };
enum Flag : Index { kChildIsPairs = 1, kCross = 2, kNested = 4, kDenseJacobian = 8, kInputBelow = 16 };

std::size_t u(Count i) { return static_cast<std::size_t>(i); }

Index narrow(Count i) {
    if (i < std::numeric_limits<Index>::min() || i > std::numeric_limits<Index>::max())
        throw OverLimit("an index beyond 31 bits");
    return static_cast<Index>(i);
}

// A number that is added to a part of a front.
struct Contribution {
    Index kind, row, col;
    Count source;
};

// Consecutive sources that are consecutive in a row of a part, or, transposed, in a column.
struct Run {
    Index kind, transposed, outer, inner;
    Count length, source;
};

// Runs below each other whose lengths and starts follow a rule: rectangles and packed triangles.
struct Block {
    Run first;
    Count rows, dlen, step, dstep;

    // The next run joins if it stands right below and keeps the rule; the second and the third set it.
    bool take(const Run& run, const Run& last) {
        if (run.kind != first.kind || run.transposed != first.transposed || run.inner != first.inner ||
            run.outer != last.outer + 1)
            return false;
        const Count longer = run.length - last.length, further = run.source - last.source;
        if (rows > 1 && longer != dlen) return false;
        if (rows > 2 && further != step + (rows - 1) * dstep) return false;
        if (rows == 1) dlen = longer, step = further;
        if (rows == 2) dstep = further - step;
        ++rows;
        return true;
    }
};

class Writer {
public:
    Writer(const PlanArrays& plan, Count num_sources) : plan_(plan), num_sources_(num_sources) {}

    EngineLayout run() {
        check();
        number_fronts();
        set_coordinates();
        sort_nonzeros();
        if (!plan_.causal) sort_pairs_and_inputs();
        for (Index front : order_) write(front);
        return join();
    }

private:
    Count num_fronts() const { return plan_.parent.size; }
    Count num_eliminated(Count i) const { return plan_.elim_ptr[i + 1] - plan_.elim_ptr[i]; }
    Count begin(Count i) const { return plan_.elim_ptr[i] + plan_.sep_ptr[i]; }  // of a front's unknowns in local_
    Count size(Count i) const { return begin(i + 1) - begin(i); }
    Count separator_size(Count i) const { return plan_.sep_ptr[i + 1] - plan_.sep_ptr[i]; }

    void check() const {
        const Count num = num_fronts(), unknowns = 2 * plan_.num_slots - plan_.num_inputs;
        check_rows({plan_.elim_ptr, plan_.elim_idx}, unknowns);
        check_rows({plan_.sep_ptr, plan_.sep_idx}, unknowns);
        check_rows({plan_.entry_ptr, plan_.entry_row}, std::numeric_limits<Index>::max());
        check_rows({plan_.entry_ptr, plan_.entry_col}, std::numeric_limits<Index>::max());
        if (plan_.num_inputs > plan_.num_slots || plan_.num_inputs < 0) throw InvalidInput("more inputs than slots");
        for (Count i = 0; i < num; ++i) {
            const Index up = plan_.parent[i];
            if (up != -1 && (up <= i || up >= num)) throw InvalidInput("a front after its parent");
            if (up == -1 && separator_size(i)) throw InvalidInput("a root with a separator");
            for (Count k = plan_.sep_ptr[i]; k < plan_.sep_ptr[i + 1]; ++k)
                if (plan_.sep_pos[k] < 0 || plan_.sep_pos[k] >= size(up))
                    throw InvalidInput("a separator outside of its parent");
            for (Count k = plan_.entry_ptr[i]; k < plan_.entry_ptr[i + 1]; ++k)
                if (std::max(plan_.entry_row[k], plan_.entry_col[k]) >= size(i))
                    throw InvalidInput("an entry outside of its front");
        }
        const Count entries = plan_.entry_row.size;
        const auto in_entries = [&](Span<const Count> list) {
            for (Count entry : list)
                if (entry < 0 || entry >= entries) throw InvalidInput("no such entry");
        };
        in_entries(plan_.target);
        in_entries(plan_.pair_entry);
        in_entries(plan_.input_entry);
        for (Count source : plan_.source)
            if (source < 0 || source >= num_sources_) throw InvalidInput("no such source");
    }

    // Every subtree contiguous: Schur complements wait on a stack.
    void number_fronts() {
        const Count num = num_fronts();
        std::vector<Index> size(u(num), 1), room(u(num), 0);  // of a subtree; where the next child's subtree ends
        num_children_.assign(u(num), 0);
        for (Count i = 0; i < num; ++i) {
            if (plan_.parent[i] < 0) continue;
            size[u(plan_.parent[i])] += size[u(i)];
            ++num_children_[u(plan_.parent[i])];
        }
        order_.resize(u(num));
        Index free = static_cast<Index>(num);
        for (Count i = num - 1; i >= 0; --i) {
            Index& end = plan_.parent[i] < 0 ? free : room[u(plan_.parent[i])];
            room[u(i)] = end - 1;
            order_[u(end - 1)] = static_cast<Index>(i);
            end -= size[u(i)];
        }
    }

    // Coordinates [p | q | b] of the unknowns of every front; x and λ of a pair share one.
    void set_coordinates() {
        const Count num = num_fronts();
        p_.assign(u(num), 0);
        q_.assign(u(num), 0);
        local_.resize(u(begin(num)));
        std::vector<Index> of_slot(plan_.causal ? u(plan_.num_slots) : 0, -1);
        for (Count i = 0; i < num; ++i) {
            Index* at = local_.data() + begin(i);
            const Index* mine = plan_.elim_idx.data + plan_.elim_ptr[i];
            const Count eliminated = num_eliminated(i);
            if (!plan_.causal) {
                q_[u(i)] = static_cast<Index>(eliminated);
                for (Count k = 0; k < size(i); ++k) at[k] = static_cast<Index>(k);
                continue;
            }
            Index &p = p_[u(i)], &q = q_[u(i)];
            for (Count k = 0; k < eliminated; ++k)
                if (mine[k] >= plan_.num_inputs && mine[k] < plan_.num_slots) of_slot[u(mine[k])] = p++;
            for (Count k = 0; k < eliminated; ++k)
                if (mine[k] < plan_.num_inputs) of_slot[u(mine[k])] = p + q++;
            for (Count k = 0; k < eliminated; ++k) {
                at[k] = of_slot[u(slot(mine[k]))];
                if (at[k] < 0) throw InvalidInput("a dual before its slot");
            }
            for (Count k = eliminated; k < size(i); ++k) at[k] = static_cast<Index>(p + q + k - eliminated);
        }
    }

    bool is_dual(Index unknown) const { return unknown >= plan_.num_slots; }
    Count slot(Index unknown) const {
        return is_dual(unknown) ? unknown - plan_.num_slots + plan_.num_inputs : unknown;
    }
    Index unknown(Count i, Count k) const {
        const Count eliminated = num_eliminated(i);
        return k < eliminated ? plan_.elim_idx[plan_.elim_ptr[i] + k]
                              : plan_.sep_idx[plan_.sep_ptr[i] + k - eliminated];
    }

    // Group the positions of a list of entries by the front that assembles them.
    void by_front(Span<const Count> entries, std::vector<Count>& ptr, std::vector<std::uint32_t>& idx) const {
        if (entries.size >= Count{1} << 32) throw OverLimit("too many nonzeros");
        std::vector<Index> front(u(plan_.entry_row.size));
        for (Count i = 0; i < num_fronts(); ++i)
            std::fill(front.begin() + plan_.entry_ptr[i], front.begin() + plan_.entry_ptr[i + 1],
                      static_cast<Index>(i));
        ptr.assign(u(num_fronts() + 1), 0);
        for (Count entry : entries) ++ptr[u(front[u(entry)]) + 1];
        for (Count i = 0; i < num_fronts(); ++i) ptr[u(i + 1)] += ptr[u(i)];
        idx.resize(u(entries.size));
        std::vector<Count> next(ptr.begin(), ptr.end() - 1);
        for (Count k = 0; k < entries.size; ++k)
            idx[u(next[u(front[u(entries[k])])]++)] = static_cast<std::uint32_t>(k);
    }
    void sort_nonzeros() { by_front(plan_.target, nonzero_ptr_, nonzero_idx_); }
    void sort_pairs_and_inputs() {
        by_front(plan_.pair_entry, pair_ptr_, pair_idx_);
        by_front(plan_.input_entry, input_ptr_, input_idx_);
    }

    Contribution contribution(Count i, Count nonzero) const {
        const Count entry = plan_.target[nonzero], source = plan_.source[nonzero];
        const Index a = plan_.entry_row[entry], b = plan_.entry_col[entry];
        const Index row = local_[u(begin(i) + a)], col = local_[u(begin(i) + b)], p = p_[u(i)];
        const Index low = std::min(row, col), high = std::max(row, col);
        if (!plan_.causal) return {kR, low, high, source};
        const bool dual_row = is_dual(unknown(i, a));
        if (dual_row || is_dual(unknown(i, b))) {
            const Index dual = dual_row ? row : col, primal = dual_row ? col : row;
            return primal < p ? Contribution{kG, dual, primal, source} : Contribution{kF, dual, primal - p, source};
        }
        if (high < p) return {kPP, low, high, source};
        return low < p ? Contribution{kC, low, high - p, source} : Contribution{kR, low - p, high - p, source};
    }

    void write(Index i) {
        const Index p = p_[u(i)], q = q_[u(i)], b = static_cast<Index>(separator_size(i));
        contributions_.clear();
        diagonal_.clear();
        for (Count k = nonzero_ptr_[u(i)]; k < nonzero_ptr_[u(i + 1)]; ++k) {
            contributions_.push_back(contribution(i, nonzero_idx_[u(k)]));
            const Contribution& c = contributions_.back();
            if (plan_.causal && c.kind == kR && c.row == c.col) diagonal_.push_back(c);
        }
        find_blocks();
        shape_.assign({p, q, b, flags(i), narrow(static_cast<Count>(blocks_.size())),
                       narrow(static_cast<Count>(diagonal_.size())), 0, 0, 0, cover_rows(q, q + b)});
        for (const Block& k : blocks_) {
            const Run& r = k.first;
            const Index row = r.transposed ? r.inner : r.outer, col = r.transposed ? r.outer : r.inner;
            for (Count v : {Count{r.kind}, Count{r.transposed}, k.rows, r.length, k.dlen, k.step, k.dstep, Count{row},
                            Count{col}})
                shape_.push_back(narrow(v));
        }
        for (const Contribution& c : diagonal_) shape_.push_back(c.row);
        if (!plan_.causal) write_pairs_and_inputs(i);
        write_runs(i);

        const Count sources_at = static_cast<Count>(sources_.size()), slots_at = static_cast<Count>(slots_.size());
        for (const Block& k : blocks_) sources_.push_back(narrow(k.first.source));
        for (const Contribution& c : diagonal_) sources_.push_back(narrow(c.source));
        slots_.resize(u(slots_at + p + q + b));
        for (Count k = 0; k < size(i); ++k)
            if (!plan_.causal || !is_dual(unknown(i, k))) slots_[u(slots_at + local_[u(begin(i) + k)])] = unknown(i, k);
        for (Count v : {share_shape(), slots_at, sources_at, Count{num_children_[u(i)]}}) fronts_.push_back(narrow(v));
        layout_.factor_size += Count{q} * (q + b + (plan_.causal ? 0 : 2));
        layout_.index_size += q + b + 4;
        max_pairs_ = std::max(max_pairs_, p);
        max_rest_ = std::max(max_rest_, q + b);
    }

    void find_blocks() {
        std::sort(contributions_.begin(), contributions_.end(), [](const Contribution& x, const Contribution& y) {
            return std::tie(x.kind, x.source, x.row, x.col) < std::tie(y.kind, y.source, y.row, y.col);
        });
        // How a contribution continues the one before it: 1 along a row, 2 along a column, 0 not at all.
        const std::size_t num = contributions_.size();
        steps_.assign(num + 1, 0);
        for (std::size_t k = 1; k < num; ++k) {
            const Contribution &x = contributions_[k - 1], &y = contributions_[k];
            if (x.kind != y.kind || y.source != x.source + 1) continue;
            steps_[k] = y.row == x.row && y.col == x.col + 1 ? 1 : y.col == x.col && y.row == x.row + 1 ? 2 : 0;
        }
        runs_.clear();
        for (std::size_t k = 0; k < num;) {
            std::size_t end = k + 1;
            // (0, 0), (0, 1), (1, 1): the second belongs to the third, to the next row of a packed triangle.
            if (!(steps_[end] == 1 && end + 1 < num && steps_[end + 1] == 2))
                while (end < num && steps_[end] && steps_[end] == steps_[k + 1]) ++end;
            const Contribution& c = contributions_[k];
            const bool transposed = end - k > 1 ? steps_[k + 1] == 2 : c.kind == kPP || c.kind == kR;
            const Index outer = transposed ? c.col : c.row, inner = transposed ? c.row : c.col;
            runs_.push_back({c.kind, transposed, outer, inner, static_cast<Count>(end - k), c.source});
            k = end;
        }
        std::sort(runs_.begin(), runs_.end(), [](const Run& x, const Run& y) {
            return std::tie(x.kind, x.transposed, x.inner, x.source, x.outer) <
                   std::tie(y.kind, y.transposed, y.inner, y.source, y.outer);
        });
        blocks_.clear();
        for (std::size_t k = 0; k < runs_.size(); ++k)
            if (blocks_.empty() || !blocks_.back().take(runs_[k], runs_[k - 1]))
                blocks_.push_back({runs_[k], 1, 0, 0, 0});
    }

    // Blocks that cover the first q rows of the upper triangle of R exactly once come first among those of R: return how many, or zero
    // if there are no such, or if other rows have sources too. They can be written where the others are added.
    Index cover_rows(Count q, Count n) {
        const auto begin =
            std::find_if(blocks_.begin(), blocks_.end(), [](const Block& k) { return k.first.kind == kR; });
        if (!plan_.causal || begin == blocks_.end()) return 0;
        covered_.assign(u(q * n), 0);
        Count missing = q * n - q * (q - 1) / 2;
        bool inside = true;
        const auto end = std::stable_partition(begin, blocks_.end(), [&](const Block& k) {
            const auto each = [&](auto visit) {
                for (Count i = 0; i < k.rows; ++i)
                    for (Count j = 0; j < k.first.length + i * k.dlen; ++j) {
                        const Count outer = k.first.outer + i, inner = k.first.inner + j;
                        const Count row = k.first.transposed ? inner : outer, col = k.first.transposed ? outer : inner;
                        inside = inside && row < q;
                        if (!inside || !visit(covered_[u(row * n + col)])) return false;
                    }
                return true;
            };
            if (!each([](char& covered) { return !covered; })) return false;
            each([&](char& covered) { return --missing, covered = 1; });
            return true;
        });
        return missing || !inside ? 0 : narrow(end - begin);
    }

    Index flags(Index i) {
        if (!plan_.causal) return 0;
        const Count p = p_[u(i)], n = q_[u(i)] + separator_size(i);
        Index flags = child_flags(i);
        covered_.assign(u(p * n), 0);
        Count once = 0;
        bool twice = false;
        for (const Contribution& c : contributions_) {
            if (c.kind == kC) flags |= kCross;
            if (c.kind == kG) flags |= kNested;
            if (c.kind != kF) continue;
            char& covered = covered_[u(c.row * n + c.col)];
            twice |= covered != 0;
            once += !covered;
            covered = 1;
        }
        if (p && once == p * n && !twice) flags |= kDenseJacobian;
        for (Count k = plan_.sep_ptr[i]; k < plan_.sep_ptr[i + 1]; ++k)
            if (plan_.sep_idx[k] < plan_.num_inputs) flags |= kInputBelow;
        return flags;
    }

    // Children come right before their parent: the last `num_children` fronts that still wait.
    Index child_flags(Index i) {
        Index flags = 0;
        for (Index k = 0; k < num_children_[u(i)]; ++k) {
            const Index child = waiting_.back();
            waiting_.pop_back();
            Count low = 0, in_place = 0;
            const Count first = plan_.sep_ptr[child], b = separator_size(child);
            for (Count s = 0; s < b; ++s) {
                const Index place = local_[u(begin(i) + plan_.sep_pos[first + s])];
                low += place < p_[u(i)];
                in_place += place == s;
            }
            if (0 < low && low < b) flags |= kCross;
            if (num_children_[u(i)] == 1 && in_place == b && b == p_[u(i)]) flags |= kChildIsPairs;
        }
        if (plan_.parent[i] >= 0) waiting_.push_back(i);
        return flags;
    }

    // As (λ, x): an entry itself does not say which of its coordinates is the dual.
    void write_pairs_and_inputs(Index i) {
        for (Count k = pair_ptr_[u(i)]; k < pair_ptr_[u(i + 1)]; ++k, ++shape_[6]) {
            const Count entry = plan_.pair_entry[pair_idx_[u(k)]];
            Index a = plan_.entry_row[entry], b = plan_.entry_col[entry];
            if (!is_dual(unknown(i, a))) std::swap(a, b);
            shape_.push_back(a);
            shape_.push_back(b);
        }
        for (Count k = input_ptr_[u(i)]; k < input_ptr_[u(i + 1)]; ++k, ++shape_[7])
            shape_.push_back(plan_.entry_row[plan_.input_entry[input_idx_[u(k)]]]);
    }

    // Where the separator lies in the parent: [start, coordinate, length] of pieces that do not cross the pairs' end.
    void write_runs(Index i) {
        const Index up = plan_.parent[i];
        for (Count k = 0; k < separator_size(i); ++k) {
            const Index place = local_[u(begin(up) + plan_.sep_pos[plan_.sep_ptr[i] + k])];
            if (k && place == shape_[shape_.size() - 2] + shape_.back() && place != p_[u(up)]) {
                ++shape_.back();
                continue;
            }
            for (Index v : {static_cast<Index>(k), place, Index{1}}) shape_.push_back(v);
            ++shape_[8];
        }
    }

    // Fronts that look alike share one shape: return where it begins.
    Count share_shape() {
        std::uint64_t hash = shape_.size();
        for (Index v : shape_) {
            hash = (hash ^ static_cast<std::uint32_t>(v)) * 0x9E3779B97F4A7C15u;
            hash ^= hash >> 29;
        }
        const auto [begin, end] = known_.equal_range(hash);
        for (auto at = begin; at != end; ++at)
            if (shapes_.size() - u(at->second) >= shape_.size() &&
                std::equal(shape_.begin(), shape_.end(), shapes_.begin() + at->second))
                return at->second;
        const Count start = static_cast<Count>(shapes_.size());
        known_.emplace(hash, start);
        shapes_.insert(shapes_.end(), shape_.begin(), shape_.end());
        return start;
    }

    EngineLayout join() {
        std::vector<Index>* parts[] = {&fronts_, &shapes_, &slots_, &sources_};
        std::vector<Index>& out = layout_.array;
        Count total = kHeaderSize;
        for (const auto* part : parts) total += static_cast<Count>(part->size());
        out.reserve(u(total));
        out.assign(
            {kPlanVersion, narrow(num_fronts()), narrow(plan_.num_inputs), narrow(plan_.num_slots), plan_.causal});
        Count at = kHeaderSize;
        for (const auto* part : parts) {
            out.push_back(narrow(at));
            at += static_cast<Count>(part->size());
        }
        const Count rows = plan_.causal ? layout_.factor_size : 0;
        for (Index v : {narrow(num_sources_), max_pairs_, max_rest_, narrow(rows & 0x7fffffff), narrow(rows >> 31)})
            out.push_back(v);
        for (auto* part : parts) {
            out.insert(out.end(), part->begin(), part->end());
            std::vector<Index>().swap(*part);
        }
        return std::move(layout_);
    }

    const PlanArrays& plan_;
    Count num_sources_;
    EngineLayout layout_;
    Index max_pairs_ = 1, max_rest_ = 1;
    std::vector<Index> order_, num_children_, p_, q_, local_, waiting_;
    std::vector<Count> nonzero_ptr_, pair_ptr_, input_ptr_;
    std::vector<std::uint32_t> nonzero_idx_, pair_idx_, input_idx_;
    std::vector<Index> fronts_, shapes_, slots_, sources_, shape_;
    std::unordered_multimap<std::uint64_t, Count> known_;
    std::vector<Contribution> contributions_, diagonal_;
    std::vector<char> steps_, covered_;
    std::vector<Run> runs_;
    std::vector<Block> blocks_;
};

}  // namespace

EngineLayout lay_out_for_engine(const PlanArrays& plan, Count num_sources) { return Writer(plan, num_sources).run(); }

}  // namespace gnewt
