// The lines of a plan: where they are, and the elimination and the solution along them. Called by quick.hpp.
#pragma once
#include "line_ascent.hpp"
#include "solve.hpp"
#include "thin_line.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T, int VECTORS, bool NOISE>
__attribute__((noinline)) bool ascend_line(Course<T>& course, Line<T>& line, T* work, int32_t end) {
    LineAscent<T, VECTORS, NOISE> ascent(course, line);
    return ascent.run(work, end);
}

template <class T>
class Lines {
public:
    explicit Lines(Course<T>& course) : course_(course), plan_(course.plan) {}

    // Eliminate the next fronts if they are the rest of a line, up to the first one that is in doubt: whether the next
    // front was in a line. `good`: none was in doubt. With NOISE as the careful form does, else as the quick form does.
    template <bool NOISE>
    bool ascend(bool& good) {
        const LineRecord* line = find(course_.next);
        if (!line || line->first + line->count - course_.next < kShortest) return false;
        const int32_t end = line->first + line->count;
        if (!NOISE && open_thin(*line)) {
            good = thin_.ascend(course_, end);
            return true;
        }
        if (!open(*line)) return false;
        with_vectors([&](const auto number) {
            constexpr int vectors = int(decltype(number)::value);
            good = ascend_line<T, vectors, NOISE>(course_, line_, work_.data(), end);
        });
        return true;
    }

    // The solution in the fronts of a line from `last` back to the first one, or to the front behind `record`, the last
    // front that has a record; the front before those is returned, and `last` itself where it is in no line. What one
    // front hands to the next does not go through the slots. `factor`: behind the rows of L of the last front.
    int32_t descend(int32_t last, int32_t record, const T*& factor) {
        const LineRecord* line = find(last);
        if (!line) return last;
        const int32_t first = max(line->first, record + 1);
        if (open_thin(*line)) {
            thin_.descend(plan_, first, last, factor, course_.z.data());
            return first - 1;
        }
        if (!open(*line)) return last;
        const int64_t p = line_.p, q = line_.q, b = line_.b, n = line_.n;
        T *x = work_.data(), *next = x + p + n, *z = course_.z.data();
        const FrontRecord* front = plan_.fronts() + last;
        auto streams = line_.streams_of(course_.call.sources, last);
        const int32_t* slots = plan_.slots() + front->slots;
        gather(next + p + q, z, slots + p + q, b, 1);
        for (int32_t k = last; k >= first; --k, --front) {
            swap(x, next);
            slots = plan_.slots() + front->slots;
            factor -= q * n;
            gather(x + p, z, slots + p, q, 1);
            back_substitute_rows(q, n, {factor, n}, x + p);
            scatter(x + p, z, slots + p, q, 1);
            line_.read_pairs(streams, x);
            line_.advance(streams, -1);
            for (int64_t i = 0; i < b; ++i) next[p + q + i] = x[line_.coordinates[i]];
        }
        scatter(x, z, slots, p + n, 1);
        return first - 1;
    }

private:
    static constexpr int32_t kShortest = 2;  // fronts of a line: the rest of a line that is worth its beginning

    // The line that front f is in, or null.
    const LineRecord* find(int32_t f) {
        if (course_.columns != 1 || !plan_.num_lines()) return nullptr;
        const LineRecord* lines = plan_.lines();
        while (at_ > 0 && f < lines[at_].first) --at_;
        while (at_ + 1 < plan_.num_lines() && f >= lines[at_].first + lines[at_].count) ++at_;
        return f >= lines[at_].first && f < lines[at_].first + lines[at_].count ? lines + at_ : nullptr;
    }

    // Lay out a line, if it is not the last one that was.
    bool open(const LineRecord& line) {
        if (line.first != opened_) {
            opened_ = line.first;
            const ShapeRecord& shape = plan_.front(line.first).shape;
            vectors_ = vectors_of(shape.q + shape.b);
            ready_ = vectors_ && line_.open(plan_, line, vectors_ * kWidth<T>);
            with_vectors([&](const auto number) {
                constexpr int vectors = int(decltype(number)::value);
                ready_ =
                    ready_ && work_.reserve(LineAscent<T, vectors, true>::work_size(line_) + 2 * (line_.p + line_.n));
            });
        }
        return ready_;
    }

    // The same for a line whose rows of L have few numbers.
    bool open_thin(const LineRecord& line) {
        if (line.first != opened_thin_) opened_thin_ = line.first, ready_thin_ = thin_.open(plan_, line);
        return ready_thin_;
    }

    // Vectors of a row of n numbers; 0 where they are too many. The build for old machines knows one length only.
    static constexpr bool kFewBuilds = kTileVectors <= 2;
    static int vectors_of(int64_t n) {
        const int64_t count = padded<T>(max(n, int64_t(1))) / kWidth<T>;
        return count > 4 ? 0 : kFewBuilds ? 4 : int(count);
    }
    template <class Run>
    void with_vectors(Run run) const {
        if constexpr (kFewBuilds)
            run(Length<4>{});
        else
            with_rows<4>(max(vectors_, 1), run);
    }

    Course<T>& course_;
    const PlanView& plan_;
    Line<T> line_;
    ThinLine<T> thin_;
    Buffer<T> work_;
    int32_t at_ = 0;                          // a line near the last front that was looked for
    int32_t opened_ = -1, opened_thin_ = -1;  // the first front of the open line, in either form
    int vectors_ = 0;
    bool ready_ = false, ready_thin_ = false;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
