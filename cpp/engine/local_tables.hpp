// Reading the tables of a structure: which slots the instances of a family read and define.
#pragma once
#include "linearize_call.hpp"
#include "vec.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// Which slot an argument or an output is, for every instance.
struct Column {
    const int32_t* field;
    const int32_t* tables;

    bool affine() const { return field[2] < 0; }
    int64_t start() const { return field[0]; }
    int64_t stride() const { return field[1]; }
    int64_t at(int64_t i) const { return affine() ? start() + stride() * i : tables[field[2] + i]; }
};

struct FamilyView {
    const int32_t* tables;
    const int32_t* field;

    FamilyView(const int32_t* t, int64_t f) : tables(t), field(t + kTablesHeader + f * kFamilySize) {}
    int64_t n() const { return field[kN]; }
    int64_t k() const { return field[kK]; }
    int64_t m() const { return field[kM]; }
    bool is_loss() const { return field[kOuts] < 0; }
    int64_t num_jac() const { return field[kNumJac]; }
    int64_t num_hess() const { return field[kNumHess]; }
    const int32_t* ends() const { return tables + field[kPattern]; }   // of the entries of each argument
    const int32_t* entries() const { return ends() + field[kK] + 1; }  // (place, output)
    Column arg(int64_t a) const { return {tables + field[kArgs] + a * kColumnSize, tables}; }
    Column out(int64_t o) const { return {tables + field[kOuts] + o * kColumnSize, tables}; }
    bool affine() const {
        for (int64_t a = 0; a < k(); ++a)
            if (!arg(a).affine()) return false;
        for (int64_t o = 0; o < m(); ++o)
            if (!out(o).affine()) return false;
        return true;
    }
};

// By vectors: the library's function, or the string instruction that compilers put in its place, costs more to begin.
template <class T>
GNEWT_INLINE void copy(const T* from, int64_t count, T* to) {
    int64_t i = 0;
    for (; i + kWidth<T> <= count; i += kWidth<T>) store<T>(to + i, load<T>(from + i));
    for (; i < count; ++i) to[i] = from[i];
}
// `count` is a multiple of the length of vectors.
template <class T>
GNEWT_INLINE void fill(T value, int64_t count, T* to) {
    for (int64_t i = 0; i < count; i += kWidth<T>) store<T>(to + i, Vec<T>{} + value);
}

// Read values of instances [first, first + count) into a place; what a vector holds beyond them is a copy of the first.
template <class T>
GNEWT_INLINE void pad(T* to, int64_t count) {
    for (int64_t i = count; i < padded<T>(count); ++i) to[i] = to[0];
}
template <class T>
inline void gather(const Column& column, const T* from, int64_t first, int64_t count, T* to) {
    if (!column.affine()) {
        const int32_t* index = column.tables + column.field[2] + first;
        for (int64_t i = 0; i < count; ++i) to[i] = from[index[i]];
    } else {
        const int64_t stride = column.stride();
        from += column.start() + stride * first;
        if (stride == 1)
            copy(from, count, to);
        else
            for (int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
    }
    pad(to, count);
}
template <class T>
inline void scatter_add(const Column& column, const T* from, int64_t first, int64_t count, T* to) {
    if (!column.affine()) {
        const int32_t* index = column.tables + column.field[2] + first;
        for (int64_t i = 0; i < count; ++i) to[index[i]] += from[i];
        return;
    }
    const int64_t stride = column.stride();
    to += column.start() + stride * first;
    if (stride == 0) {
        T total = 0;
        for (int64_t i = 0; i < count; ++i) total += from[i];
        to[0] += total;
    } else if (stride == 1) {
        for (int64_t i = 0; i < count; ++i) to[i] += from[i];
    } else {
        for (int64_t i = 0; i < count; ++i) to[i * stride] += from[i];
    }
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
