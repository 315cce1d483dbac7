// Runs the engine, without Python or JAX, on problems that tests/helpers/dump_native.py wrote to files: for sanitizers
// and for timing. With --time it prints for each problem the status, the inertia, a checksum and the shortest time. With
// --threads eight threads take the problems at once, alone and in batches that more threads share.
#include <time.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "../engine/pack_call.hpp"
#include "../engine/threads.hpp"

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

struct NoPool {
    int64_t num_threads() const { return 0; }
    template <class Task>
    void Schedule(Task) {}
};

// Sixteen copies of a problem with shifts of their own, in packs that threads share; return whether all solutions are
// those of a call alone.
bool replay_batch(const Problem& p) {
    constexpr int64_t copies = 16;
    const size_t n = p.rhs.size();
    std::vector<double> x(copies * n), factor(size_t(copies * p.factor_len)), real(copies * kRealSize), alone(n);
    std::vector<int32_t> index(size_t(copies * p.index_len)), info(copies * kInfoSize);
    std::vector<int8_t> null(size_t(copies * p.num_unknowns));
    std::vector<Call<double>> calls;
    for (int64_t i = 0; i < copies; ++i)
        calls.push_back({p.plan.data(), int64_t(p.plan.size()), p.sources.data(), int64_t(p.sources.size()),
                         p.shift + double(i % 2), p.rhs.data(), p.num_inputs, p.columns, x.data() + i * int64_t(n),
                         factor.data() + i * p.factor_len, p.factor_len, index.data() + i * p.index_len, p.index_len,
                         info.data() + i * kInfoSize, real.data() + i * kRealSize, null.data() + i * p.num_unknowns});
    NoPool pool;
    share(pool, copies / kMostInPack,
          [&](int64_t chunk) { factor_many(calls.data() + chunk * kMostInPack, kMostInPack); });
    bool good = true;
    for (int64_t i = 0; i < copies; ++i) {
        Call<double> call = calls[size_t(i)];
        call.solution = alone.data();
        const int32_t status = call.info[kStatus], delayed = call.info[kDelayed];
        run(chosen_engine(), call);
        double size = 0, gap = 0;
        for (size_t k = 0; k < n; ++k) {
            const double d = alone[k] - x[size_t(i) * n + k];
            size = alone[k] * alone[k] > size ? alone[k] * alone[k] : size, gap = d * d > gap ? d * d : gap;
        }
        good &= status == call.info[kStatus] && delayed == call.info[kDelayed];
        good &= status != kOk || gap <= 1e-6 * size;
    }
    return good;
}

int replay_by_threads(const char* name) {
    std::FILE* file = std::fopen(name, "rb");
    if (!file) return 2;
    std::vector<Problem> problems;
    for (Problem p; next(file, p);) problems.push_back(p);
    std::fclose(file);
    std::atomic<int> bad{0};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 8; ++t)
        threads.emplace_back([&, t] {  // each of them begins at another problem, but all take all
            for (size_t i = 0; i < problems.size(); ++i) {
                const Problem& p = problems[(i + t * problems.size() / 8) % problems.size()];
                bad += !replay<double>(p, false, name);
                if (i % 4 == 0) bad += !replay_batch(p);
            }
        });
    for (std::thread& thread : threads) thread.join();
    std::printf("replay: %zu problems by 8 threads, %d wrong\n", problems.size(), bad.load());
    return bad ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 2 && std::strcmp(argv[1], "--threads") == 0) return replay_by_threads(argv[2]);
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
