// The elimination along a plan, front by front, from the leaves up; and the solution on the way down. Called by
// isa.inc.
//
// Fronts are eliminated quickly, and carefully where a pivot is in doubt. Fronts of a free plan hold duals: the quick
// form knows small ones only.
#pragma once
#include "fronts.hpp"
#include "quick.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

template <class T>
class Elimination {
public:
    explicit Elimination(const Call<T>& call) : call_(call), course_(call), quick_(course_), careful_(course_) {}

    // Factor and solve, and write all results of the call.
    void run() {
        const Status status = eliminate();
        report(status);
        if (status > kSingular) {
            fail(call_);
            return;
        }
        call_.info[kKept] = careful_.kept();
        const Records<T> records = careful_.records();
        const int64_t ends[] = {records.numbers_end, records.index_end};
        static_assert(sizeof ends == CarefulFronts<T>::kEndIntegers * sizeof(int32_t));
        std::memcpy(call_.index + call_.index_len - CarefulFronts<T>::kEndIntegers, ends, sizeof ends);
    }

    static void fail(const Call<T>& call) {
        for (int64_t i = 0; i < call.num_inputs * call.columns; ++i) call.solution[i] = T(NAN);
        call.real[kLogDet] = call.real[kSmallestPivot] = T(NAN);
    }

private:
    // Write what the pivots say of H. A pair of a free plan has one positive and one negative pivot: these do not
    // count.
    void report(Status status) {
        const Tally& tally = course_.tally;
        const bool causal = course_.plan.causal();
        const int64_t pairs = causal ? 0 : course_.plan.num_slots() - course_.plan.num_inputs(),
                      nulls = careful_.nulls();
        int32_t* info = call_.info;
        info[kStatus] = status;
        info[kPositive] = int32_t(tally.positive - pairs);
        info[kNegative] = int32_t(tally.negative - pairs);
        info[kZero] = int32_t(nulls);
        info[kDelayed] = int32_t(careful_.delayed());
        info[kMode] = causal && !careful_.records().index_end ? kCausal : kGeneral;
        info[kFirstNull] = careful_.first_null();
        call_.real[kLogDet] = nulls ? T(-HUGE_VAL) : T(tally.logdet());
        call_.real[kSmallestPivot] = nulls ? T(0) : T(tally.smallest);
    }

    Status eliminate() {
        const PlanView& plan = course_.plan;
        if (plan.rows_size() > call_.factor_len) return kBadPlan;
        if (!course_.reserve() || (plan.causal() && !quick_.reserve())) return kOutOfMemory;
        Status status = ascend(true);
        const bool done = !course_.lost && status != kNonFinite && !careful_.nulls();
        // The quick form knows little of noise. A matrix that may be singular is eliminated again by the careful form,
        // from the leaves on.
        if (!done) {
            std::memset(call_.null, 0, size_t(plan.num_unknowns()));
            course_.begin_again();
            careful_.begin(false);
            status = ascend(false);
        }
        return status == kOk ? descend() : status;
    }

    // The solution, from the roots down.
    Status descend() {
        const PlanView& plan = course_.plan;
        const Records<T> records = careful_.records();
        T* z = course_.z.data();
        if (careful_.nulls()) zero_null(records, z, course_.columns);
        const int64_t widest = plan.data[kMaxPairs] + max(careful_.largest(), int64_t(plan.data[kMaxRest]));
        if (!local_.reserve(widest * course_.columns)) return kOutOfMemory;
        if (plan.causal())
            quick_.descend(records, local_.data());
        else
            back_substitute(plan, call_.sources, course_.factor, records, z, course_.columns, local_.data());
        std::memcpy(call_.solution, z, size_t(call_.num_inputs * course_.columns) * sizeof(T));
        return careful_.nulls() ? kSingular : kOk;
    }

    // Eliminate all fronts; `quickly`: by the quick form where nothing is in doubt, up to the first row that is lost.
    Status ascend(bool quickly) {
        while (course_.next < course_.plan.num_fronts()) {
            if (quickly ? quick_.ascend() : course_.plan.causal() && quick_.ascend_noisy()) break;
            if (quickly && course_.lost) return kOk;
            const Status status = careful_.eliminate();
            if (status != kOk || (quickly && course_.lost)) return status;
        }
        return finite(course_.tally.logdet()) ? kOk : kNonFinite;
    }

    const Call<T>& call_;
    Course<T> course_;
    Quick<T> quick_;
    CarefulFronts<T> careful_;
    Buffer<T> local_;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
