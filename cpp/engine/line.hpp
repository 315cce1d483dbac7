// Lines: fronts that follow each other and look alike, each the only child of the next one, of whatever shape. A Line
// knows where the sources of such fronts go, number by number, and where the message of a front lies in the next front.
// Made by lines.hpp, used by line_ascent.hpp.
//
// The sources of all fronts of a line stand in few streams: their positions move by one stride from front to front. So
// the lists of a line are made once, and each front costs one load and one store per number.
#pragma once
#include "blocks.hpp"
#include "messages.hpp"

namespace gnewt::engine {
namespace GNEWT_ISA {

// Numbers of streams that are moved to places, stream by stream: to[place] = stream[offset].
class Moves {
public:
    static constexpr int kMost = 16;  // streams at most

    bool reserve(int64_t count) { return list_.reserve(2 * count); }
    void clear() { size_ = 0; }
    void add(int64_t offset, int64_t to) {
        list_[2 * size_] = int32_t(offset);
        list_[2 * size_++ + 1] = int32_t(to);
    }
    void end_stream(int stream) { end_[stream] = size_; }

    // Call visit(stream, offset, to) for every number.
    template <class Visit>
    GNEWT_INLINE void for_all(int streams, Visit visit) {
        const int32_t* at = list_.data();
        for (int s = 0; s < streams; ++s)
            for (const int32_t* end = list_.data() + 2 * end_[s]; at < end; at += 2) visit(s, at[0], at[1]);
    }

private:
    int64_t size_ = 0, end_[kMost];
    Buffer<int32_t> list_;
};

// Where the sources of a front lie within its numbers: F [p, ld], PP [p, ldp], C [p, ld], the first `rows` rows of R
// [rows, ld], the magnitudes on the diagonals of PP [ldp] and of R [ld], the entries of G one after the other; and
// right-hand sides [ld].
struct LinePlaces {
    int64_t f, pp, c, r, of_pairs, of_rest, rhs, g, end;
};

// A part of the message: `length` rows and columns from `start` on go to the pairs, or to the rest, from `place` on.
struct LineRun {
    int64_t start, place, length;
};

template <class T>
class Line {
public:
    static constexpr int kMostRuns = 6;  // of a message
    static constexpr int64_t kMostPairs = 16, kMostRest = 4 * kWidth<T>;

    int64_t p, q, b, n, ld, ldp;  // sizes; leading dimensions of R and of PP
    int64_t rows;                 // of R that have sources
    int64_t beside;               // C has nothing in the columns before this one; n where there is no C
    bool nested, cross;           // a pair reads another pair; C has sources
    LinePlaces at;
    int num_in_pairs, num_in_rest;
    LineRun in_pairs[kMostRuns], in_rest[kMostRuns];
    // The message's rows of the pairs and of the rest, -1 where there is none; the coordinates of the message's rows.
    int16_t pair_rows[kMostPairs], rest_rows[kMostRest], coordinates[kMostRest];

    // Lay out the line of a record; `width`: numbers in a row; `entries`: where the numbers of R stand, if they do not
    // fill their rows, and how many these are. False where the line has too many parts, or there is no memory: then its
    // fronts are eliminated one by one.
    bool open(const PlanView& plan, const LineRecord& line, int64_t width, const int16_t* entries = nullptr,
              int64_t num_entries = 0) {
        front_ = plan.front(line.first);
        first_ = line.first;
        entries_ = entries, num_entries_ = num_entries;
        const Shape& s = front_.shape;
        p = s.p, q = s.q, b = s.b, n = q + b, ld = width, ldp = padded<T>(p);
        if (p > kMostPairs || n > min(width, kMostRest)) return false;
        const int64_t numbers = count_numbers();
        return find_streams(plan.strides() + line.strides) && find_runs() && set_places() &&
               moves_[kSets].reserve(numbers) && moves_[kAdds].reserve(numbers) && moves_[kSetSizes].reserve(numbers) &&
               moves_[kAddSizes].reserve(numbers) && reads_.reserve(3 * numbers + p + 1) && list_moves();
    }

    // Where the streams of a front are.
    struct Streams {
        const T* at[Moves::kMost];
    };
    GNEWT_INLINE Streams streams_of(const T* sources, int32_t front) const {
        Streams out;
        for (int s = 0; s < num_streams_; ++s) out.at[s] = sources + start_[s] + int64_t(front - first_) * stride_[s];
        return out;
    }
    GNEWT_INLINE void advance(Streams& streams, int steps) const {
        for (int s = 0; s < num_streams_; ++s) streams.at[s] += steps * stride_[s];
    }

