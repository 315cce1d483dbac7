// The course of an elimination: how far the elimination has come. Made by elimination.hpp. The quick and the careful
// form share one course: each form can go on where the other form stopped.
#pragma once
#include "gathering.hpp"
#include "pivots.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T>
struct Course {
    explicit Course(const Call<T>& c) : call(c), plan{c.plan}, columns(c.columns), factor(c.factor) {}

    bool reserve() {
        const int64_t unknowns = plan.causal() ? plan.num_slots() : plan.num_unknowns();
        if (!waiting.reserve(plan.num_fronts() + 1) || !z.reserve(unknowns * columns) ||
            !stack.reserve(largest_stack()))
            return false;
        if (!plan.causal()) std::memset(z.data(), 0, size_t(unknowns * columns) * sizeof(T));
        return true;
    }

    // The most numbers that wait where no pivot is delayed. Small messages are not worth the look: the stack grows.
    int64_t largest_stack() {
        int64_t most = 1, count = 0;
        for (int32_t f = 0; f < plan.num_fronts() && plan.data[kMaxRest] >= kWide; ++f) {
            const Front front = plan.front(f);
            count -= front.num_children;
            if (!front.shape.b) continue;
            waiting[count].end = (count ? waiting[count - 1].end : 0) + message_size<T>(front.shape.b, columns);
            most = max(most, waiting[count++].end);
        }
        return most;
    }

    void begin_again() {
        next = 0;
        num_waiting = 0;
        factor = call.factor;
        tally = Tally();
        lost = false;
        gathering.begin_again();
    }

    // The last `count` messages on the stack, with so many delayed unknowns in all.
    Messages<T> messages(int32_t count, int64_t late = 0) {
        return {plan, waiting.data() + num_waiting - count, count, stack.data(), columns, late};
    }

    // A row is lost where all of it is below this share of what was summed into it. Without pairs, the sizes that
    // messages carry are all that was ever summed; weights of pairs forget what was lost before.
    T lost_share() const {
        return plan.num_slots() == plan.num_inputs() ? Precision<T>::lost : T(kDoubtful);
    }

    // Where on the stack the next message begins.
    int64_t stack_end() { return num_waiting ? waiting[num_waiting - 1].end : 0; }

    // Add the message of front f, a leaf, to the front that is being gathered, if there is one.
    void gather(int32_t f) {
        if (!gathering.ahead_of(f) || !num_waiting) return;
        const Message& message = waiting[num_waiting - 1];
        if (message.front == f && gathering.add(plan, message, stack.data(), columns)) --num_waiting;
    }

    const Call<T>& call;
    const PlanView plan;
    const int64_t columns;
    int32_t next = 0;         // the front that is eliminated next
    T* factor;                // where the rows of L of this front go, if it takes the pivots of the plan
    int64_t num_waiting = 0;  // messages on the stack; those of the children of the next front are the last
    Tally tally;
    // A row is lost: the whole row is little of what was summed into the row. Only noise that was followed from the
    // leaves on can tell whether such a row is zero.
    bool lost = false;
    Buffer<T> stack, z;  // z: right-hand sides as rows of L, at the unknowns that were eliminated
    Buffer<Message> waiting;
    Gathering<T> gathering;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
