// Writes the binary plan: plan_format.hpp says what it holds, kkt/engines/native/packing.py draws the parts of a front.
#include "plan_writer.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_map>
#include <utility>

#include "lane_groups.hpp"
#include "source_blocks.hpp"

namespace gnewt {

using namespace plan_format;

namespace {

// Append the integers of a record to a list.
template <class Record>
void append(std::vector<Index>& list, const Record& record) {
    const std::size_t end = list.size();
    list.resize(end + kInts<Record>);
    std::memcpy(list.data() + end, &record, sizeof record);
}

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
        if (plan_.causal) find_lines();
        segments_ = lane_groups(small_, num_segments_);
        return join();
    }

private:
    Count num_fronts() const { return plan_.parent.size; }
    Count num_eliminated(Count i) const { return plan_.elim_ptr[i + 1] - plan_.elim_ptr[i]; }
    // Where the unknowns of a front begin in local_.
    Count begin(Count i) const { return plan_.elim_ptr[i] + plan_.sep_ptr[i]; }
    Count size(Count i) const { return begin(i + 1) - begin(i); }
    Count separator_size(Count i) const { return plan_.sep_ptr[i + 1] - plan_.sep_ptr[i]; }

    // Throw InvalidInput unless the arrays of the plan agree with each other.
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