    // Put the sources of a front into its numbers (LinePlaces), whose other places are zero.
    GNEWT_INLINE void load(const Streams& from, T* __restrict to) {
        moves_[kSets].for_all(num_streams_, [&](int s, int32_t i, int32_t j) GNEWT_LAMBDA { to[j] = from.at[s][i]; });
        moves_[kAdds].for_all(num_streams_, [&](int s, int32_t i, int32_t j) GNEWT_LAMBDA { to[j] += from.at[s][i]; });
        moves_[kSetSizes].for_all(num_streams_,
                                  [&](int s, int32_t i, int32_t j) GNEWT_LAMBDA { to[j] = abs(from.at[s][i]); });
        moves_[kAddSizes].for_all(num_streams_,
                                  [&](int s, int32_t i, int32_t j) GNEWT_LAMBDA { to[j] += abs(from.at[s][i]); });
    }

    // x[i] = Σ_j G[i, j] x[j] + F[i] z, from the last pair to the first: `x` holds [x | z].
    GNEWT_INLINE void read_pairs(const Streams& from, T* __restrict x) {
        const int32_t* read = reads_.data();
        for (int64_t i = p - 1; i >= 0; --i) {
            T sum = 0;
            for (const int32_t* end = read + 1 + 3 * read[0]; ++read < end; read += 2)
                sum += from.at[read[0]][read[1]] * x[read[2]];
            x[i] = sum;
        }
    }

    // Call visit(row, column, number among the entries of G) for the pairs that read pairs, the last reader first.
    template <class Visit>
    GNEWT_INLINE void for_reads_of_pairs(Visit visit) {
        for (int64_t k = 0; k < num_nested_; ++k) visit(nested_[2 * k], nested_[2 * k + 1], k);
    }

private:
    int64_t count_numbers() const {
        int64_t count = front_.shape.num_diag;
        for (int32_t k = 0; k < front_.shape.num_blocks; ++k) {
            const Block& block = front_.shape.blocks[k];
            count += block.rows * int64_t(block.len) + int64_t(block.dlen) * block.rows * (block.rows - 1) / 2;
        }
        return count;
    }

    // Positions that move by the same stride are in one stream.
    bool find_streams(const int32_t* strides) {
        const int32_t num = front_.shape.num_blocks + front_.shape.num_diag;
        num_streams_ = 0;
        if (!stream_of_.reserve(num)) return false;
        for (int32_t k = 0; k < num; ++k) {
            int s = 0;
            while (s < num_streams_ && stride_[s] != strides[k]) ++s;
            if (s == Moves::kMost) return false;
            if (s == num_streams_) stride_[num_streams_] = strides[k], start_[num_streams_++] = front_.sources[k];
            stream_of_[k] = s;
        }
        return true;
    }

    bool find_runs() {
        const Shape& s = front_.shape;
        num_in_pairs = num_in_rest = 0;
        for (int64_t i = 0; i < p; ++i) pair_rows[i] = -1;
        for (int64_t i = 0; i < n; ++i) rest_rows[i] = -1;
        for (int32_t k = 0; k < s.num_runs; ++k) {
            const RunRecord& run = runs_of(s)[k];
            for (int32_t i = 0; i < run.length; ++i) {
                const int64_t place = run.place + i;
                (place < p ? pair_rows[place] : rest_rows[place - p]) = int16_t(run.start + i);
                coordinates[run.start + i] = int16_t(place);
            }
            if (num_in_pairs == kMostRuns || num_in_rest == kMostRuns) return false;
            if (run.place < p)
                in_pairs[num_in_pairs++] = {run.start, run.place, run.length};
            else
                in_rest[num_in_rest++] = {run.start, run.place - p, run.length};
        }
        return true;
    }

