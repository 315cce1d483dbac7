#include "source_blocks.hpp"

#include <algorithm>
#include <tuple>

namespace gnewt {

using namespace plan_format;

bool SourceBlock::take(const SourceRun& run, const SourceRun& last, Count farthest) {
    if (run.kind != first.kind || run.transposed != first.transposed || run.inner != first.inner ||
        run.outer != last.outer + 1)
        return false;
    const Count longer = run.length - last.length, further = run.source - last.source;
    if (further > farthest || further < -farthest) return false;
    if (rows > 1 && longer != dlen) return false;
    if (rows > 2 && further != step + (rows - 1) * dstep) return false;
    if (rows == 1) dlen = longer, step = further;
    if (rows == 2) dstep = further - step;
    ++rows;
    return true;
}

Block SourceBlock::record() const {
    const Index row = first.transposed ? first.inner : first.outer, col = first.transposed ? first.outer : first.inner;
    return {first.kind,   first.transposed, narrow(rows),  narrow(first.length),
            narrow(dlen), narrow(step),     narrow(dstep), row,
            col};
}

std::vector<SourceBlock>& BlockFinder::find(std::vector<Contribution>& contributions) {
    std::sort(contributions.begin(), contributions.end(), [](const Contribution& x, const Contribution& y) {
        return std::tie(x.kind, x.source, x.row, x.col) < std::tie(y.kind, y.source, y.row, y.col);
    });
    find_runs(contributions);
    std::sort(runs_.begin(), runs_.end(), [](const SourceRun& x, const SourceRun& y) {
        return std::tie(x.kind, x.transposed, x.inner, x.source, x.outer) <
               std::tie(y.kind, y.transposed, y.inner, y.source, y.outer);
    });
    // Sources of one function lie side by side. Farther apart are sources of two functions, whose distance is another
    // one in every front: fronts that look alike would not share their shape.
    const Count farthest = static_cast<Count>(contributions.size());
    blocks_.clear();
    for (std::size_t k = 0; k < runs_.size(); ++k)
        if (blocks_.empty() || !blocks_.back().take(runs_[k], runs_[k - 1], farthest)) blocks_.push_back({runs_[k]});
    return blocks_;
}

std::vector<SourceBlock>& BlockFinder::single(std::vector<Contribution>& contributions) {
    std::sort(contributions.begin(), contributions.end(), [](const Contribution& x, const Contribution& y) {
        const bool off_x = x.row != x.col, off_y = y.row != y.col;
        return std::tie(x.kind, off_x, x.source, x.row, x.col) < std::tie(y.kind, off_y, y.source, y.row, y.col);
    });
    blocks_.clear();
    for (const Contribution& c : contributions) blocks_.push_back({{c.kind, 0, c.row, c.col, 1, c.source}});
    return blocks_;
}

void BlockFinder::find_runs(const std::vector<Contribution>& contributions) {
    // How a contribution continues the one before it: along a row, along a column, or not at all.
    enum Step : char { kNot, kAlongRow, kAlongColumn };
    const std::size_t num = contributions.size();
    steps_.assign(num + 1, kNot);
    for (std::size_t k = 1; k < num; ++k) {
        const Contribution &x = contributions[k - 1], &y = contributions[k];
        if (x.kind != y.kind || y.source != x.source + 1) continue;
        if (y.row == x.row && y.col == x.col + 1) steps_[k] = kAlongRow;
        if (y.col == x.col && y.row == x.row + 1) steps_[k] = kAlongColumn;
    }
    runs_.clear();
    for (std::size_t k = 0; k < num;) {
        std::size_t end = k + 1;
        // In (0, 0), (0, 1), (1, 1) the second belongs to the third: both are the next column of a packed triangle.
        const bool starts_triangle = steps_[end] == kAlongRow && end + 1 < num && steps_[end + 1] == kAlongColumn;
        while (!starts_triangle && end < num && steps_[end] != kNot && steps_[end] == steps_[k + 1]) ++end;
        const Contribution& c = contributions[k];
        const bool transposed = end - k > 1 ? steps_[k + 1] == kAlongColumn : c.kind == kPP || c.kind == kR;
        const Index outer = transposed ? c.col : c.row, inner = transposed ? c.row : c.col;
        runs_.push_back({c.kind, transposed, outer, inner, static_cast<Count>(end - k), c.source});
        k = end;
    }
}

Index cover_rows(std::vector<SourceBlock>& blocks, Count q, Count n) {
    const auto begin =
        std::find_if(blocks.begin(), blocks.end(), [](const SourceBlock& k) { return k.first.kind == kR; });
    if (begin == blocks.end()) return 0;
    std::vector<char> covered(u(q * n), 0);
    Count missing = q * n - q * (q - 1) / 2;
    bool inside = true;
    const auto end = std::stable_partition(begin, blocks.end(), [&](const SourceBlock& k) {
        const auto each = [&](auto visit) {
            for (Count i = 0; i < k.rows; ++i)
                for (Count j = 0; j < k.first.length + i * k.dlen; ++j) {
                    const Count outer = k.first.outer + i, inner = k.first.inner + j;
                    const Count row = k.first.transposed ? inner : outer, col = k.first.transposed ? outer : inner;
                    inside = inside && row < q;
                    if (!inside || !visit(covered[u(row * n + col)])) return false;
                }
            return true;
        };
        if (!each([](char& is_covered) { return !is_covered; })) return false;
        each([&](char& is_covered) { return --missing, is_covered = 1; });
        return true;
    });
    return missing || !inside ? 0 : narrow(end - begin);
}

}  // namespace gnewt
