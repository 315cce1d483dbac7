#include "refinement.hpp"

#include <algorithm>

namespace gnewt {

namespace {

constexpr int kRounds = 6;    // of moves, at most
constexpr int kFutile = 120;  // moves without a better cut at which a round ends

}  // namespace

Refinement::Refinement(const WeightedGraph& graph, Cut& cut)
    : graph_(graph), cut_(cut), heaviest_(*std::max_element(graph.weight.begin(), graph.weight.end())) {
    for (auto& pulled : pulled_) pulled.assign(u(graph.size()), 0);
}

void Refinement::grow(Index seed) {
    cut_.side.assign(u(graph_.size()), kRight);
    cut_.weight[kLeft] = cut_.weight[kBetween] = 0;
    cut_.weight[kRight] = graph_.total();
    log_.clear();
    Queue queue;
    Index untouched = 0;
    const auto start = [&](Index v) {
        put(v, kBetween);
        weigh(v);
        queue.push({gain(v, kLeft), v});
    };
    start(seed);
    std::size_t kept = 0;
    Count best = 0;
    while (cut_.weight[kLeft] < cut_.weight[kRight]) {
        if (queue.empty()) {  // the rest is not connected with what was reached
            while (cut_.side[u(untouched)] != kRight) ++untouched;
            start(untouched);
        }
        const auto [value, v] = queue.top();
        queue.pop();
        if (!is_between(v) || value != gain(v, kLeft)) continue;
        move(v, kLeft);
        for (Index w : changed_) queue.push({gain(w, kLeft), w});
        if (kept == 0 || cut_.score() < best) {
            best = cut_.score();
            kept = log_.size();
        }
    }
    take_back(kept);
}

void Refinement::refine() {
    for (int round = 0; round < kRounds; ++round)
        if (!improve()) break;
}

// One round: every vertex leaves the separator at most once, and what comes after the best cut is taken back.
bool Refinement::improve() {
    locked_.assign(u(graph_.size()), 0);
    log_.clear();
    Queue queue[2];
    const auto offer = [&](Index v) {
        for (int to : {kLeft, kRight}) queue[to].push({gain(v, to), v});
    };
    for (Index v = 0; v < graph_.size(); ++v) {
        if (!is_between(v)) continue;
        weigh(v);
        offer(v);
    }
    const Count before = cut_.score();
    Count best = before;
    std::size_t kept = 0;
    for (int futile = 0; futile < kFutile; ++futile) {
        const int to = choose(queue);
        if (to < 0) break;
        const Index v = queue[to].top().second;
        locked_[u(v)] = 1;
        move(v, to);
        for (Index w : changed_)
            if (!locked_[u(w)]) offer(w);
        if (cut_.score() < best) {
            best = cut_.score();
            kept = log_.size();
            futile = -1;
        }
    }
    take_back(kept);
    return best < before;
}

// The side that the best vertex goes to; -1 if none may move. Entries that are out of date are dropped.
int Refinement::choose(Queue (&queue)[2]) const {
    for (int to : {kLeft, kRight}) {
        while (!queue[to].empty()) {
            const auto [value, v] = queue[to].top();
            if (is_between(v) && !locked_[u(v)] && value == gain(v, to) && is_allowed(v, to)) break;
            queue[to].pop();
        }
    }
    if (queue[kLeft].empty() || queue[kRight].empty())
        return !queue[kLeft].empty() ? kLeft : !queue[kRight].empty() ? kRight : -1;
    const Count left = queue[kLeft].top().first, right = queue[kRight].top().first;
    if (left != right) return left > right ? kLeft : kRight;
    return cut_.weight[kLeft] <= cut_.weight[kRight] ? kLeft : kRight;
}

// Whether a side stays lighter than three quarters, or is the lighter one.
bool Refinement::is_allowed(Index v, int to) const {
    const Count all = cut_.weight[kLeft] + cut_.weight[kRight] + cut_.weight[kBetween];
    return cut_.weight[to] < cut_.weight[1 - to] || 4 * (cut_.weight[to] + graph_.weight[u(v)] - heaviest_) <= 3 * all;
}

void Refinement::put(Index v, int to) {
    const int from = cut_.side[u(v)];
    log_.push_back({v, from});
    cut_.weight[from] -= graph_.weight[u(v)];
    cut_.weight[to] += graph_.weight[u(v)];
    cut_.side[u(v)] = static_cast<char>(to);
}

void Refinement::take_back(std::size_t kept) {
    while (log_.size() > kept) {
        const auto [v, from] = log_.back();
        put(v, from);
        log_.resize(log_.size() - 2);  // `put` has logged this, too
    }
}

void Refinement::weigh(Index v) {
    pulled_[kLeft][u(v)] = pulled_[kRight][u(v)] = 0;
    around(v, [&](Index w) {
        if (!is_between(w)) pulled_[1 - cut_.side[u(w)]][u(v)] += graph_.weight[u(w)];
    });
}

void Refinement::move(Index v, int to) {
    changed_.clear();
    put(v, to);
    around(v, [&](Index w) {
        if (is_between(w)) {
            pulled_[1 - to][u(w)] += graph_.weight[u(v)];
            changed_.push_back(w);
        } else if (cut_.side[u(w)] == 1 - to) {
            put(w, kBetween);
            weigh(w);
            changed_.push_back(w);
            around(w, [&](Index x) {
                if (!is_between(x)) return;
                pulled_[to][u(x)] -= graph_.weight[u(w)];
                changed_.push_back(x);
            });
        }
    });
}

}  // namespace gnewt
