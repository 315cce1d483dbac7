// Blocks of sources: rectangles, packed triangles, transposed; placed whole, by their diagonal, or asked for one entry.
#include <vector>

#include "check.hpp"
#include "random.hpp"

#include "../engine/blocks.hpp"

using namespace gnewt::engine::GNEWT_ISA;

int main() {
    if (!check::runs_here()) return check::skip("blocks");
    Random random(5);
    const int64_t n = 24, ld = 32;
    for (int trial = 0; trial < 4000; ++trial) {
        Block k{};
        k.transposed = int32_t(random.below(2));
        k.rows = int32_t(1 + random.below(8));
        k.dlen = int32_t(random.below(3)) - 1;
        k.len = int32_t(1 + random.below(8)) + (k.dlen < 0 ? k.rows - 1 : 0);
        k.dstep = int32_t(random.below(2));
        k.step = int32_t(k.len + (k.dlen > 0 ? k.rows : 0) + random.below(3));
        k.row = int32_t(random.below(4)), k.col = int32_t(random.below(4));
        std::vector<double> src(size_t(k.rows * (k.step + k.rows * (k.dstep + 1)) + 64));
        for (double& x : src) x = random.uniform();

        std::vector<double> expected(size_t(n * ld)), added(size_t(n * ld), 1.0), written(size_t(n * ld)),
            diagonal(size_t(n + 8));
        int64_t at = 0, count = 0;
        for (int64_t i = 0, step = k.step; i < k.rows; ++i, at += step, step += k.dstep)
            for (int64_t j = 0; j < k.len + i * k.dlen; ++j, ++count) {
                const int64_t row = k.transposed ? k.row + j : k.row + i, col = k.transposed ? k.col + i : k.col + j;
                expected[size_t(row * ld + col)] = src[size_t(at + j)];
            }
        place<double, true>(k, src.data(), added.data(), ld);
        place<double, false>(k, src.data(), written.data(), ld);
        place_diagonal(k, src.data(), diagonal.data());
        for (int64_t i = 0; i < n; ++i)
            for (int64_t j = 0; j < n; ++j) {
                const double v = expected[size_t(i * ld + j)];
                CHECK(written[size_t(i * ld + j)] == v);
                CHECK(added[size_t(i * ld + j)] == 1.0 + v);
                CHECK(magnitude_at(k, src.data(), i, j) == abs(v));
                if (i == j) CHECK(diagonal[size_t(i)] == abs(v));
            }
        int64_t visited = 0;
        for_each(k, src.data(), [&](int64_t i, int64_t j, double v) {
            CHECK(expected[size_t(i * ld + j)] == v);
            ++visited;
        });
        CHECK(visited == count);
    }
    return check::finish("blocks");
}
