#include "add_norm.h"

#include <algorithm>

#include "simd.h"

namespace dragoman {

namespace {

// Four chains of sums over a row; the order depends on D alone.
template <class Term>
float sum_of(int64_t size, Term term) {
    __m512 chain[4];
    for (auto& part : chain) part = _mm512_setzero_ps();
    int64_t i = 0;
    for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
        for (int c = 0; c < 4; ++c) chain[c] = _mm512_add_ps(chain[c], term(i + c * kLanes, __mmask16(0xFFFF)));
    }
    for (; i < size; i += kLanes) chain[0] = _mm512_add_ps(chain[0], term(i, first(size - i)));
    return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(chain[0], chain[1]), _mm512_add_ps(chain[2], chain[3])));
}

void norm(const float* x, int64_t size, const float* weight, const float* bias, float epsilon, float* normed) {
    const float mean = sum_of(size, [x](int64_t i, __mmask16 m) { return _mm512_maskz_loadu_ps(m, x + i); }) / float(size);
    const __m512 centre = _mm512_set1_ps(mean);
    const float squares = sum_of(size, [x, centre](int64_t i, __mmask16 m) {
        const __m512 d = _mm512_maskz_sub_ps(m, _mm512_maskz_loadu_ps(m, x + i), centre);
        return _mm512_mul_ps(d, d);
    });
    const __m512 factor = _mm512_set1_ps(1.0f / __builtin_sqrtf(squares / float(size) + epsilon));
    for (int64_t i = 0; i < size; i += kLanes) {
        const __mmask16 m = first(size - i);
        const __m512 d = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(m, x + i), centre), factor);
        const __m512 y = _mm512_fmadd_ps(d, _mm512_maskz_loadu_ps(m, weight + i), _mm512_maskz_loadu_ps(m, bias + i));
        _mm512_mask_storeu_ps(normed + i, m, y);
    }
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
        const float* source = x.data + r * size_;
        if (residual || sum) {
            float* added = sum ? sum + r * size_ : row;
            for (int64_t i = 0; i < size_; ++i) added[i] = residual ? source[i] + residual.data[r * size_ + i] : source[i];
            source = added;
        }
        norm(source, size_, weight_.data(), bias_.data(), epsilon_, normed + r * size_);
    }
}

}  // namespace dragoman
