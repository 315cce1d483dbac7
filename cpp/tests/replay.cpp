// Runs the engine, without Python or JAX, on problems that tests/helpers/dump_native.py wrote to files: for sanitizers
// and for timing. With --time it prints for each problem the status, the inertia, a checksum and the shortest time.
#include <time.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "../engine/call.hpp"

using namespace gnewt::engine;

namespace {

double now() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

template <class T>
std::vector<T> read(std::FILE* file, int64_t count) {
    std::vector<T> out(static_cast<size_t>(count));
    if (std::fread(out.data(), sizeof(T), out.size(), file) != out.size()) throw "the file is too short";
    return out;
}

struct Problem {
    std::vector<int32_t> plan;
    std::vector<double> sources, rhs;
    double shift;
    int64_t num_inputs, columns, num_unknowns, factor_len, index_len;
};

enum { kPlanLen, kSourcesLen, kInputs, kColumns, kUnknowns, kFactorLen, kIndexLen, kFields };

bool next(std::FILE* file, Problem& p) {
    int64_t head[kFields];
    if (std::fread(head, sizeof head, 1, file) != 1) return false;
    p.plan = read<int32_t>(file, head[kPlanLen]);
    p.sources = read<double>(file, head[kSourcesLen]);
    p.shift = read<double>(file, 1)[0];
    p.rhs = read<double>(file, head[kInputs] * head[kColumns]);
    p.num_inputs = head[kInputs], p.columns = head[kColumns], p.num_unknowns = head[kUnknowns];
    p.factor_len = head[kFactorLen], p.index_len = head[kIndexLen];
    return true;
}

void run(const Engine& e, const Call<double>& c) { e.factor_f64(c); }
void run(const Engine& e, const Call<float>& c) { e.factor_f32(c); }
void run(const Engine& e, const SolveCall<double>& c) { e.solve_f64(c); }
void run(const Engine& e, const SolveCall<float>& c) { e.solve_f32(c); }

// Factor and solve, then solve again; return whether both agree where the factor was kept.
template <class T>
bool replay(const Problem& p, bool timed, const char* name) {
    const Engine& engine = chosen_engine();
    const std::vector<T> sources(p.sources.begin(), p.sources.end()), rhs(p.rhs.begin(), p.rhs.end());
    std::vector<T> x(rhs.size()), again(rhs.size()), factor(size_t(p.factor_len)), real(kRealSize);
    std::vector<int32_t> index(size_t(p.index_len)), info(kInfoSize);
    std::vector<int8_t> null(size_t(p.num_unknowns));
    const Call<T> call{p.plan.data(),  int64_t(p.plan.size()),
                       sources.data(), int64_t(sources.size()),
                       T(p.shift),     rhs.data(),
                       p.num_inputs,   p.columns,
                       x.data(),       factor.data(),
                       p.factor_len,   index.data(),
                       p.index_len,    info.data(),
                       real.data(),    null.data()};
    run(engine, call);
    run(engine, SolveCall<T>{p.plan.data(), int64_t(p.plan.size()), sources.data(), int64_t(sources.size()),
                             factor.data(), p.factor_len, index.data(), p.index_len, info.data(), real.data(),
                             rhs.data(), p.num_inputs, p.columns, again.data()});
    double best = 1e9;
    for (int i = 0; timed && i < 300; ++i) {
        const double start = now();
        run(engine, call);
        const double t = now() - start;
        if (t < best) best = t;
    }
    T size = 0, gap = 0, sum = 0;
    for (size_t i = 0; i < x.size(); ++i) {
        const T a = x[i] < 0 ? -x[i] : x[i], d = x[i] - again[i];
        size = a > size ? a : size;
        sum += a;
        gap = d * d > gap * gap ? d : gap;
    }
    const bool good = info[kStatus] != kOk || gap * gap <= T(1e-6) * size * size;
    if (timed)
        std::printf("%s %s: status %d inertia %d %d %d delayed %d sum %.15g time %.3f us\n", name, engine.isa,
                    info[kStatus], info[kPositive], info[kNegative], info[kZero], info[kDelayed], double(sum),
                    best * 1e6);
    return good;
}

}  // namespace

int main(int argc, char** argv) {
    const bool timed = argc > 1 && std::strcmp(argv[1], "--time") == 0;
    int64_t count = 0, bad = 0;
    for (int i = timed ? 2 : 1; i < argc; ++i) {
        std::FILE* file = std::fopen(argv[i], "rb");
        if (!file) {
            std::fprintf(stderr, "replay: cannot open %s\n", argv[i]);
            return 2;
        }
        Problem p;
        for (; next(file, p); ++count) {
            bad += !replay<double>(p, timed, argv[i]);
            if (!timed) replay<float>(p, false, argv[i]);
        }
        std::fclose(file);
    }
    std::printf("replay: %lld problems, %lld where a second solve differs\n", static_cast<long long>(count),
                static_cast<long long>(bad));
    return bad ? 1 : 0;
}
