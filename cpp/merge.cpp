// Merging of small fronts by modelled time: the same decisions as plan/merge.py, which hands the constants over.
#include <algorithm>
#include <queue>
#include <utility>

#include "planner.hpp"

namespace gnewt {

namespace {

// Lists of bags, each bag on one list: doubly linked, to be joined and taken from in constant time.
class Lists {
public:
    explicit Lists(Count num)
        : size_(u(num), 0), first_(u(num), kNone), last_(first_), next_(first_), previous_(first_) {}

    void push_back(Index list, Index element) {
        link(list, last_[u(list)], element);
        last_[u(list)] = element;
        ++size_[u(list)];
    }
    void remove(Index list, Index element) {
        const Index before = previous_[u(element)], after = next_[u(element)];
        (before == kNone ? first_[u(list)] : next_[u(before)]) = after;
        (after == kNone ? last_[u(list)] : previous_[u(after)]) = before;
        previous_[u(element)] = next_[u(element)] = kNone;
        --size_[u(list)];
    }
    void append(Index list, Index other) {
        if (!size_[u(other)]) return;
        link(list, last_[u(list)], first_[u(other)]);
        last_[u(list)] = last_[u(other)];
        size_[u(list)] += size_[u(other)];
    }
    Count size(Index list) const { return size_[u(list)]; }
    Index first(Index list) const { return first_[u(list)]; }
    Index next(Index element) const { return next_[u(element)]; }

private:
    void link(Index list, Index last, Index element) {
        (last == kNone ? first_[u(list)] : next_[u(last)]) = element;
        previous_[u(element)] = last;
    }

    std::vector<Count> size_;
    std::vector<Index> first_, last_, next_, previous_;
};

class Merger {
public:
    Merger(const Bags& bags, const TimeModel& model)
        : bags_(bags), model_(model), members_(bags.parent.size), children_(bags.parent.size) {
        for (Count i = 0; i < bags.parent.size; ++i) {
            const Index bag = static_cast<Index>(i), up = bags.parent[i];
            if (up != kNone && (up <= i || up >= bags.parent.size)) throw InvalidInput("a bag after its parent");
            p_.push_back(bags.p[i]);
            q_.push_back(bags.q[i]);
            reads_.push_back(bags.reads[i]);
            into_.push_back(bag);
            members_.push_back(bag, bag);
            if (up != kNone) children_.push_back(up, bag);
        }
    }

    void run() {
        for (Count i = 0; i < bags_.parent.size; ++i) join_twins(static_cast<Index>(i));
        for (Count c = 0; c < bags_.parent.size; ++c) offer(static_cast<Index>(c));
        while (!heap_.empty()) {
            const auto [value, c] = heap_.top();
            heap_.pop();
            if (into_[u(c)] != c) continue;
            const Index up = find(bags_.parent[c]);
            const Count saving = saved(c, up);
            if (saving < -value) {  // the bags around c have changed since it was offered
                if (saving > 0) heap_.push({-saving, c});
                continue;
            }
            near_.assign(1, up);
            Index k = children_.first(c);
            for (Count num = 0; k != kNone && num < model_.few; ++num, k = children_.next(k)) near_.push_back(k);
            join(c, up);
            children_.remove(up, c);
            children_.append(up, c);
            for (Index i : near_) offer(i);
        }
    }

    Index find(Index i) {
        while (into_[u(i)] != i) i = into_[u(i)] = into_[u(into_[u(i)])];
        return i;
    }

private:
    using Entry = std::pair<Count, Index>;  // minus what is saved, child

    // The three times of the model; plan/merge.py says what the arguments are.
    Count causal_time(Count p, Count q, Count b, Count reads, bool cross) const {
        const Count n = q + b;
        Count time = model_.front + q * (model_.input + model_.input_row * n) + model_.cube * (n * n * n - b * b * b);
        if (p) time += model_.pairs + model_.product * p * (2 * p + n) * (n + 2);
        if (p && cross) time += p * n * (model_.cross + model_.product * (n + 2));
        if (reads) time += model_.nested * p * (p + 3) + reads * (model_.nested_pair * p + model_.nested_rest * n);
        return time;
    }
    Count free_time(Count e, Count b) const {
        const Count n = e + b;
        return model_.free_front + model_.free_unknown * e + n * n * (model_.free_entry + model_.free_product * e);
    }
    Count message_time(Count b, bool straddles) const {
        return model_.message + (straddles ? model_.straddling : model_.whole) + model_.message_entry * b * b;
    }

    // Reads of pairs of `up` by pairs of c.
    Count reads_of(Index c, Index up) {
        Count total = 0;
        for (Index i = members_.first(c); i != kNone; i = members_.next(i))
            for (Count k = bags_.links.ptr[i]; k < bags_.links.ptr[i + 1]; ++k)
                if (find(bags_.links.idx[k]) == up) total += bags_.link_reads[k];
        return total;
    }

    // Scalars of the separator of k that are pairs of a or of b.
    Count hits(Index k, Index a, Index b) {
        Count total = 0;
        for (Count i = bags_.separators.ptr[k]; i < bags_.separators.ptr[k + 1]; ++i) {
            const Index item = bags_.separators.idx[i];
            if (!bags_.pairs_of_item[item]) continue;
            const Index bag = find(bags_.bag_of_item[item]);
            if (bag == a || bag == b) total += bags_.pairs_of_item[item];
        }
        return total;
    }

