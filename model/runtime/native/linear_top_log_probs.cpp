#include "linear_top_log_probs.h"

#include <cmath>

#include "candidates.h"
#include "sinks.h"

namespace dragoman {

namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr int64_t kMostParts = 8;      // that threads can take
constexpr int64_t kPanelsOfPart = 16;  // at least
constexpr int kRegisters = kPanel / kLanes;

// Keeps, for a chunk of rows, what panels leave of them.
class BestSink {
public:
    BestSink(const PackedLinear& map, int64_t rows, int64_t k)
        : parts(std::clamp<int64_t>(map.panels() / kPanelsOfPart, 1, kMostParts)),
          outputs_(map.outputs()),
          panels_(map.panels()),
          rows_(rows),
          k_(k),
          padded_((rows + kLanes - 1) / kLanes * kLanes) {
        struct Largest;
        struct Sums;
        struct Bounds;
        struct Known;
        struct Found;
        struct Best;
        largest_ = scratch<Largest, float>(panels_ * padded_);
        sums_ = scratch<Sums, float>(panels_ * padded_);
        bounds_ = scratch<Bounds, float>(parts * padded_);
        known_ = scratch<Known, float>(padded_);
        found_ = scratch<Found, int64_t>(parts * rows);
        best_ = scratch<Best, Candidate>(parts * rows * k);
        std::fill_n(bounds_, parts * padded_, std::numeric_limits<float>::quiet_NaN());
        std::fill_n(known_, padded_, kNothing);
        std::fill_n(found_, parts * rows, 0);
    }

    const int64_t parts;  // of the panels; each looks for k best of its own, and knows what others have found

    class Place {
    public:
        Place(const BestSink& sink, int64_t panel, int64_t part) : sink_(sink), panel_(panel), part_(part) {
            struct Outputs;
            y_ = scratch<Outputs, float>(kChunk * kPanel);
        }

        void put(int64_t row, int v, __mmask16 lanes, __m512 y) const {
            _mm512_store_ps(y_ + row * kPanel + v * kLanes, _mm512_mask_mov_ps(_mm512_set1_ps(kNothing), lanes, y));
        }

        void end(int64_t rows) const {
            for (int64_t from = 0; from < rows; from += kLanes) group(from, std::min<int64_t>(rows - from, kLanes));
        }

    private:
        // Sixteen rows together, so that all are reduced at once.
        void group(int64_t from, int64_t count) const {
            __m512 most[kLanes], total[kLanes];
            for (int64_t r = 0; r < kLanes; ++r) most[r] = r < count ? largest(y_ + (from + r) * kPanel) : _mm512_set1_ps(kNothing);
            const __m512 largest = maxima(most);  // (rows)
            const __mmask16 nothing = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(kNothing), _CMP_EQ_OQ);
            alignas(64) float subtracted[kLanes];
            _mm512_store_ps(subtracted, _mm512_mask_mov_ps(largest, nothing, _mm512_setzero_ps()));
            for (int64_t r = 0; r < kLanes; ++r) {
                total[r] = r < count ? exponentials(y_ + (from + r) * kPanel, subtracted[r]) : _mm512_setzero_ps();
            }
            const int64_t at = panel_ * sink_.padded_ + from;
            _mm512_store_ps(sink_.largest_ + at, largest);
            _mm512_store_ps(sink_.sums_ + at, sums(total));
            const __m512 bounds = _mm512_load_ps(sink_.bounds_ + part_ * sink_.padded_ + from);
            const __mmask16 possible = _mm512_mask_cmp_ps_mask(first(count), largest, sink_.known(from), _CMP_NLT_UQ);
            uint32_t promising = _mm512_mask_cmp_ps_mask(possible, largest, bounds, _CMP_NLE_UQ);
            for (; promising; promising &= promising - 1) keep(from + __builtin_ctz(promising));
        }

        static __m512 largest(const float* y) {
            __m512 most = _mm512_load_ps(y);
#pragma GCC unroll 4
            for (int v = 1; v < kRegisters; ++v) most = _mm512_max_ps(most, _mm512_load_ps(y + v * kLanes));
            return most;
        }

        static __m512 exponentials(const float* y, float subtracted) {
            __m512 total = _mm512_setzero_ps();
#pragma GCC unroll 4
            for (int v = 0; v < kRegisters; ++v) {
                total = _mm512_add_ps(total, exponential(_mm512_sub_ps(_mm512_load_ps(y + v * kLanes), _mm512_set1_ps(subtracted))));
            }
            return total;
        }

        // Takes those outputs of a row that are better than the worst of its best, or all while there are fewer than k,
        // but none that is worse than k others elsewhere.
        void keep(int64_t row) const {
            float& bound = sink_.bounds_[part_ * sink_.padded_ + row];
            int64_t& found = sink_.found_[part_ * sink_.rows_ + row];
            const float known = sink_.known_[row];
            Candidate* best = sink_.best_ + (part_ * sink_.rows_ + row) * sink_.k_;
            for (int v = 0; v < kRegisters; ++v) {
                const int64_t id = panel_ * kPanel + v * kLanes;
                const float* y = y_ + row * kPanel + v * kLanes;
                const __m512 x = _mm512_load_ps(y);
                const __mmask16 possible = _mm512_cmp_ps_mask(x, _mm512_set1_ps(known), _CMP_GE_OQ);
                const __mmask16 good = _mm512_mask_cmp_ps_mask(possible, x, _mm512_set1_ps(bound), _CMP_NLE_UQ);
                uint32_t wanted = good & first(sink_.outputs_ - id);
                for (; wanted; wanted &= wanted - 1) {
                    const int i = __builtin_ctz(wanted);
                    add({y[i], int32_t(id + i)}, best, found);
                }
                if (found == sink_.k_) bound = best->value;
            }
            if (found == sink_.k_ && bound > known) sink_.make_known(row, bound);
        }

