// Fronts that were eliminated carefully leave a record: their pivots are not where the plan says.
#pragma once
#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// One record after the other, fronts ascending. Integers: front, rows taken, rows n, rows that are null, whether L stands where the plan has room for it;
// names of the n rows with the taken ones first, names of the null ones, length of all this. Numbers: L [taken, n] with D on its diagonal,
// if it is not elsewhere; off-diagonal of D.
template <class T>
struct Records {
    const int32_t* index;
    const T* numbers;
    int64_t index_end, numbers_end;
};

constexpr int64_t kRecordHeader = 5;

// Goes over records, forwards or backwards; `front` is -1 behind the last.
template <class T>
struct RecordWalk {
    RecordWalk(const Records<T>& records, bool backwards)
        : all_(records), index_(backwards ? records.index_end : 0), numbers_(backwards ? records.numbers_end : 0) {}

    void next() {
        if (index_ == all_.index_end) {
            front = -1;
            return;
        }
        read();
        index_ += kRecordHeader + n + nulls + 1;
        numbers_ += size();
    }

    void previous() {
        if (index_ == 0) {
            front = -1;
            return;
        }
        index_ -= all_.index[index_ - 1];
        read();
        numbers_ -= size();
        read();
    }

    // The rows of L; `planned`: where the plan has them.
    const T* rows(const T* planned) const { return l_ ? l_ : planned; }

    int64_t front = -1, taken = 0, n = 0, nulls = 0;
    const int32_t *ids = nullptr, *null_ids = nullptr;
    const T* off = nullptr;

private:
    void read() {
        const int32_t* at = all_.index + index_;
        front = at[0];
        taken = at[1];
        n = at[2];
        nulls = at[3];
        ids = at + kRecordHeader;
        null_ids = ids + n;
        l_ = at[4] ? nullptr : all_.numbers + numbers_;
        off = all_.numbers + numbers_ + size() - taken;
    }
    int64_t size() const { return l_ ? taken * (n + 1) : taken; }

    const T* l_ = nullptr;
    const Records<T> all_;
    int64_t index_, numbers_;
};

template <class T>
inline void zero_null(const Records<T>& records, T* z, int64_t columns) {
    RecordWalk<T> record(records, false);
    for (record.next(); record.front >= 0; record.next())
        for (int64_t i = 0; i < record.nulls; ++i)
            for (int64_t c = 0; c < columns; ++c) z[record.null_ids[i] * columns + c] = 0;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
