#include "lane_groups.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>

#include "plan_format.hpp"
#include "source_blocks.hpp"

namespace gnewt {

using namespace plan_format;

namespace {

// Fronts of a segment at most: their messages and rows of L stay in the second cache.
constexpr Index kSegment = 512;

class Grouper {
public:
    explicit Grouper(const std::vector<LaneFront>& fronts) : fronts_(fronts) { find_children(); }

    std::vector<Index> run(Index& num_segments) {
        const Index num = narrow(static_cast<Count>(fronts_.size()));
        num_segments = 0;
        for (Index begin = 0; begin < num; begin += kSegment) {
            const Index end = std::min(begin + kSegment, num);
            num_segments += write_segment(begin, end);
        }
        return std::move(out_);
    }

private:
    using Sizes = std::tuple<Index, Index, Index, Index>;

    const LaneFront& front(Index i) const { return fronts_[u(i)]; }
    Sizes sizes(Index i) const { return {front(i).p, front(i).q, front(i).b, front(i).twins}; }

    // The children of a front are the last of those that wait for a parent.
    void find_children() {
        std::vector<Index> waiting;
        child_ptr_.push_back(0);
        for (const LaneFront& f : fronts_) {
            const auto first = waiting.end() - f.num_children;
            children_.insert(children_.end(), first, waiting.end());
            waiting.erase(first, waiting.end());
            child_ptr_.push_back(static_cast<Count>(children_.size()));
            if (f.b) waiting.push_back(static_cast<Index>(&f - fronts_.data()));
        }
    }

    // Level by level: fronts whose children are all in groups, and that are small; those of the same sizes are a
    // group. Whether there is any.
    bool write_segment(Index begin, Index end) {
        const std::size_t at = out_.size();
        append(SegmentRecord{});
        level_.assign(u(end - begin), kNone);
        Index num_groups = 0;
        std::vector<Index> ready, group;
        for (Index level = 0; level == 0 || !ready.empty(); ++level) {
            ready.clear();
            for (Index i = begin; i < end; ++i)
                if (level_[u(i - begin)] == kNone && is_ready(i, begin)) ready.push_back(i);
            std::stable_sort(ready.begin(), ready.end(), [&](Index x, Index y) { return sizes(x) < sizes(y); });
            bool any = false;
            for (std::size_t first = 0, last; first < ready.size(); first = last) {
                for (last = first; last < ready.size() && sizes(ready[last]) == sizes(ready[first]);) ++last;
                if (last - first < kFewestLanes) continue;
                group.assign(ready.begin() + static_cast<Count>(first), ready.begin() + static_cast<Count>(last));
                write_group(group, begin, level);
                ++num_groups;
                any = true;
            }
            if (!any) break;
        }
        if (!num_groups) {
            out_.resize(at);
            return false;
        }
        const SegmentRecord record{begin, end, num_groups, narrow(static_cast<Count>(out_.size() - at))};
        std::memcpy(out_.data() + at, &record, sizeof record);
        return true;
    }

    // Whether a front is small, has something to do, and all its children are in groups of this segment.
    bool is_ready(Index i, Index begin) const {
        const LaneFront& f = front(i);
        if (f.p + f.q + f.b > kMostInLane || f.p + f.q == 0) return false;
        for (Count k = child_ptr_[u(i)]; k < child_ptr_[u(i) + 1]; ++k) {
            const Index child = children_[u(k)];
            if (child < begin || level_[u(child - begin)] == kNone) return false;
        }
        return true;
    }

    void write_group(const std::vector<Index>& group, Index begin, Index level) {
        append(GroupRecord{narrow(static_cast<Count>(group.size()))});
        for (Index i : group) {
            append(MemberRecord{i});
            out_.insert(out_.end(), children_.begin() + child_ptr_[u(i)], children_.begin() + child_ptr_[u(i) + 1]);
            level_[u(i - begin)] = level;
        }
    }

    template <class Record>
    void append(const Record& record) {
        const std::size_t end = out_.size();
        out_.resize(end + kInts<Record>);
        std::memcpy(out_.data() + end, &record, sizeof record);
    }

    const std::vector<LaneFront>& fronts_;
    std::vector<Count> child_ptr_;
    std::vector<Index> children_, level_, out_;
};

}  // namespace

std::vector<Index> lane_groups(const std::vector<LaneFront>& fronts, Index& num_segments) {
    return Grouper(fronts).run(num_segments);
}

}  // namespace gnewt
