// What all kernels share of AVX-512: sixteen floats at a time, each reduction in one fixed order.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace dragoman {

inline constexpr int kLanes = 16;

// The first `count` of sixteen lanes.
inline __mmask16 first(int64_t count) {
    return count >= kLanes ? __mmask16(0xFFFF) : __mmask16((1u << (count < 0 ? 0 : count)) - 1u);
}

// e^x to within 2 units in the last place; 0 below the range of floats, also for -inf. NaN stays NaN.
inline __m512 exponential(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-105.0f), x);  // -inf would become NaN; of a NaN, `max` gives the second
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896f)), 8);
    // ln 2 in two parts, the first with so few digits that its product is exact.
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    // Interpolation of e^r at the Chebyshev points of [-ln 2 / 2, ln 2 / 2].
    __m512 p = _mm512_set1_ps(0.00139262504f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.00836323295f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.0416665524f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.166665763f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

// Rows of sixteen become columns.
inline void transpose(__m512 (&rows)[16]) {
    __m512 t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        for (int j = 0; j < 2; ++j) {
            const __m512d low = _mm512_castps_pd(t[i + j]), high = _mm512_castps_pd(t[i + j + 2]);
            rows[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            rows[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    }
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0xDD);
        t[i + 8] = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0xDD);
    }
    for (int i = 0; i < 8; ++i) {
        rows[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        rows[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xDD);
    }
}

// Lane r holds all of rows[r], combined. Every row is combined in the same order, wherever it stands.
template <class Combine>
inline __m512 fold(__m512 (&rows)[16], Combine combine) {
    for (int i = 0; i < 8; ++i) {  // sixteen rows to eight: halves of quarters
        const __m512 a = rows[2 * i], b = rows[2 * i + 1];
        rows[i] = combine(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    for (int i = 0; i < 4; ++i) {  // to four: whole quarters
        const __m512d a = _mm512_castps_pd(rows[2 * i]), b = _mm512_castps_pd(rows[2 * i + 1]);
        rows[i] = combine(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    for (int i = 0; i < 2; ++i) {  // to two: halves of rows
        const __m512 a = rows[2 * i], b = rows[2 * i + 1];
        rows[i] = combine(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
    }
    const __m512 a = rows[0], b = rows[1];
    return combine(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}

inline __m512 sums(__m512 (&rows)[16]) {
    return fold(rows, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
}

inline __m512 maxima(__m512 (&rows)[16]) {
    return fold(rows, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); });
}

}  // namespace dragoman
