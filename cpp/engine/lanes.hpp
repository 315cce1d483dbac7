// Small fronts ahead of the others: the groups of a segment (plan_format.hpp) are eliminated eight fronts at a time,
// before the fronts of the segment have their turn. Called by quick.hpp, which takes the results front by front.
//
// A lane in doubt is left alone, and so are the fronts above it: they have their turn later, one by one.
#pragma once
#include "course.hpp"
#include "small.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T>
class LaneFronts {
public:
    explicit LaneFronts(Course<T>& course) : course_(course), next_(course.plan.segments()) {
        left_ = course.columns == 1 ? course.plan.data[kNumSegments] : 0;
    }

    // If a segment begins with front f, eliminate its groups. False where there is no memory.
    bool begin(int32_t f) {
        for (; left_ && segment(next_).begin < f; --left_) next_ += segment(next_).length;  // a run went past them
        if (!left_ || segment(next_).begin != f) return true;
        --left_;
        const SegmentRecord record = segment(next_);
        begin_ = record.begin, end_ = record.end;
        const int32_t* at = next_ + kInts<SegmentRecord>;
        next_ += record.length;
        if (!state_.reserve(end_ - begin_) || !work_.reserve(kRoom * kEight)) return false;
        std::memset(state_.data(), 0, size_t(end_ - begin_) * sizeof(Waiting));
        used_ = used_rows_ = 0;
        for (int32_t g = 0; g < record.num_groups; ++g)
            if (!run_group(at)) return false;
        return true;
    }

    // Whether front f is done.
    bool done(int32_t f) { return f >= begin_ && f < end_ && state_[f - begin_].done; }

    // Front f, which is done, has its turn: put its rows of L where they belong, as what stands before them may have
    // been written with whole vectors, and its message on the stack, unless its parent has taken the message. False
    // where there is no memory.
    bool pass_on(int32_t f, const Shape& shape) {
        const Waiting& mine = state_[f - begin_];
        const int64_t b = shape.b, numbers = shape.q * (shape.q + b);
        if (numbers) std::memcpy(course_.factor, rows_.data() + mine.rows, size_t(numbers) * sizeof(T));
        if (!b || mine.taken) return true;
        const int64_t base = course_.stack_end(), size = message_size<T>(b, 1);
        if (!course_.stack.reserve(base + size)) return false;
        std::memcpy(course_.stack.data() + base, messages_.data() + mine.at, size_t(size) * sizeof(T));
        course_.waiting[course_.num_waiting++] = {base, base + size, f};
        return true;
    }

    // Eliminate one small front, whose children wait on the stack. False where it is in doubt, and left as it was.
    bool eliminate(int32_t f, const Front& front) {
        if (!work_.reserve(kRoom * kEight)) return false;
        const Shape& shape = front.shape;
        Small<T, T> small({shape.p, shape.q, shape.b}, work_.data());
        small.load(0, course_.call, front);
        for (int32_t k = front.num_children; k > 0; --k) {
            const Message& message = course_.waiting[course_.num_waiting - k];
            const Shape child = course_.plan.front(message.front).shape;
            small.add(0, child, message_parts<const T>(course_.stack.data() + message.at, child.b));
        }
        const int32_t before = int32_t(course_.num_waiting);
        course_.num_waiting -= front.num_children;
        const int64_t base = course_.stack_end(), end = base + message_size<T>(shape.b, 1);
        if (!course_.stack.reserve(end) ||
            !eliminate(small, front, message_parts(course_.stack.data() + base, shape.b))) {
            course_.num_waiting = before;
            return false;
        }
        if (shape.b) course_.waiting[course_.num_waiting++] = {base, end, f};
        return true;
    }

    static bool is_small(const Shape& shape) { return shape.p + shape.q + shape.b <= kMostInLane; }

private:
    struct Waiting {
        int64_t at, rows;    // where the message and the rows of L of a front that is done begin
        int8_t done, taken;  // whether the front is done; whether its parent has taken the message
    };
    static constexpr int kEight = 8;
    static constexpr int64_t kRoom = Small<T, T>::kRoom;
    static constexpr int64_t kFewRows = 4;  // rows from which on a single front is eliminated by rows

    static SegmentRecord segment(const int32_t* at) { return *reinterpret_cast<const SegmentRecord*>(at); }