    bool set_places() {
        const Shape& s = front_.shape;
        rows = num_nested_ = 0;
        nested = s.flags & kNested, cross = false;
        beside = num_in_pairs && num_in_rest ? in_rest[0].place : n;
        for (int32_t k = 0; k < s.num_blocks; ++k) {
            const Block& block = s.blocks[k];
            cross |= block.kind == kC;
            if (block.kind != kR && block.kind != kC && block.kind != kG) continue;
            for_places(block, [&](int64_t i, int64_t j, int64_t) {
                if (block.kind == kR) rows = max(rows, i + 1);
                if (block.kind == kC) beside = min(beside, j);
                num_nested_ += block.kind == kG;
            });
        }
        at.f = 0;
        at.pp = at.f + p * ld;
        at.c = at.pp + p * ldp;
        at.r = at.c + (cross ? p * ld : 0);
        at.of_pairs = at.r + (entries_ ? padded<T>(num_entries_) : rows * ld);
        at.of_rest = at.of_pairs + ldp;
        at.rhs = at.of_rest + ld;
        at.g = at.rhs + ld;
        at.end = at.g + padded<T>(num_nested_);
        return seen_.reserve(at.end) && nested_.reserve(2 * num_nested_ + 1);
    }

    // The place of an entry of a block.
    int64_t place_of(int32_t kind, int64_t i, int64_t j) const {
        switch (kind) {
            case kF: return at.f + i * ld + j;
            case kPP: return at.pp + i * ldp + j;
            case kC: return at.c + i * ld + j;
            default: return at.r + (entries_ ? entries_[i * n + j] : i * ld + j);
        }
    }

    bool list_moves() {
        const Shape& s = front_.shape;
        std::memset(seen_.data(), 0, size_t(at.end));
        for (Moves& moves : moves_) moves.clear();
        list_nested();
        for (int stream = 0; stream < num_streams_; ++stream) {
            for (int32_t k = 0; k < s.num_blocks + s.num_diag; ++k) {
                if (stream_of_[k] != stream) continue;
                const int64_t from = front_.sources[k] - start_[stream];
                if (k >= s.num_blocks) {
                    move(from, at.of_rest + s.diag[k - s.num_blocks], kSetSizes);
                    continue;
                }
                const Block& block = s.blocks[k];
                for_places(block, [&](int64_t i, int64_t j, int64_t offset) {
                    if (block.kind == kG) return;
                    move(from + offset, place_of(block.kind, i, j), kSets);
                    if (block.kind == kPP && i == j) move(from + offset, at.of_pairs + i, kSetSizes);
                });
            }
            for_nested_of(stream);
            for (Moves& moves : moves_) moves.end_stream(stream);
        }
        return true;
    }
    // `kind`: kSets or kSetSizes.
    void move(int64_t from, int64_t to, int kind) {
        moves_[seen_[to] ? kind + 1 : kind].add(from, to);
        seen_[to] = 1;
    }

    // The entries of F and G, pair by pair from the last to the first: how many a pair has, then stream, offset and
    // coordinate of each. Entries of G are numbered in the same order.
    void list_nested() {
        const Shape& s = front_.shape;
        int32_t* out = reads_.data();
        int64_t entries = 0;
        for (int64_t row = p - 1; row >= 0; --row) {
            int32_t* count = out++;
            *count = 0;
            for (int32_t k = 0; k < s.num_blocks; ++k) {
                const Block& block = s.blocks[k];
                if (block.kind != kF && block.kind != kG) continue;
                for_places(block, [&](int64_t i, int64_t j, int64_t offset) {
                    if (i != row) return;
                    *out++ = stream_of_[k];
                    *out++ = int32_t(front_.sources[k] - start_[stream_of_[k]] + offset);
                    *out++ = int32_t(block.kind == kF ? p + j : j);
                    ++*count;
                    if (block.kind == kG) nested_[2 * entries] = int32_t(row), nested_[2 * entries++ + 1] = int32_t(j);
                });
            }
        }
    }
    // Move the entries of G that are in a stream.
    void for_nested_of(int stream) {
        const int32_t* read = reads_.data();
        int64_t entry = 0;
        for (int64_t i = p - 1; i >= 0; --i)
            for (const int32_t* end = read + 1 + 3 * read[0]; ++read < end; read += 2) {
                if (read[2] >= p) continue;
                if (read[0] == stream) move(read[1], at.g + entry, kSets);
                ++entry;
            }
    }

    Front front_;
    const int16_t* entries_;
    int64_t num_entries_;
    int32_t first_;
    int num_streams_;
    int64_t num_nested_, start_[Moves::kMost], stride_[Moves::kMost];
    enum { kSets, kAdds, kSetSizes, kAddSizes, kMoves };
    Moves moves_[kMoves];  // numbers and magnitudes that are written, and those that are added then
    Buffer<int32_t> stream_of_, reads_, nested_;
    Buffer<int8_t> seen_;
};

}  // namespace GNEWT_ISA
}  // namespace gnewt::engine
