// One query against rows of keys and values: softmax(q Kᵀ) V, in float32 with one fixed order of every sum.
//
// The result depends only on the query and on the rows it sees, in their order: not on where they lie, not on other
// queries, not on how much room a cache has.
#pragma once

#include <algorithm>
#include <limits>

#include "operator.h"
#include "simd.h"

namespace dragoman {

inline constexpr int kMostVectors = 8;  // heads of up to 128 numbers

// The number of heads and the size of one; refuses what the kernels are not made for.
struct Heads {
    int64_t count;
    int64_t size = 0;

    explicit Heads(const Node& node) : count(node.integer("heads")) { require(count >= 1, "heads must be at least 1."); }

    // Registers of sixteen numbers that hold a head of `size`.
    static int vectors(int64_t size) {
        require(size >= kLanes && size % kLanes == 0 && size <= kMostVectors * kLanes,
                "the size of a head must be a multiple of 16 from 16 to 128.");
        return int(size / kLanes);
    }
};

// Calls `work` with the number of registers of a head as a constant.
template <class Work>
void with_vectors(int vectors, Work work) {
    switch (vectors) {
        case 1: return work(std::integral_constant<int, 1>());
        case 2: return work(std::integral_constant<int, 2>());
        case 3: return work(std::integral_constant<int, 3>());
        case 4: return work(std::integral_constant<int, 4>());
        case 5: return work(std::integral_constant<int, 5>());
        case 6: return work(std::integral_constant<int, 6>());
        case 7: return work(std::integral_constant<int, 7>());
        default: return work(std::integral_constant<int, 8>());
    }
}

// Scores become e^(score − largest); returns their sum. `scores` has room up to a multiple of sixteen and ends in zeros.
inline float exponentials(float* scores, int64_t count) {
    __m512 most = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    for (int64_t i = 0; i < count; i += kLanes) {
        most = _mm512_mask_max_ps(most, first(count - i), most, _mm512_loadu_ps(scores + i));
    }
    const __m512 largest = _mm512_set1_ps(_mm512_reduce_max_ps(most));
    __m512 total = _mm512_setzero_ps();
    for (int64_t i = 0; i < count; i += kLanes) {
        const __m512 e = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + i), largest));
        const __m512 kept = _mm512_maskz_mov_ps(first(count - i), e);
        _mm512_storeu_ps(scores + i, kept);
        total = _mm512_add_ps(total, kept);
    }
    return _mm512_reduce_add_ps(total);
}

// Keys and values of one head: row j of each is `vectors` · 16 floats.
struct History {
    const float* keys;
    const float* values;
};

// Attends to `count` rows, the i-th being row(i), and fetches the same rows of `next` meanwhile; zeros if there is none.
template <int vectors, class Row>
void attend(const float* query, History seen, History next, int64_t count, Row row, float* scores, float* attended) {
    constexpr int64_t size = vectors * kLanes;
    __m512 q[vectors];
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) q[v] = _mm512_loadu_ps(query + v * kLanes);
    for (int64_t i = 0; i < count; i += kLanes) {
        __m512 products[kLanes];
#pragma GCC unroll 16
        for (int r = 0; r < kLanes; ++r) {
            const int64_t offset = row(std::min(i + r, count - 1)) * size;  // past the end: the last once more
            const float* key = seen.keys + offset;
            products[r] = _mm512_mul_ps(q[0], _mm512_loadu_ps(key));
#pragma GCC unroll 16
            for (int v = 1; v < vectors; ++v) {
                products[r] = _mm512_fmadd_ps(q[v], _mm512_loadu_ps(key + v * kLanes), products[r]);
            }
#pragma GCC unroll 16
            for (int v = 0; v < vectors; ++v) _mm_prefetch(next.keys + offset + v * kLanes, _MM_HINT_T0);
        }
        _mm512_storeu_ps(scores + i, sums(products));
    }
    const float total = exponentials(scores, count);
    __m512 even[vectors], odd[vectors];  // two chains of sums, for each addition waits for the one before
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) even[v] = odd[v] = _mm512_setzero_ps();
    const auto add = [&](__m512(&sum)[vectors], int64_t i) {
        const int64_t offset = row(i) * size;
        const __m512 weight = _mm512_set1_ps(scores[i]);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; ++v) {
            sum[v] = _mm512_fmadd_ps(weight, _mm512_loadu_ps(seen.values + offset + v * kLanes), sum[v]);
            _mm_prefetch(next.values + offset + v * kLanes, _MM_HINT_T0);
        }
    };
    int64_t i = 0;
    for (; i + 1 < count; i += 2) {
        add(even, i);
        add(odd, i + 1);
    }
    if (i < count) add(even, i);
    const __m512 factor = _mm512_set1_ps(count ? 1.0f / total : 0.0f);
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) {
        _mm512_storeu_ps(attended + v * kLanes, _mm512_mul_ps(_mm512_add_ps(even[v], odd[v]), factor));
    }
}

}  // namespace dragoman
