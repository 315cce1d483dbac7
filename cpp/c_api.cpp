// The C interface: plain arrays in, status codes out. No exception crosses it; no state is kept.
#include <algorithm>
#include <memory>
#include <new>

#include "planner.hpp"

#if defined(_WIN32)
#define GNEWT_API extern "C" __declspec(dllexport)
#else
#define GNEWT_API extern "C" __attribute__((visibility("default")))
#endif

using namespace gnewt;

namespace {

// Statuses, as src/gnewt/_native.py knows them.
enum Status : int { kOk = 0, kOutOfMemory = 1, kInvalidInput = 2, kFailed = 3, kOverLimit = 4 };

template <class F>
int guarded(F body) noexcept {
    try {
        body();
        return kOk;
    } catch (const std::bad_alloc&) {
        return kOutOfMemory;
    } catch (const InvalidInput&) {
        return kInvalidInput;
    } catch (const OverLimit&) {
        return kOverLimit;
    } catch (...) {
        return kFailed;
    }
}

Rows rows(Count num, const Count* ptr, const Index* idx) {
    return {{ptr, num + 1}, {idx, ptr[num]}};
}

template <class T>
void copy(const std::vector<T>& from, T* to) {
    std::copy(from.begin(), from.end(), to);
}

}  // namespace

// Counts changes of this interface; the loader refuses a library that speaks another one.
GNEWT_API int gnewt_abi_version() { return 3; }

// `num_readers` is 0 for a free order, otherwise `num`.
GNEWT_API int gnewt_greedy_order(int use_fill, Count num, const Count* ptr, const Index* idx, const Count* sizes,
                                 Count num_readers, const Count* reads_ptr, const Index* reads_idx, Count wide,
                                 Index* order, Count* tail) {
    return guarded([&] {
        *tail = greedy_order(use_fill ? Rule::min_fill : Rule::min_degree, rows(num, ptr, idx), {sizes, num},
                             rows(num_readers, reads_ptr, reads_idx), wide, {order, num});
    });
}

// The size of a tree is known only when it is there: make it, ask, copy it out, free it.
GNEWT_API int gnewt_tree_make(Count num_items, const Count* ptr, const Index* idx, Count num, const Index* order,
                              Count tail, const Index* vertex_of_item, Count limit, Tree** tree,
                              Count* num_bags, Count* num_separator) {
    return guarded([&] {
        auto made = std::make_unique<Tree>(
            decompose(rows(num_items, ptr, idx), {order, num}, tail, {vertex_of_item, num_items}, limit));
        *num_bags = static_cast<Count>(made->parent.size());
        *num_separator = static_cast<Count>(made->separator_idx.size());
        *tree = made.release();
    });
}

GNEWT_API void gnewt_tree_copy(const Tree* tree, Index* parent, Count* frontal_ptr, Index* frontal_idx,
                               Count* separator_ptr, Index* separator_idx) {
    copy(tree->parent, parent);
    copy(tree->frontal_ptr, frontal_ptr);
    copy(tree->frontal_idx, frontal_idx);
    copy(tree->separator_ptr, separator_ptr);
    copy(tree->separator_idx, separator_idx);
}

GNEWT_API void gnewt_tree_free(Tree* tree) { std::unique_ptr<Tree>(tree).reset(); }

GNEWT_API int gnewt_merge_fronts(int causal, Count num, const Index* parent, const Count* p, const Count* q,
                                 const Count* b, const Count* reads, const Count* link_ptr, const Index* link_bag,
                                 const Count* link_reads, const Count* sep_ptr, const Index* sep_bag,
                                 const Count* sep_pairs, Count* top) {
    return guarded([&] {
        const Bags bags{causal != 0, {parent, num}, {p, num}, {q, num}, {b, num}, {reads, num},
                        rows(num, link_ptr, link_bag), {link_reads, link_ptr[num]},
                        rows(num, sep_ptr, sep_bag), {sep_pairs, sep_ptr[num]}};
        merge_fronts(bags, {top, num});
    });
}

// `target` has num_nonzeros elements; so have entry_row and entry_col, of which the first *num_entries are set.
GNEWT_API int gnewt_place_entries(Count num_fronts, const Count* elim_ptr, const Count* sep_ptr,
                                  const Count* sep_position, Count num_unknowns, const Count* position,
                                  Count num_nonzeros, const Index* a, const Index* b, Count* target, Count* entry_ptr,
                                  Index* entry_row, Index* entry_col, Count* num_entries) {
    return guarded([&] {
        const Fronts fronts{{elim_ptr, num_fronts + 1}, {sep_ptr, num_fronts + 1}, {sep_position, sep_ptr[num_fronts]}};
        *num_entries = place_entries(fronts, {position, num_unknowns}, {a, num_nonzeros}, {b, num_nonzeros},
                                     {target, num_nonzeros}, {entry_ptr, num_fronts + 1}, {entry_row, num_nonzeros},
                                     {entry_col, num_nonzeros});
    });
}

GNEWT_API int gnewt_instance_levels(Count num_sequence, const Count* sequence, Count num, const Count* arg_ptr,
                                    const Index* arg_idx, const Count* out_ptr, const Index* out_idx, Count num_slots,
                                    Count* slot_level, Count* level) {
    return guarded([&] {
        instance_levels({sequence, num_sequence}, rows(num, arg_ptr, arg_idx), rows(num, out_ptr, out_idx),
                        {slot_level, num_slots}, {level, num});
    });
}
