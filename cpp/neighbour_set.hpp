#pragma once

#include <vector>

#include "planner.hpp"

namespace gnewt {

// A set of vertices: open addressing, linear probing, at most half full. A hub with 10^5 neighbours loses
// and gains them one at a time, so neither sorted vectors nor rebuilt ones would do.
class NeighbourSet {
public:
    Count size() const { return size_; }

    void reserve(Count n) {
        Count capacity = 4;
        while (capacity < 2 * n) capacity *= 2;
        if (capacity > static_cast<Count>(table_.size())) rehash(capacity);
    }

    bool contains(Index v) const {
        if (table_.empty()) return false;
        for (std::size_t i = home(v); table_[i] != kEmpty; i = next(i))
            if (table_[i] == v) return true;
        return false;
    }

    // Returns whether v is new.
    bool insert(Index v) {
        if (2 * (size_ + 1) > static_cast<Count>(table_.size())) reserve(size_ + 1);
        std::size_t i = home(v);
        for (; table_[i] != kEmpty; i = next(i))
            if (table_[i] == v) return false;
        table_[i] = v;
        ++size_;
        return true;
    }

    void erase(Index v) {
        if (table_.empty()) return;
        std::size_t hole = home(v);
        for (; table_[hole] != v; hole = next(hole))
            if (table_[hole] == kEmpty) return;
        // Close the gap: an entry may move back unless its home lies cyclically after the hole.
        const std::size_t mask = table_.size() - 1;
        for (std::size_t i = next(hole); table_[i] != kEmpty; i = next(i)) {
            if (((i - home(table_[i])) & mask) >= ((i - hole) & mask)) {
                table_[hole] = table_[i];
                hole = i;
            }
        }
        table_[hole] = kEmpty;
        --size_;
    }

    template <class F>
    void for_each(F visit) const {
        for (Index v : table_)
            if (v != kEmpty) visit(v);
    }

    // Empty the set and give its memory back.
    void release() {
        std::vector<Index>().swap(table_);
        size_ = 0;
    }

private:
    static constexpr Index kEmpty = -1;

    std::size_t home(Index v) const {
        return static_cast<std::size_t>((static_cast<std::uint32_t>(v) * 2654435769u) >> shift_) & (table_.size() - 1);
    }
    std::size_t next(std::size_t i) const { return (i + 1) & (table_.size() - 1); }

    void rehash(Count capacity) {
        std::vector<Index> old(static_cast<std::size_t>(capacity), kEmpty);
        old.swap(table_);
        int bits = 0;
        while ((Count{1} << bits) < capacity && bits < 31) ++bits;
        shift_ = static_cast<std::uint32_t>(32 - bits);
        size_ = 0;
        for (Index v : old)
            if (v != kEmpty) insert(v);
    }

    std::vector<Index> table_;
    Count size_ = 0;
    std::uint32_t shift_ = 30;
};

}  // namespace gnewt
