// Chunks of a batch, shared by several threads: those of a pool, where the host offers one, else a few of their own. The
// thread of the call works too, and waits for nothing but chunks that others have begun: calls that wait for each other
// in one pool cannot block it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#if defined(__linux__)
#include <sched.h>
#endif

namespace gnewt::engine {

// Cores that this process may use: one where it is pinned to one.
inline int64_t usable_cores() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    const unsigned count = std::thread::hardware_concurrency();
    return count ? int64_t(count) : 1;
}

// Work of which threads take chunk after chunk. `run` is not called any more once all chunks are taken, so that a
// thread may come as late as it likes.
class Chunks {
public:
    Chunks(int64_t count, std::function<void(int64_t)> run) : run_(std::move(run)), count_(count) {}

    void work() {
        int64_t mine = 0;
        for (int64_t chunk; (chunk = next_.fetch_add(1)) < count_; ++mine) run_(chunk);
        if (!mine) return;
        const std::lock_guard<std::mutex> lock(mutex_);
        done_ += mine;
        if (done_ == count_) all_done_.notify_all();
    }
    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        all_done_.wait(lock, [this] { return done_ == count_; });
    }

private:
    const std::function<void(int64_t)> run_;
    const int64_t count_;
    std::atomic<int64_t> next_{0};
    int64_t done_ = 0;
    std::mutex mutex_;
    std::condition_variable all_done_;
};

// Call run(chunk) for all chunks. `pool`: num_threads(), zero where there is none, and Schedule(task).
template <class Pool, class Run>
void share(Pool& pool, int64_t count, Run run) {
    int64_t threads = count > 1 ? usable_cores() : 1;
    const int64_t offered = threads > 1 ? pool.num_threads() : 0;
    if (offered > 0 && offered < threads) threads = offered;
    if (count < threads) threads = count;
    if (threads <= 1) {
        for (int64_t chunk = 0; chunk < count; ++chunk) run(chunk);
        return;
    }
    const auto chunks = std::make_shared<Chunks>(count, run);
    std::vector<std::thread> own;
    for (int64_t i = 1; i < threads; ++i) {
        if (offered > 0)
            pool.Schedule([chunks] { chunks->work(); });
        else
            own.emplace_back([chunks] { chunks->work(); });
    }
    chunks->work();
    chunks->wait();
    for (std::thread& thread : own) thread.join();
}

}  // namespace gnewt::engine
