#include "top_log_probs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "simd.h"

namespace dragoman {

namespace {

constexpr int64_t kBlock = 128;  // logits with one maximum: eight registers
constexpr float kNothing = -std::numeric_limits<float>::infinity();

struct Candidate {
    float value;
    int32_t id;
};

struct Row {
    const float* logits;
    int64_t size;
    int64_t blocks;
    float* maxima;  // (blocks, then -inf up to a multiple of sixteen)
};

// Fills the maxima of blocks and returns log Σ e^logit. One pass: a block is summed up while it is still near, relative to
// the largest logit so far; when a larger one comes, the sum so far is scaled down.
float log_sum(const Row& row) {
    float largest = kNothing;
    double total = 0.0;
    for (int64_t b = 0; b < row.blocks; ++b) {
        const float* block = row.logits + b * kBlock;
        const int64_t count = std::min(kBlock, row.size - b * kBlock);
        __m512 x[kBlock / kLanes];
        __m512 most = _mm512_set1_ps(kNothing);
        for (int v = 0; v < kBlock / kLanes; ++v) {
            x[v] = _mm512_mask_loadu_ps(_mm512_set1_ps(kNothing), first(count - v * kLanes), block + v * kLanes);
            most = _mm512_max_ps(most, x[v]);
        }
        const float maximum = _mm512_reduce_max_ps(most);
        row.maxima[b] = maximum;
        if (maximum > largest) {
            total *= std::exp(double(largest) - maximum);
            largest = maximum;
        }
        if (largest == kNothing) continue;  // nothing but -inf so far
        const __m512 subtracted = _mm512_set1_ps(largest);
        __m512 sum = _mm512_setzero_ps();
        for (int v = 0; v < kBlock / kLanes; ++v) sum = _mm512_add_ps(sum, exponential(_mm512_sub_ps(x[v], subtracted)));
        total += _mm512_reduce_add_ps(sum);
    }
    return float(largest + std::log(total));
}

// The k-th largest maximum of a block: at least k logits are as large, and none of the k best is smaller.
float threshold(const Row& row, int64_t k, float* sorted) {
    if (k >= row.blocks) return kNothing;
    std::copy_n(row.maxima, row.blocks, sorted);
    std::nth_element(sorted, sorted + k - 1, sorted + row.blocks, std::greater<float>());
    return sorted[k - 1];
}

// Every logit of at least `least`, in the order of ids; returns their number.
int64_t collect(const Row& row, float least, Candidate* candidates) {
    int64_t found = 0;
    for (int64_t b = 0; b < row.blocks; ++b) {
        if (!(row.maxima[b] >= least)) continue;
        const int64_t end = std::min(row.size, (b + 1) * kBlock);
        for (int64_t i = b * kBlock; i < end; i += kLanes) {
            const __mmask16 lanes = first(end - i);
            uint32_t good = _mm512_mask_cmp_ps_mask(lanes, _mm512_maskz_loadu_ps(lanes, row.logits + i),
                                                    _mm512_set1_ps(least), _CMP_GE_OQ);
            for (; good; good &= good - 1) {
                const int64_t id = i + __builtin_ctz(good);
                candidates[found++] = {row.logits[id], int32_t(id)};
            }
        }
    }
    return found;
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
    struct Maxima;
    struct Sorted;
    struct Candidates;
    const int64_t blocks = (size + kBlock - 1) / kBlock;
    float* maxima = scratch<Maxima, float>(blocks);
    float* sorted = scratch<Sorted, float>(blocks);
    Candidate* candidates = scratch<Candidates, Candidate>(size);
    for (int64_t r = 0; r < rows; ++r) {
        const Row row{logits.data + r * size, size, blocks, maxima};
        const float normaliser = log_sum(row);
        const int64_t found = collect(row, threshold(row, k, sorted), candidates);
        const int64_t kept = std::min(found, k);  // fewer than k only if there are NaNs
        std::partial_sort(candidates, candidates + kept, candidates + found, [](const Candidate& a, const Candidate& b) {
            return a.value > b.value || (a.value == b.value && a.id < b.id);
        });
        for (int64_t i = 0; i < k; ++i) {
            log_probs[r * k + i] = i < kept ? candidates[i].value - normaliser : std::numeric_limits<float>::quiet_NaN();
            ids[r * k + i] = i < kept ? candidates[i].id : 0;
        }
    }
}

}  // namespace dragoman
