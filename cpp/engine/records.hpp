// Records: what fronts leave whose pivots are not those of the plan. fronts.hpp writes records; solve.hpp and quick.hpp
// read the records on the way up and down the tree.
#pragma once
#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// The integers with which a record begins. Behind them stand the names of the n rows, those of the taken rows first,
// the names of the null rows, and the length of the whole record in integers.
struct RecordHeader {
    int32_t front, taken, n, nulls;
    int32_t planned;  // whether L stands where the plan has room for it
};
constexpr int64_t kRecordHeader = sizeof(RecordHeader) / sizeof(int32_t);

// Integers of a record.
inline int64_t record_length(int64_t n, int64_t nulls) { return kRecordHeader + n + nulls + 1; }

// All records, fronts ascending. Numbers of a record: L [taken, n] with D on its diagonal, if L is not where the plan
// has room for it; then the off-diagonal of D [taken].
template <class T>
struct Records {
    const int32_t* index;
    const T* numbers;
    int64_t index_end, numbers_end;
};

// Goes over records, forwards or backwards; `front` is -1 behind the last record.
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
        index_ += record_length(n, nulls);
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

    // The rows of L; `planned`: where the plan has room for them.
    const T* rows(const T* planned) const { return l_ ? l_ : planned; }

    int64_t front = -1, taken = 0, n = 0, nulls = 0;
    const int32_t *ids = nullptr, *null_ids = nullptr;
    const T* off = nullptr;

private:
    void read() {
        RecordHeader header;
        std::memcpy(&header, all_.index + index_, sizeof header);
        front = header.front;
        taken = header.taken;
        n = header.n;
        nulls = header.nulls;
        ids = all_.index + index_ + kRecordHeader;
        null_ids = ids + n;
        l_ = header.planned ? nullptr : all_.numbers + numbers_;
        off = all_.numbers + numbers_ + size() - taken;
    }
    int64_t size() const { return l_ ? taken * (n + 1) : taken; }

    const T* l_ = nullptr;
    const Records<T> all_;
    int64_t index_, numbers_;
};

// Set the null unknowns to zero.
template <class T>
inline void zero_null(const Records<T>& records, T* z, int64_t columns) {
    RecordWalk<T> record(records, false);
    for (record.next(); record.front >= 0; record.next())
        for (int64_t i = 0; i < record.nulls; ++i)
            for (int64_t c = 0; c < columns; ++c) z[record.null_ids[i] * columns + c] = 0;
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
