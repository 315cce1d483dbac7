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

}  // namespace gnewt