    // The messages of children to a front of p pairs that a and b form.
    struct Messages {
        Count num, p;
        Index a, b;
        Count time = 0;
        bool cross = false;
    };
    void add(Messages& to, Index k) {
        const Count size = bags_.b[k], hit = to.p ? hits(k, to.a, to.b) : 0;
        const bool straddles = 0 < hit && hit < size;
        to.cross |= straddles;
        if (!(to.num == 1 && hit == to.p && hit == size)) to.time += message_time(size, straddles);
    }

    Count own_time(Index i, bool cross) const {
        return causal_time(p_[u(i)], q_[u(i)], bags_.b[i], reads_[u(i)], cross);
    }

    Count time_with_children(Index i) {
        Messages messages{children_.size(i), p_[u(i)], i, i};
        for (Index k = children_.first(i); k != kNone; k = children_.next(k)) add(messages, k);
        return messages.time + own_time(i, messages.cross);
    }

    // Time that is saved if c joins its parent.
    Count saved(Index c, Index up) {
        const Count p = p_[u(c)] + p_[u(up)], q = q_[u(c)] + q_[u(up)], b = bags_.b[up];
        if (p + q + b > model_.large) return 0;
        if (!bags_.causal) return free_time(q_[u(c)], bags_.b[c]) + free_time(q_[u(up)], b) - free_time(q, b);
        const Count apart = own_time(c, true) + own_time(up, true), reads = reads_[u(c)] + reads_[u(up)];
        const Count num = children_.size(c) + children_.size(up) - 1;
        const auto crossing = [&] { return p_[u(c)] && p_[u(up)] ? reads_of(c, up) : 0; };
        if (num > model_.few) {  // the messages of the other children are taken to stay as they are
            const Count before = message_time(bags_.b[c], p > 0) + apart;
            const Count best = before - causal_time(p, q, b, reads, true);
            return best <= 0 ? best : before - causal_time(p, q, b, reads + crossing(), true);
        }
        Count best = message_time(bags_.b[c], true) - causal_time(p, q, b, 0, false) + apart;
        for (Index k = children_.first(c); k != kNone; k = children_.next(k)) best += message_time(bags_.b[k], true);
        if (best <= 0) return best;  // nothing is saved even if every unknown term favours the merge
        Messages messages{num, p, c, up};
        for (Index k = children_.first(up); k != kNone; k = children_.next(k))
            if (k != c) add(messages, k);
        for (Index k = children_.first(c); k != kNone; k = children_.next(k)) add(messages, k);
        return time_with_children(c) + time_with_children(up) - messages.time -
               causal_time(p, q, b, reads + crossing(), messages.cross);
    }

    void offer(Index c) {
        if (into_[u(c)] != c || bags_.parent[c] == kNone) return;
        const Count saving = saved(c, find(bags_.parent[c]));
        if (saving > 0) heap_.push({-saving, c});
    }

    void join(Index c, Index up) {
        reads_[u(up)] += reads_[u(c)] + reads_of(c, up);
        p_[u(up)] += p_[u(c)];
        q_[u(up)] += q_[u(c)];
        members_.append(up, c);
        into_[u(c)] = up;
    }

    // Merge leaves below one bag that have the same separator, in rounds: two by two, then the results two by two, ...
    void join_twins(Index up) {
        std::vector<Index> leaves;
        for (Index k = children_.first(up); k != kNone; k = children_.next(k))
            if (!children_.size(k)) leaves.push_back(k);
        if (leaves.size() < 2) return;
        const auto compare = [&](Index a, Index z) {  // separators as words in a dictionary
            const Span<const Index> x = bags_.separators[a], y = bags_.separators[z];
            return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end());
        };
        std::sort(leaves.begin(), leaves.end(),
                  [&](Index a, Index z) { return compare(a, z) || (!compare(z, a) && a < z); });
        for (auto begin = leaves.begin(); begin != leaves.end();) {
            const auto end = std::find_if(begin, leaves.end(), [&](Index k) { return compare(*begin, k); });
            std::vector<Index> group(begin, end);
            std::size_t before = 0;
            while (group.size() != before) {
                before = group.size();
                for (std::size_t i = 0; i + 1 < before; i += 2) {
                    if (!twins_save(group[i], group[i + 1])) continue;
                    join(group[i], group[i + 1]);
                    children_.remove(up, group[i]);
                }
                group.erase(std::remove_if(group.begin(), group.end(), [&](Index k) { return into_[u(k)] != k; }),
                            group.end());
            }
            begin = end;
        }
    }

    bool twins_save(Index a, Index z) const {
        const Count p = p_[u(a)] + p_[u(z)], q = q_[u(a)] + q_[u(z)], b = bags_.b[z];
        if (p + q + b > model_.large) return false;
        if (!bags_.causal) return free_time(q, b) < free_time(q_[u(a)], b) + free_time(q_[u(z)], b);
        const Count together = causal_time(p, q, b, reads_[u(a)] + reads_[u(z)], false);
        return together < own_time(a, false) + own_time(z, false) + message_time(b, false);
    }

    const Bags& bags_;
    const TimeModel& model_;
    std::vector<Count> p_, q_, reads_;
    std::vector<Index> into_, near_;
    Lists members_, children_;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> heap_;
};

}  // namespace

void merge_fronts(const Bags& bags, const TimeModel& model, Span<Count> top) {
    check_rows(bags.links, bags.parent.size);
    check_rows(bags.separators, bags.bag_of_item.size);
    for (Index item : bags.separators.idx)
        if (bags.bag_of_item[item] < 0 || bags.bag_of_item[item] >= bags.parent.size)
            throw InvalidInput("an item in no bag");
    Merger merger(bags, model);
    merger.run();
    for (Count i = 0; i < top.size; ++i) top[i] = merger.find(static_cast<Index>(i));
}

}  // namespace gnewt
