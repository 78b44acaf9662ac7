// Floats to unsigned bytes, exactly as ONNX's QuantizeLinear: x / scale, to the nearest (ties to even), + zero, in 0…255.
#pragma once

#include "simd.h"

namespace dragoman {

// x (count) -> bytes (count, then zeros up to a multiple of 4).
inline void quantise(const float* x, int64_t count, float scale, int32_t zero, uint8_t* bytes) {
    const __m512 divisor = _mm512_set1_ps(scale), low = _mm512_set1_ps(float(-zero)),
                 high = _mm512_set1_ps(float(255 - zero));
    const __m512i shift = _mm512_set1_epi32(zero);
    for (int64_t i = 0; i < count; i += kLanes) {
        const __mmask16 lanes = first(count - i), stored = first((count - i + 3) / 4 * 4);
        __m512 q = _mm512_div_ps(_mm512_maskz_loadu_ps(lanes, x + i), divisor);
        q = _mm512_min_ps(_mm512_max_ps(q, low), high);  // NaN becomes `low`
        const __m512i integer = _mm512_maskz_add_epi32(lanes, _mm512_cvtps_epi32(q), shift);
        _mm_mask_storeu_epi8(bytes + i, stored, _mm512_cvtepi32_epi8(integer));
    }
}

}  // namespace dragoman
