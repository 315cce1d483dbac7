#include <algorithm>

#include "planner.hpp"

namespace gnewt {

void check_rows(const Rows& rows, Count bound) {
    if (rows.ptr.size < 1 || rows.ptr[0] != 0 || rows.ptr[rows.size()] != rows.idx.size)
        throw InvalidInput("row pointers that do not cover the indices");
    for (Count i = 0; i < rows.size(); ++i)
        if (rows.ptr[i] > rows.ptr[i + 1]) throw InvalidInput("row pointers that descend");
    for (Index i : rows.idx)
        if (i < 0 || i >= bound) throw InvalidInput("an index out of range");
}

Count join_pairs(Count num, Span<const Count> a, Span<const Count> b, bool symmetric, Span<Count> ptr,
                 Span<Index> idx) {
    const auto for_each = [&](auto visit) {
        for (Count i = 0; i < a.size; ++i) {
            if (a[i] == b[i]) continue;
            visit(a[i], b[i]);
            if (symmetric) visit(b[i], a[i]);
        }
    };
    std::vector<Count> next(u(num + 1), 0);
    for_each([&](Count row, Count col) {
        if (row < 0 || row >= num || col < 0 || col >= num) throw InvalidInput("a pair out of range");
        ++next[u(row + 1)];
    });
    for (Count row = 0; row < num; ++row) next[u(row + 1)] += next[u(row)];
    for_each([&](Count row, Count col) { idx[next[u(row)]++] = static_cast<Index>(col); });
    // next[row] is now where the row ends. Duplicates are dropped row by row, and the rows move together.
    Count begin = 0, kept = 0;
    ptr[0] = 0;
    for (Count row = 0; row < num; ++row) {
        const Count end = next[u(row)];
        std::sort(idx.begin() + begin, idx.begin() + end);
        Index* last = std::unique(idx.begin() + begin, idx.begin() + end);
        kept = std::copy(idx.begin() + begin, last, idx.begin() + kept) - idx.begin();
        ptr[row + 1] = kept;
        begin = end;
    }
    return kept;
}

}  // namespace gnewt