    // Number the fronts so that every subtree is contiguous: Schur complements wait on a stack.
    void number_fronts() {
        const Count num = num_fronts();
        std::vector<Index> size(u(num), 1),
            room(u(num), 0);  // fronts of a subtree; where its next child's subtree ends
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
                twins_.push_back(put_twins_first(mine, eliminated, at));
                for (Count k = eliminated; k < size(i); ++k) at[k] = static_cast<Index>(k);
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

    // Coordinates of the unknowns that a free front eliminates: states with their duals first, as (x, λ). Returns the
    // number of such twins.
    Index put_twins_first(const Index* mine, Count eliminated, Index* at) {
        here_.clear();
        for (Count k = 0; k < eliminated; ++k)
            if (is_dual(mine[k])) here_.emplace_back(slot(mine[k]), k);
        std::sort(here_.begin(), here_.end());
        Index twins = 0, rest = 0;
        std::fill(at, at + eliminated, kNone);
        for (Count k = 0; k < eliminated; ++k) {
            if (is_dual(mine[k])) continue;
            const auto dual = std::lower_bound(here_.begin(), here_.end(), std::pair<Count, Count>(mine[k], 0));
            if (dual == here_.end() || dual->first != mine[k]) continue;
            at[k] = 2 * twins;
            at[dual->second] = 2 * twins++ + 1;
        }
        for (Count k = 0; k < eliminated; ++k)
            if (at[k] == kNone) at[k] = 2 * twins + rest++;
        return twins;
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

    // Where a nonzero of front i goes: to F or G if a dual is one of its unknowns, else to PP, C or R.
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

    // Write the records of front i. Fronts come in postorder.
    void write(Index i) {
        const Index p = p_[u(i)], q = q_[u(i)], b = static_cast<Index>(separator_size(i));
        contributions_.clear();
        diagonal_.clear();
        for (Count k = nonzero_ptr_[u(i)]; k < nonzero_ptr_[u(i + 1)]; ++k) {
            contributions_.push_back(contribution(i, nonzero_idx_[u(k)]));
            const Contribution& c = contributions_.back();
            if (plan_.causal && c.kind == kR && c.row == c.col) diagonal_.push_back(c);
        }
        const bool small = p == 0 && q + b <= kMostInLane;
        std::vector<SourceBlock>& blocks = small ? finder_.single(contributions_) : finder_.find(contributions_);
        ShapeRecord shape{p, q, b, flags(i), narrow(blocks.size()), narrow(diagonal_.size()), 0, 0, 0, 0, 0};
        if (!plan_.causal) shape.num_twins = twins_[u(i)];
        if (plan_.causal) shape.num_set = cover_rows(blocks, q, q + b);
        lists_.clear();
        for (const SourceBlock& block : blocks) append(lists_, block.record());
        for (const Contribution& c : diagonal_) lists_.push_back(c.row);
        if (!plan_.causal) write_pairs_and_inputs(i, shape);
        shape.num_runs = write_runs(i);

        append(fronts_, FrontRecord{narrow(share_shape(shape)), narrow(slots_.size()), narrow(sources_.size()),
                                    num_children_[u(i)]});
        for (const SourceBlock& block : blocks) sources_.push_back(narrow(block.first.source));
        for (const Contribution& c : diagonal_) sources_.push_back(narrow(c.source));
        const std::size_t slots_at = slots_.size();
        slots_.resize(slots_at + u(p + q + b));
        for (Count k = 0; k < size(i); ++k)
            if (!plan_.causal || !is_dual(unknown(i, k))) slots_[slots_at + u(local_[u(begin(i) + k)])] = unknown(i, k);
        small_.push_back({p, q, b, shape.num_twins, num_children_[u(i)]});
        rows_ += Count{q} * (q + b);
        layout_.factor_size += Count{q} * (q + b + (plan_.causal ? 0 : 2));
        layout_.index_size += q + b + 4;
        layout_.max_pairs = std::max(layout_.max_pairs, p);
        layout_.max_rest = std::max(layout_.max_rest, q + b);
    }

    // The flags of front i, whose contributions are known.
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

    // The children of a front are the last `num_children` fronts that still wait for their parents.
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

    // A pair is written as (λ, x): an entry itself does not say which of its coordinates is the dual.
    void write_pairs_and_inputs(Index i, ShapeRecord& shape) {
        for (Count k = pair_ptr_[u(i)]; k < pair_ptr_[u(i + 1)]; ++k, ++shape.num_pairs) {
            const Count entry = plan_.pair_entry[pair_idx_[u(k)]];
            Index a = plan_.entry_row[entry], b = plan_.entry_col[entry];
            if (!is_dual(unknown(i, a))) std::swap(a, b);
            lists_.push_back(local_[u(begin(i) + a)]);
            lists_.push_back(local_[u(begin(i) + b)]);
        }
        for (Count k = input_ptr_[u(i)]; k < input_ptr_[u(i + 1)]; ++k, ++shape.num_inputs)
            lists_.push_back(local_[u(begin(i) + plan_.entry_row[plan_.input_entry[input_idx_[u(k)]]])]);
    }

    // Where the separator lies in the parent; returns the number of runs.
    Index write_runs(Index i) {
        const Index up = plan_.parent[i];
        Index num = 0;
        RunRecord run{};
        for (Count k = 0; k < separator_size(i); ++k) {
            const Index place = local_[u(begin(up) + plan_.sep_pos[plan_.sep_ptr[i] + k])];
            if (num && place == run.place + run.length && place != p_[u(up)]) {
                ++run.length;
                continue;
            }
            if (num++) append(lists_, run);
            run = {static_cast<Index>(k), place, 1};
        }
        if (num) append(lists_, run);
        return num;
    }

    // Fronts that look alike share one shape: return where the shape begins.
    Count share_shape(const ShapeRecord& shape) {
        shape_.clear();
        append(shape_, shape);
        shape_.insert(shape_.end(), lists_.begin(), lists_.end());
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

    FrontRecord front_at(Count i) const {
        FrontRecord front;
        std::memcpy(&front, fronts_.data() + i * kInts<FrontRecord>, sizeof front);
        return front;
    }
    ShapeRecord shape_at(Index start) const {
        ShapeRecord shape;
        std::memcpy(&shape, shapes_.data() + start, sizeof shape);
        return shape;
    }
    // The runs of a shape, behind its other lists.
    const Index* runs_at(Index start, const ShapeRecord& s) const {
        return shapes_.data() + start + kInts<ShapeRecord> + s.num_blocks * kInts<Block> + s.num_diag +
               2 * s.num_pairs + s.num_inputs;
    }
    // Whether the separators of two shapes lie in their parents alike, at ascending places.
    bool alike_above(Index one, Index other) const {
        const ShapeRecord x = shape_at(one), y = shape_at(other);
        const Index *runs = runs_at(one, x), *others = runs_at(other, y);
        if (!x.b || x.b != y.b || x.num_runs != y.num_runs || !std::equal(runs, runs + 3 * x.num_runs, others))
            return false;
        for (Index k = 1; k < x.num_runs; ++k)
            if (runs[3 * k + 1] < runs[3 * k - 2]) return false;
        return true;
    }

    // Find the lines among the fronts, which are written.
    void find_lines() {
        for (Count first = 1, end = 1; first < num_fronts(); first = std::max(end, first + 1)) {
            const FrontRecord front = front_at(first);
            end = first;
            if (front.num_children != 1 || !alike_above(front_at(first - 1).shape, front.shape)) continue;
            const ShapeRecord shape = shape_at(front.shape);
            const Count num = Count{shape.num_blocks} + shape.num_diag;
            const auto source = [&](Count i, Count k) { return sources_[u(front_at(i).sources + k)]; };
            const auto continues = [&](Count i) {
                if (front_at(i).shape != front.shape || front_at(i).num_children != 1) return false;
                for (Count k = 0; k < num; ++k)
                    if (source(i, k) - source(i - 1, k) != source(first + 1, k) - source(first, k)) return false;
                return true;
            };
            for (++end; end < num_fronts() && continues(end);) ++end;
            if (end - first < kShortestLine) continue;
            append(lines_of_fronts_, LineRecord{narrow(first), narrow(end - first), narrow(strides_.size())});
            for (Count k = 0; k < num; ++k) strides_.push_back(source(first + 1, k) - source(first, k));
        }
    }

    // The header, and the seven parts behind it.
    EngineLayout join() {
        Index header[kHeaderSize];
        header[kVersion] = kPlanVersion;
        header[kNumFronts] = narrow(num_fronts());
        header[kNumInputs] = narrow(plan_.num_inputs);
        header[kNumSlots] = narrow(plan_.num_slots);
        header[kIsCausal] = plan_.causal;
        header[kNumSources] = narrow(num_sources_);
        header[kNumSegments] = num_segments_;
        header[kMaxPairs] = layout_.max_pairs;
        header[kMaxRest] = layout_.max_rest;
        header[kRowsLow] = narrow(rows_ & 0x7fffffff);
        header[kRowsHigh] = narrow(rows_ >> 31);
        header[kNumLines] = narrow(static_cast<Count>(lines_of_fronts_.size()) / kInts<LineRecord>);
        const std::pair<Header, std::vector<Index>*> parts[] = {{kFrontsAt, &fronts_},         {kShapesAt, &shapes_},
                                                                {kSlotsAt, &slots_},           {kSourcesAt, &sources_},
                                                                {kLinesAt, &lines_of_fronts_}, {kStridesAt, &strides_},
                                                                {kSegmentsAt, &segments_}};
        Count total = kHeaderSize;
        for (const auto& [field, part] : parts) {
            header[field] = narrow(total);
            total += static_cast<Count>(part->size());
        }
        std::vector<Index>& out = layout_.array;
        out.reserve(u(total));
        out.assign(header, header + kHeaderSize);
        for (const auto& [field, part] : parts) {
            out.insert(out.end(), part->begin(), part->end());
            std::vector<Index>().swap(*part);
        }
        return std::move(layout_);
    }

    const PlanArrays& plan_;
    Count num_sources_;
    EngineLayout layout_;
    std::vector<Index> order_, num_children_, p_, q_, local_, waiting_;
    std::vector<Count> nonzero_ptr_, pair_ptr_, input_ptr_;
    std::vector<std::uint32_t> nonzero_idx_, pair_idx_, input_idx_;
    static constexpr Count kShortestLine = 3;  // fronts: a line has to be laid out before it saves anything

    std::vector<Index> fronts_, shapes_, slots_, sources_, lists_, shape_, lines_of_fronts_, strides_;
    std::vector<Index> segments_, twins_;
    std::vector<std::pair<Count, Count>> here_;
    std::vector<LaneFront> small_;
    Count rows_ = 0;  // numbers in the rows of L so far
    Index num_segments_ = 0;
    std::unordered_multimap<std::uint64_t, Count> known_;
    std::vector<Contribution> contributions_, diagonal_;
    BlockFinder finder_;
    std::vector<char> covered_;
};

}  // namespace

EngineLayout lay_out_for_engine(const PlanArrays& plan, Count num_sources) { return Writer(plan, num_sources).run(); }

}  // namespace gnewt