    // Eliminate a front that is put together, and write its message. False where it is in doubt; then nothing of the
    // message is written, which takes the place of the children's.
    bool eliminate(Small<T, T>& small, const Front& front, const MessageParts<T>& message) {
        const int64_t p = front.shape.p, q = front.shape.q, b = front.shape.b;
        T* z = course_.z.data();
        if (p || q < kFewRows) {
            if (!small.eliminate()) return false;
            small.write(0, front, course_.factor, z, message, course_.tally);
            return true;
        }
        T y[kMostInLane];
        const Rows<T> rows = small.as_rows(course_.factor, y);
        if (!eliminate_rows<T, 0, false>(rows, q, kUpper, {message.schur, message.ld}, course_.tally, [] {}))
            return false;
        for (int64_t i = 0; i < q; ++i) z[front.slots[i]] = y[i];
        for (int64_t i = 0; i < b; ++i) {
            message.sizes[i] = max(rows.size[q + i], abs(message.schur[i * (message.ld + 1)]));
            message.carried[i] = rows.rho[q + i];
        }
        return true;
    }

    // Eliminate a group; `at` is moved behind it.
    bool run_group(const int32_t*& at) {
        const PlanView& plan = course_.plan;
        int32_t left = reinterpret_cast<const GroupRecord*>(at)->count;
        at += kInts<GroupRecord>;
        const Shape shape = plan.front(*at).shape;
        const SmallSizes sizes{shape.p, shape.q, shape.b};
        const int64_t room = message_size<T>(sizes.b, 1);
        if (!messages_.reserve(used_ + left * room) || !rows_.reserve(used_rows_ + left * sizes.q * sizes.n()))
            return false;
        while (left > 0) {
            Member members[kEight];
            int count = 0;
            for (; left > 0 && count < kEight; --left) {
                Member& mine = members[count];
                mine.record = *reinterpret_cast<const MemberRecord*>(at);
                mine.front = plan.front(mine.record.front);
                mine.children = at + kInts<MemberRecord>;
                at = mine.children + mine.front.num_children;
                count += all_wait(mine);
            }
            if (count) run_lanes(sizes, members, count);
        }
        return true;
    }

    struct Member {
        MemberRecord record;
        Front front;
        const int32_t* children;
    };

    // Whether all children of a member are done.
    bool all_wait(const Member& member) {
        for (int32_t k = 0; k < member.front.num_children; ++k)
            if (!state_[member.children[k] - begin_].done) return false;
        return true;
    }

    void run_lanes(const SmallSizes& sizes, const Member* members, int count) {
        Small<T, Eight<T>> small(sizes, reinterpret_cast<Eight<T>*>(work_.data()));
        load(small, members, count);
        const Holds<Eight<T>> good = small.eliminate();
        T* rows[kEight] = {};
        for (int lane = 0; lane < count; ++lane) {
            if (!holds(good, lane)) continue;
            const Member& mine = members[lane];
            rows[lane] = rows_.data() + used_rows_;
            small.write(lane, mine.front, nullptr, course_.z.data(), message_parts(messages_.data() + used_, sizes.b),
                        course_.tally);
            state_[mine.record.front - begin_] = {used_, used_rows_, true, false};
            used_ += message_size<T>(sizes.b, 1);
            used_rows_ += sizes.q * sizes.n();
            for (int32_t k = 0; k < mine.front.num_children; ++k) state_[mine.children[k] - begin_].taken = true;
        }
        small.write_rows(rows);
    }

    // Put the fronts of all lanes together.
    void load(Small<T, Eight<T>>& small, const Member* members, int count) {
        const PlanView& plan = course_.plan;
        const Front* fronts[kEight] = {};
        bool alike = true;
        for (int lane = 0; lane < count; ++lane) {
            fronts[lane] = &members[lane].front;
            alike &= fronts[lane]->shape.blocks == fronts[0]->shape.blocks;
        }
        if (alike) small.load_alike(count, course_.call, fronts);
        for (int lane = 0; lane < count; ++lane) {
            const Member& mine = members[lane];
            if (!alike) small.load(lane, course_.call, mine.front);
            for (int32_t k = 0; k < mine.front.num_children; ++k) {
                const int32_t number = mine.children[k];
                const Shape child = plan.front(number).shape;
                small.add(lane, child, message_parts<const T>(messages_.data() + state_[number - begin_].at, child.b));
            }
        }
    }

    Course<T>& course_;
    const int32_t* next_;  // the next segment
    int32_t left_, begin_ = 0, end_ = 0;
    int64_t used_ = 0, used_rows_ = 0;  // numbers of messages_ and rows_
    Buffer<T> work_, messages_, rows_;
    Buffer<Waiting> state_;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
