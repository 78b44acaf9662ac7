#include "add_norm.h"

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace dragoman {

namespace {

// Calls work(i, lanes, chain) for every sixteen numbers of a row, four chains in turn.
template <class Work>
void each(int64_t size, Work work) {
    int64_t i = 0;
    for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) work(i + c * kLanes, __mmask16(0xFFFF), c);
    }
    for (; i < size; i += kLanes) work(i, first(size - i), 0);
}

// Four sums, since each addition waits for the one before; their order depends on D alone.
struct Chains {
    __m512 part[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};

    float total() const {
        return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(part[0], part[1]), _mm512_add_ps(part[2], part[3])));
    }
};

// sum = x + residual, if there is one; returns its mean.
float add(const float* x, const float* residual, int64_t size, float* sum) {
    Chains chains;
    each(size, [&](int64_t i, __mmask16 lanes, int c) {
        __m512 value = _mm512_maskz_loadu_ps(lanes, x + i);
        if (residual) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(lanes, residual + i));
        if (sum) _mm512_mask_storeu_ps(sum + i, lanes, value);
        chains.part[c] = _mm512_add_ps(chains.part[c], value);
    });
    return chains.total() / float(size);
}

float variance(const float* x, int64_t size, float mean) {
    const __m512 centre = _mm512_set1_ps(mean);
    Chains chains;
    each(size, [&](int64_t i, __mmask16 lanes, int c) {
        const __m512 d = _mm512_maskz_sub_ps(lanes, _mm512_maskz_loadu_ps(lanes, x + i), centre);
        chains.part[c] = _mm512_fmadd_ps(d, d, chains.part[c]);
    });
    return chains.total() / float(size);
}

}  // namespace

AddNorm::AddNorm(const Node& node) : epsilon_(node.real("epsilon")) {
    const auto weight = node.constant<float>(2, "weight"), bias = node.constant<float>(3, "bias");
    size_ = weight.size();
    require(size_ >= 1 && bias.size() == size_, "weight and bias must be (D).");
    std::copy_n(weight.data, size_, weight_.grow(size_));
    std::copy_n(bias.data, size_, bias_.grow(size_));
}

void AddNorm::compute(const Call& call) const {
    const auto x = call.input<float>(0), residual = call.input<float>(1);
    require(x.axes >= 1 && x.last() == size_, "the last axis of x must be D.");
    const int64_t rows = x.rows();
    require(!residual || (residual.rows() == rows && residual.last() == size_), "residual must have the shape of x.");
    float* normed = call.output<float>(0, x.shape, x.axes);
    float* sum = call.outputs() > 1 ? call.output<float>(1, x.shape, x.axes) : nullptr;
    struct Row;
    float* row = residual && !sum ? scratch<Row, float>(size_) : nullptr;
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = r * size_;
        float* added = sum ? sum + at : row;  // null: x is the sum
        const float mean = add(x.data + at, residual ? residual.data + at : nullptr, size_, added);
        const float* summed = added ? added : x.data + at;
        const float factor = 1.0f / std::sqrt(variance(summed, size_, mean) + epsilon_);
        const __m512 centre = _mm512_set1_ps(mean), scale = _mm512_set1_ps(factor);
        each(size_, [&](int64_t i, __mmask16 lanes, int) {
            const __m512 d = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, summed + i), centre), scale);
            const __m512 weight = _mm512_maskz_loadu_ps(lanes, &weight_[i]), bias = _mm512_maskz_loadu_ps(lanes, &bias_[i]);
            _mm512_mask_storeu_ps(normed + at + i, lanes, _mm512_fmadd_ps(d, weight, bias));
        });
    }
}

}  // namespace dragoman
