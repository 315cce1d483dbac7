// The C interface: plain arrays in, status codes out. No exception crosses it; no state is kept.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "plan_writer.hpp"
#include "planner.hpp"

#if defined(_WIN32)
#define GNEWT_API extern "C" __declspec(dllexport)
#else
#define GNEWT_API extern "C" __attribute__((visibility("default")))
#endif

using namespace gnewt;

namespace {

// What a call says of itself: PlannerStatus of src/gnewt/_native.py.
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

Rows rows(Count num, const Count* ptr, const Index* idx) { return {{ptr, num + 1}, {idx, ptr[num]}}; }

template <class T>
void copy(const std::vector<T>& from, T* to) {
    std::copy(from.begin(), from.end(), to);
}

}  // namespace

// Name of a status, null for a number that has none: tests compare them with those of Python.
GNEWT_API const char* gnewt_planner_status_name(int number) {
    static const char* const names[] = {"ok", "out of memory", "invalid input", "failed", "over limit"};
    static_assert(sizeof names / sizeof *names == kOverLimit + 1, "every status has a name");
    return 0 <= number && number <= kOverLimit ? names[number] : nullptr;
}

// Counts changes of this interface, and of what the engine returns (engine/call.hpp); the loader refuses a library that
// speaks another one.
GNEWT_API int gnewt_abi_version() { return 5; }

GNEWT_API int gnewt_join_pairs(Count num, Count num_pairs, const Count* a, const Count* b, int symmetric, Count* ptr,
                               Index* idx, Count* num_kept) {
    return guarded([&] {
        const Count room = symmetric ? 2 * num_pairs : num_pairs;
        *num_kept = join_pairs(num, {a, num_pairs}, {b, num_pairs}, symmetric != 0, {ptr, num + 1}, {idx, room});
    });
}

// `num_readers` is 0 for a free order, otherwise `num`. `tail` is -1 where the order costs more than `most` flops.
GNEWT_API int gnewt_greedy_order(int use_fill, Count num, const Count* ptr, const Index* idx, const Count* sizes,
                                 Count num_readers, const Count* reads_ptr, const Index* reads_idx, Count wide,
                                 Index* order, Count* tail, Count most) {
    return guarded([&] {
        *tail = greedy_order(use_fill ? Rule::min_fill : Rule::min_degree, rows(num, ptr, idx), {sizes, num},
                             rows(num_readers, reads_ptr, reads_idx), wide, {order, num}, most);
    });
}

// `num_readers` and `tail` as above.
GNEWT_API int gnewt_approximate_order(Count num, const Count* ptr, const Index* idx, const Count* sizes,
                                      Count num_readers, const Count* reads_ptr, const Index* reads_idx,
                                      const Index* stage, Index* order, Count* tail, Count most, Count patience) {
    return guarded([&] {
        *tail = approximate_order(rows(num, ptr, idx), {sizes, num}, rows(num_readers, reads_ptr, reads_idx),
                                  {stage, num}, {order, num}, most, patience);
    });
}

GNEWT_API int gnewt_dissect(Count num, const Count* ptr, const Index* idx, const Count* sizes, Index* stage,
                            Count most) {
    return guarded([&] {
        if (!dissect(rows(num, ptr, idx), {sizes, num}, {stage, num}, most))
            throw OverLimit("separators over the limit");
    });
}

// The size of a tree is known only when it is there: make it, ask, copy it out, free it.
GNEWT_API int gnewt_tree_make(Count num_items, const Count* ptr, const Index* idx, Count num, const Index* order,
                              Count tail, const Index* vertex_of_item, Count limit, Tree** tree, Count* num_bags,
                              Count* num_separator) {
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
                                 const Count* link_reads, const Count* sep_ptr, const Index* sep_item, Count num_items,
                                 const Index* bag_of_item, const Count* pairs_of_item, Count num_model,
                                 const Count* model, Count* top) {
    return guarded([&] {
        if (num_model != sizeof(TimeModel) / sizeof(Count)) throw InvalidInput("a model with other constants");
        TimeModel times;
        std::memcpy(&times, model, sizeof times);
        const Bags bags{causal != 0,
                        {parent, num},
                        {p, num},
                        {q, num},
                        {b, num},
                        {reads, num},
                        rows(num, link_ptr, link_bag),
                        {link_reads, link_ptr[num]},
                        rows(num, sep_ptr, sep_item),
                        {bag_of_item, num_items},
                        {pairs_of_item, num_items}};
        merge_fronts(bags, times, {top, num});
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

// Make a layout, ask for its size, copy it out, free it. `sizes` gets four numbers: the length of the array, how many
// numbers and how many integers a factor takes, and the unknowns of the largest front without its pairs.
GNEWT_API int gnewt_layout_make(Count num_inputs, Count num_slots, int causal, Count num_fronts, const Index* parent,
                                const Count* elim_ptr, const Index* elim_idx, const Count* sep_ptr,
                                const Index* sep_idx, const Index* sep_pos, const Count* entry_ptr,
                                const Index* entry_row, const Index* entry_col, Count num_nonzeros, const Count* source,
                                const Count* target, const Count* pair_entry, const Count* input_entry,
                                Count num_sources, EngineLayout** layout, Count* sizes) {
    return guarded([&] {
        const Count eliminated = elim_ptr[num_fronts], separator = sep_ptr[num_fronts], entries = entry_ptr[num_fronts];
        const PlanArrays plan{num_inputs,
                              num_slots,
                              causal != 0,
                              {parent, num_fronts},
                              {elim_ptr, num_fronts + 1},
                              {elim_idx, eliminated},
                              {sep_ptr, num_fronts + 1},
                              {sep_idx, separator},
                              {sep_pos, separator},
                              {entry_ptr, num_fronts + 1},
                              {entry_row, entries},
                              {entry_col, entries},
                              {source, num_nonzeros},
                              {target, num_nonzeros},
                              {pair_entry, num_slots - num_inputs},
                              {input_entry, num_inputs}};
        auto made = std::make_unique<EngineLayout>(lay_out_for_engine(plan, num_sources));
        sizes[0] = static_cast<Count>(made->array.size());
        sizes[1] = made->factor_size;
        sizes[2] = made->index_size;
        sizes[3] = made->max_rest;
        *layout = made.release();
    });
}

GNEWT_API void gnewt_layout_copy(const EngineLayout* layout, Index* array) { copy(layout->array, array); }

GNEWT_API void gnewt_layout_free(EngineLayout* layout) { std::unique_ptr<EngineLayout>(layout).reset(); }

GNEWT_API int gnewt_instance_levels(Count num_sequence, const Count* sequence, Count num, const Count* arg_ptr,
                                    const Index* arg_idx, const Count* out_ptr, const Index* out_idx, Count num_slots,
                                    Count* slot_level, Count* level) {
    return guarded([&] {
        instance_levels({sequence, num_sequence}, rows(num, arg_ptr, arg_idx), rows(num, out_ptr, out_idx),
                        {slot_level, num_slots}, {level, num});
    });
}
