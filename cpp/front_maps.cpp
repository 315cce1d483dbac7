// Assembly maps; see plan/fronts.py.
#include <algorithm>

#include "planner.hpp"

namespace gnewt {

Count place_entries(const Fronts& fronts, Span<const Count> position, Span<const Index> a, Span<const Index> b,
                    Span<Count> target, Span<Count> entry_ptr, Span<Index> entry_row, Span<Index> entry_col) {
    const Count num_fronts = fronts.elim_ptr.size - 1;
    const Count num_unknowns = fronts.elim_ptr[num_fronts];
    if (position.size != num_unknowns || a.size >= Count{1} << 32) throw InvalidInput("arrays of wrong lengths");
    for (Count at : position)
        if (at < 0 || at >= num_unknowns) throw InvalidInput("a position out of range");
    const auto is_unknown = [&](Index i) { return 0 <= i && i < num_unknowns; };

    // A counting sort by the earlier unknown; few nonzeros share one, so the rest is many small sorts.
    std::vector<Count> start(u(num_unknowns + 1), 0);
    for (Count i = 0; i < a.size; ++i) {
        if (!is_unknown(a[i]) || !is_unknown(b[i])) throw InvalidInput("a nonzero outside of K");
        ++start[u(std::min(position[a[i]], position[b[i]]) + 1)];
    }
    for (Count c = 0; c < num_unknowns; ++c) start[u(c + 1)] += start[u(c)];
    std::vector<std::uint64_t> sorted(u(a.size));  // (position of the later unknown, number of the nonzero)
    {
        std::vector<Count> next(start.begin(), start.end() - 1);
        for (Count i = 0; i < a.size; ++i) {
            const auto [early, late] = std::minmax(position[a[i]], position[b[i]]);
            sorted[u(next[u(early)]++)] = static_cast<std::uint64_t>(late) << 32 | static_cast<std::uint64_t>(i);
        }
    }

    Count entries = 0;
    for (Count front = 0; front < num_fronts; ++front) {
        const Count first = fronts.elim_ptr[front], last = fronts.elim_ptr[front + 1];
        const Count* separator = fronts.sep_position.data + fronts.sep_ptr[front];
        const Count* separator_end = fronts.sep_position.data + fronts.sep_ptr[front + 1];
        entry_ptr[front] = entries;
        for (Count column = first; column < last; ++column) {
            const auto begin = sorted.begin() + start[u(column)], end = sorted.begin() + start[u(column + 1)];
            std::sort(begin, end);
            Count previous = -1;
            for (auto nonzero = begin; nonzero != end; ++nonzero) {
                const Count late = static_cast<Count>(*nonzero >> 32);
                if (late != previous) {
                    previous = late;
                    Count row = late - first;
                    if (late >= last) {
                        const Count* place = std::lower_bound(separator, separator_end, late);
                        if (place == separator_end || *place != late)
                            throw InvalidInput("a nonzero outside of its front");
                        row = last - first + (place - separator);
                    }
                    entry_row[entries] = static_cast<Index>(row);
                    entry_col[entries] = static_cast<Index>(column - first);
                    ++entries;
                }
                target[static_cast<Count>(*nonzero & 0xFFFFFFFFu)] = entries - 1;
            }
        }
    }
    entry_ptr[num_fronts] = entries;
    return entries;
}

}  // namespace gnewt
