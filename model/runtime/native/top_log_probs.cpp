#include "top_log_probs.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "candidates.h"
#include "simd.h"

namespace dragoman {

namespace {

constexpr int kRegisters = 8;                     // of a block
constexpr int64_t kBlock = kRegisters * kLanes;   // logits with one maximum
constexpr int64_t kGroup = kLanes;                // blocks whose maxima are found together
constexpr int64_t kFew = 32;                      // so many best are found by looking for the next so many times
constexpr int64_t kCost = 32;                     // multiplications that take as long as one logit
constexpr float kNothing = -std::numeric_limits<float>::infinity();

struct Row {
    const float* logits;
    int64_t size;
    int64_t blocks;  // a multiple of kGroup; the last ones may be past the end
    float* maxima;   // (blocks)

    // Sixteen logits from `i` on; -inf past the end.
    __m512 load(int64_t i) const {
        if (i + kLanes <= size) return _mm512_loadu_ps(logits + i);
        return _mm512_mask_loadu_ps(_mm512_set1_ps(kNothing), first(size - i), logits + i);
    }
};

// Σ e^(logit − largest), largest being that of all logits so far. When a larger one comes, the sum is scaled down. Sums of
// a block are float, those of blocks double.
class ExponentialSum {
public:
    void add(const __m512 (&x)[kRegisters], __m512 most) {
        if (_mm512_cmp_ps_mask(most, _mm512_set1_ps(largest_), _CMP_GT_OQ)) raise(_mm512_reduce_max_ps(most));
        if (largest_ == kNothing) return;  // nothing but -inf so far
        const __m512 subtracted = _mm512_set1_ps(largest_);
        __m512 sum = _mm512_setzero_ps();
        for (int v = 0; v < kRegisters; ++v) sum = _mm512_add_ps(sum, exponential(_mm512_sub_ps(x[v], subtracted)));
        low_ = _mm512_add_pd(low_, _mm512_cvtps_pd(_mm512_castps512_ps256(sum)));
        high_ = _mm512_add_pd(high_, _mm512_cvtps_pd(_mm512_extractf32x8_ps(sum, 1)));
    }

    float logarithm() const { return float(largest_ + std::log(_mm512_reduce_add_pd(_mm512_add_pd(low_, high_)))); }

private:
    void raise(float largest) {
        const __m512d factor = _mm512_set1_pd(std::exp(double(largest_) - largest));
        low_ = _mm512_mul_pd(low_, factor);
        high_ = _mm512_mul_pd(high_, factor);
        largest_ = largest;
    }

    float largest_ = kNothing;
    __m512d low_ = _mm512_setzero_pd(), high_ = _mm512_setzero_pd();
};

// Fills the maxima of blocks and returns log Σ e^logit, in one pass.
float log_sum(const Row& row) {
    ExponentialSum sum;
    for (int64_t from = 0; from < row.blocks; from += kGroup) {
        __m512 most[kGroup];
        for (int64_t b = 0; b < kGroup; ++b) {
            const int64_t begin = (from + b) * kBlock;
            most[b] = _mm512_set1_ps(kNothing);
            if (begin >= row.size) continue;
            __m512 x[kRegisters];
#pragma GCC unroll 8
            for (int v = 0; v < kRegisters; ++v) x[v] = row.load(begin + v * kLanes);
#pragma GCC unroll 8
            for (int v = 0; v < kRegisters; ++v) most[b] = _mm512_max_ps(most[b], x[v]);
            sum.add(x, most[b]);
        }
        _mm512_storeu_ps(row.maxima + from, maxima(most));
    }
    return sum.logarithm();
}

// A bound that at least k logits reach, and all of the k best: the k-th largest maximum of a block, or less.
float threshold(const Row& row, int64_t k, float* sorted) {
    if (k >= row.blocks) return kNothing;
    if (k > kFew) {
        std::copy_n(row.maxima, row.blocks, sorted);
        std::nth_element(sorted, sorted + k - 1, sorted + row.blocks, std::greater<float>());
        return sorted[k - 1];
    }
    float bound = std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < k; ++i) {  // equal ones count once, which may let the bound down: no harm
        __m512 next = _mm512_set1_ps(kNothing);
        for (int64_t b = 0; b < row.blocks; b += kLanes) {
            const __m512 m = _mm512_loadu_ps(row.maxima + b);
            next = _mm512_mask_max_ps(next, _mm512_cmp_ps_mask(m, _mm512_set1_ps(bound), _CMP_LT_OQ), next, m);
        }
        bound = _mm512_reduce_max_ps(next);
    }
    return bound;
}

// Every logit of at least `least`, in the order of ids; returns their number.
int64_t collect(const Row& row, float least, Candidate* candidates) {
    const __m512 bound = _mm512_set1_ps(least);
    int64_t found = 0;
    const auto add = [&](int64_t i) {
        uint32_t good = _mm512_mask_cmp_ps_mask(first(row.size - i), row.load(i), bound, _CMP_GE_OQ);
        for (; good; good &= good - 1) {
            const int64_t id = i + __builtin_ctz(good);
            candidates[found++] = {row.logits[id], int32_t(id)};
        }
    };
    for (int64_t from = 0; from < row.blocks; from += kLanes) {
        uint32_t blocks = _mm512_cmp_ps_mask(_mm512_loadu_ps(row.maxima + from), bound, _CMP_GE_OQ);
        for (; blocks; blocks &= blocks - 1) {
            const int64_t begin = (from + __builtin_ctz(blocks)) * kBlock, end = std::min(row.size, begin + kBlock);
            for (int64_t i = begin; i < end; i += kLanes) add(i);
        }
    }
    return found;
}

// The k best of a row, best first, and what they have.
void choose(const float* logits, int64_t size, int64_t k, float* log_probs, int64_t* ids) {
    struct Maxima;
    struct Sorted;
    struct Candidates;
    const int64_t blocks = (size + kGroup * kBlock - 1) / (kGroup * kBlock) * kGroup;
    const Row row{logits, size, blocks, scratch<Maxima, float>(blocks)};
    Candidate* candidates = scratch<Candidates, Candidate>(size);
    const float normaliser = log_sum(row);
    const int64_t found = collect(row, threshold(row, k, scratch<Sorted, float>(blocks)), candidates);
    write_best(candidates, found, k, normaliser, log_probs, ids);
}

}  // namespace

void TopLogProbs::compute(const Call& call) const {
    const auto logits = call.input<float>(0);
    const auto wanted = call.input<int64_t>(1);
    require(logits.axes == 3 && wanted.size() == 1, "logits must be (B, W, V) and k (1).");
    const int64_t size = logits.shape[2], k = wanted.data[0], rows = logits.rows();
    require(k >= 1 && k <= size, "k must be from 1 to the size of the vocabulary.");
    float* log_probs = call.output<float>(0, {logits.shape[0], logits.shape[1], k});
    int64_t* ids = call.output<int64_t>(1, {logits.shape[0], logits.shape[1], k});
    call.parallel(rows, kCost * rows * size, [&](int64_t r) {
        choose(logits.data + r * size, size, k, log_probs + r * k, ids + r * k);
    });
}

}  // namespace dragoman