        // A heap with the worst on top.
        void add(const Candidate& candidate, Candidate* best, int64_t& found) const {
            if (found == sink_.k_) {
                if (!better(candidate, *best)) return;
                std::pop_heap(best, best + found--, better);
            }
            best[found++] = candidate;
            std::push_heap(best, best + found, better);
        }

        const BestSink& sink_;
        int64_t panel_, part_;
        float* y_;  // (rows, 64)
    };

    Place place(int64_t panel, int64_t part) const { return {*this, panel, part}; }

    void write(float* log_probs, int64_t* ids) const {
        alignas(64) float normalisers[kChunk];
        for (int64_t from = 0; from < rows_; from += kLanes) normalise(from, normalisers + from);
        for (int64_t r = 0; r < rows_; ++r) {
            Candidate* best = best_ + r * k_;
            int64_t found = found_[r];
            for (int64_t part = 1; part < parts; ++part) {
                merge(best, found, best_ + (part * rows_ + r) * k_, found_[part * rows_ + r]);
            }
            write_best(best, found, k_, normalisers[r], log_probs + r * k_, ids + r * k_);
        }
    }

private:
    // Sixteen bounds of any part, which others may be raising just now: old ones only let more through.
    __m512 known(int64_t from) const { return _mm512_load_ps(known_ + from); }

    void make_known(int64_t row, float bound) const { __atomic_store(known_ + row, &bound, __ATOMIC_RELAXED); }

    // log Σ e^y of sixteen rows from `from` on: panels give floats, their sum is double.
    void normalise(int64_t from, float* normalisers) const {
        __m512 most = _mm512_set1_ps(kNothing);
        for (int64_t p = 0; p < panels_; ++p) most = _mm512_max_ps(most, _mm512_load_ps(largest_ + p * padded_ + from));
        __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
        for (int64_t p = 0; p < panels_; ++p) {
            const int64_t at = p * padded_ + from;
            const __m512 factor = exponential(_mm512_sub_ps(_mm512_load_ps(largest_ + at), most));
            const __m512 sum = _mm512_mul_ps(_mm512_load_ps(sums_ + at), factor);
            low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(sum)));
            high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(sum, 1)));
        }
        alignas(64) double totals[kLanes];
        _mm512_store_pd(totals, low);
        _mm512_store_pd(totals + kLanes / 2, high);
        alignas(64) float largest[kLanes];
        _mm512_store_ps(largest, most);
        for (int i = 0; i < kLanes; ++i) normalisers[i] = float(largest[i] + std::log(totals[i]));
    }

    // The k best of both, in the first.
    void merge(Candidate* best, int64_t& found, const Candidate* others, int64_t count) const {
        struct Both;
        Candidate* both = scratch<Both, Candidate>(2 * k_);
        std::copy_n(best, found, both);
        std::copy_n(others, count, both + found);
        const int64_t kept = std::min(found + count, k_);
        std::partial_sort(both, both + kept, both + found + count, better);
        std::copy_n(both, kept, best);
        found = kept;
    }

    int64_t outputs_, panels_, rows_, k_;
    int64_t padded_;    // rows up to a multiple of sixteen
    float* largest_;    // (panels, padded): the largest output of a panel
    float* sums_;       // (panels, padded): Σ e^(y − largest) of a panel
    float* bounds_;     // (parts, padded): what an output must exceed to be among the best; no number while they are few
    float* known_;      // (padded): what k outputs of one part reach
    int64_t* found_;    // (parts, rows)
    Candidate* best_;   // (parts, rows, k): heaps
};

}  // namespace

LinearTopLogProbs::LinearTopLogProbs(const Node& node)
    : scale_(node.real("scale")), zero_(node.integer("zero")), map_(node, 1, scale_, zero_) {}

void LinearTopLogProbs::compute(const Call& call) const {
    const auto x = call.input<float>(0);
    const auto wanted = call.input<int64_t>(4);
    require(x.axes == 3 && x.last() == map_.inputs() && wanted.size() == 1, "x must be (B, W, K) and k (1).");
    const int64_t rows = x.rows(), k = wanted.data[0];
    require(k >= 1 && k <= map_.outputs(), "k must be from 1 to the size of the vocabulary.");
    float* log_probs = call.output<float>(0, {x.shape[0], x.shape[1], k});
    int64_t* ids = call.output<int64_t>(1, {x.shape[0], x.shape[1], k});
    in_chunks(x.data, rows, map_, Quantiser(scale_, int32_t(zero_)), [&](int64_t begin, int64_t count, const uint8_t* bytes) {
        const BestSink sink(map_, count, k);
        map_.multiply(call, bytes, count, sink, sink.parts);
        sink.write(log_probs + begin * k, ids + begin * k);
    });
}

}  // namespace dragoman
