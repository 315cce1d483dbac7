// Numbers of eight problems side by side: entry i of all problems is one vector, with a lane for each problem. Used by
// packs (pack.hpp, linearize_pack.hpp).
#pragma once
#include "eight.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

constexpr int kLanesOfPack = 8;

// A pointer for each problem of a pack; null where nothing is to be written.
template <class T>
struct LanePointers {
    T* at[kLanesOfPack] = {};
};

// Columns become rows: entries 0 to n - 1 of all problems.
template <class T>
inline void interleave(const LanePointers<const T>& from, int64_t n, Eight<T>* to) {
    T* out = reinterpret_cast<T*>(to);
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int lane = 0; lane < kLanesOfPack; lane += 4) {
            Quad<T> a = load4(from.at[lane] + i), b = load4(from.at[lane + 1] + i), c = load4(from.at[lane + 2] + i),
                    d = load4(from.at[lane + 3] + i);
            transpose<T>(a, b, c, d);
            T* at = out + i * kLanesOfPack + lane;
            store4(at, a);
            store4(at + kLanesOfPack, b);
            store4(at + 2 * kLanesOfPack, c);
            store4(at + 3 * kLanesOfPack, d);
        }
    for (; i < n; ++i)
        for (int lane = 0; lane < kLanesOfPack; ++lane) out[i * kLanesOfPack + lane] = from.at[lane][i];
}

// Rows become columns.
template <class T>
inline void separate(const Eight<T>* from, int64_t n, const LanePointers<T>& to) {
    const T* in = reinterpret_cast<const T*>(from);
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int lane = 0; lane < kLanesOfPack; lane += 4) {
            const T* at = in + i * kLanesOfPack + lane;
            Quad<T> rows[] = {load4(at), load4(at + kLanesOfPack), load4(at + 2 * kLanesOfPack),
                              load4(at + 3 * kLanesOfPack)};
            transpose<T>(rows[0], rows[1], rows[2], rows[3]);
            for (int k = 0; k < 4; ++k)
                if (to.at[lane + k]) store4(to.at[lane + k] + i, rows[k]);
        }
    for (; i < n; ++i)
        for (int lane = 0; lane < kLanesOfPack; ++lane)
            if (to.at[lane]) to.at[lane][i] = in[i * kLanesOfPack + lane];
}

// The lanes in which a comparison holds, as bits.
template <class Mask>
inline unsigned bits(const Mask& mask) {
    unsigned found = 0;
    for (int lane = 0; lane < kLanesOfPack; ++lane) found |= unsigned(mask[lane] != 0) << lane;
    return found;
}

// How many rows and columns of sums the registers hold.
#if defined(__AVX512F__)
constexpr int kPackRows = 4, kPackColumns = 4;
#else
constexpr int kPackRows = 1, kPackColumns = 4;
#endif

// A matrix of vectors, row by row.
template <class V>
struct PackView {
    V* at;
    int64_t ld;
};

template <class V, int M, int N, bool SUBTRACT>
GNEWT_INLINE void product_tile(int64_t depth, PackView<const V> a, PackView<const V> b, PackView<V> c) {
    V sums[M][N];
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) sums[i][j] = c.at[i * c.ld + j];
    for (int64_t x = 0; x < depth; ++x) {
        const V *left = a.at + x * a.ld, *right = b.at + x * b.ld;
#pragma GCC unroll 4
        for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < N; ++j)
                if constexpr (SUBTRACT)
                    sums[i][j] -= left[i] * right[j];
                else
                    sums[i][j] += left[i] * right[j];
    }
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) c.at[i * c.ld + j] = sums[i][j];
}

// C += AᵀB, or C -= AᵀB, in `rows` rows and `cols` columns. UPPER: at least in the upper triangle.
template <class V, bool UPPER, bool SUBTRACT>
inline void add_product(int64_t depth, PackView<const V> a, PackView<const V> b, PackView<V> c, int64_t rows,
                        int64_t cols) {
    for (int64_t i = 0; i < rows; i += kPackRows)
        with_rows<kPackRows>(min<int64_t>(kPackRows, rows - i), [&](const auto m) GNEWT_LAMBDA {
            constexpr int height = int(decltype(m)::value);
            const auto tile = [&](int64_t j, const auto n) GNEWT_LAMBDA {
                constexpr int width = int(decltype(n)::value);
                product_tile<V, height, width, SUBTRACT>(depth, {a.at + i, a.ld}, {b.at + j, b.ld},
                                                         {c.at + i * c.ld + j, c.ld});
            };
            int64_t j = UPPER ? i : 0;
            for (; j + kPackColumns <= cols; j += kPackColumns) tile(j, Length<kPackColumns>{});
            if (j < cols) with_rows<kPackColumns - 1>(cols - j, [&](const auto n) GNEWT_LAMBDA { tile(j, n); });
        });
}

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
