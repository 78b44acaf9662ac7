// Floats to unsigned bytes, exactly as ONNX's QuantizeLinear: x / scale, to the nearest (ties to even), + zero, in 0…255.
#pragma once

#include "simd.h"

namespace dragoman {

class Quantiser {
public:
    Quantiser(float scale, int32_t zero)
        : scale_(_mm512_set1_ps(scale)),
          factor_(_mm512_set1_ps(1.0f / scale)),
          low_(_mm512_set1_ps(float(-zero))),
          high_(_mm512_set1_ps(float(255 - zero))),
          zero_(_mm512_set1_epi32(zero)) {}

    // Sixteen bytes.
    void store(__m512 x, uint8_t* bytes) const {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), _mm512_cvtepi32_epi8(integers(x)));
    }

    // x (count) -> bytes (count, then zeros up to a multiple of 4).
    void row(const float* x, int64_t count, uint8_t* bytes) const {
        int64_t i = 0;
        for (; i + kLanes <= count; i += kLanes) store(_mm512_loadu_ps(x + i), bytes + i);
        if (i == count) return;
        const __mmask16 lanes = first(count - i), stored = first((count - i + 3) / 4 * 4);
        const __m512i tail = _mm512_maskz_mov_epi32(lanes, integers(_mm512_maskz_loadu_ps(lanes, x + i)));
        _mm_mask_storeu_epi8(bytes + i, stored, _mm512_cvtepi32_epi8(tail));
    }

private:
    // A product with 1 / scale is four times faster than the quotient and off by less than 0.0001, so both round to the
    // same integer unless they lie about half-way between two: there the quotient decides.
    __m512i integers(__m512 x) const {
        __m512 q = limited(_mm512_mul_ps(x, factor_));
        const __m512 distance = _mm512_abs_ps(_mm512_sub_ps(q, _mm512_roundscale_ps(q, _MM_FROUND_TO_NEAREST_INT)));
        if (__builtin_expect(_mm512_cmp_ps_mask(distance, _mm512_set1_ps(0.4998f), _CMP_GT_OQ), 0)) {
            q = limited(_mm512_div_ps(x, scale_));
        }
        return _mm512_add_epi32(_mm512_cvtps_epi32(q), zero_);
    }

    __m512 limited(__m512 q) const { return _mm512_min_ps(_mm512_max_ps(q, low_), high_); }  // NaN becomes `low`

    __m512 scale_, factor_, low_, high_;
    __m512i zero_;
};

}  // namespace dragoman
