#include "self_attention.h"

#include <cstring>

namespace dragoman {

namespace {

// One head of one row. Scores are computed as products of matrices: keys are turned, so that sixteen of them are a register.
template <int vectors>
class Head {
public:
    Head(int64_t length, int64_t stride) : length_(length), padded_((length + kLanes - 1) / kLanes * kLanes), stride_(stride) {
        struct Turned;
        struct Values;
        struct Scores;
        turned_ = scratch<Turned, float>(size * padded_);
        values_ = scratch<Values, float>(size * padded_);
        scores_ = scratch<Scores, float>(kTile * padded_);
    }

    // query, key and value: row i at i · stride; attended: row i at i · width.
    void compute(const float* query, const float* key, const float* value, float* attended, int64_t width) const {
        turn(key);
        // Side by side: as they come, at a multiple of 2048 bytes, they would all want the same few lines of the cache.
        for (int64_t i = 0; i < length_; ++i) std::copy_n(value + i * stride_, size, values_ + i * size);
        const int64_t tiles = (length_ + kTile - 1) / kTile;
        for (int64_t t = 0; t < tiles; ++t) {
            const int64_t from = length_ * t / tiles, to = length_ * (t + 1) / tiles;
            with_rows(to - from, [&](auto rows) { tile<rows>(query + from * stride_, attended + from * width, width); });
        }
    }

private:
    static constexpr int64_t size = vectors * kLanes;
    static constexpr int kTile = vectors <= 4 ? 6 : 3;  // queries at a time: their sums of values fit into registers

    template <class Work>
    static void with_rows(int64_t rows, Work work) {
        switch (rows) {
            case 1: return work(std::integral_constant<int, 1>());
            case 2: return work(std::integral_constant<int, 2>());
            case 3: return work(std::integral_constant<int, 3>());
        }
        if constexpr (kTile > 3) {
            switch (rows) {
                case 4: return work(std::integral_constant<int, 4>());
                case 5: return work(std::integral_constant<int, 5>());
                case 6: return work(std::integral_constant<int, 6>());
            }
        }
    }

    // (S, K) -> (K, S), zeros past the length.
    void turn(const float* key) const {
        for (int64_t from = 0; from < padded_; from += kLanes) {
#pragma GCC unroll 16
            for (int v = 0; v < vectors; ++v) {
                __m512 block[kLanes];
#pragma GCC unroll 16
                for (int r = 0; r < kLanes; ++r) {
                    block[r] = from + r < length_ ? _mm512_loadu_ps(key + (from + r) * stride_ + v * kLanes) : _mm512_setzero_ps();
                }
                transpose(block);
#pragma GCC unroll 16
                for (int r = 0; r < kLanes; ++r) _mm512_storeu_ps(turned_ + (v * kLanes + r) * padded_ + from, block[r]);
            }
        }
    }

    template <int rows>
    void tile(const float* query, float* attended, int64_t width) const {
        int64_t from = 0;
        for (; from + 4 * kLanes <= padded_; from += 4 * kLanes) score<rows, 4>(query, from);
        for (; from + 2 * kLanes <= padded_; from += 2 * kLanes) score<rows, 2>(query, from);
        for (; from < padded_; from += kLanes) score<rows, 1>(query, from);
        float factors[rows];
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) factors[r] = 1.0f / exponentials(scores_ + r * padded_, length_);
        __m512 sum[rows][vectors];
#pragma GCC unroll 32
        for (int i = 0; i < rows * vectors; ++i) sum[i / vectors][i % vectors] = _mm512_setzero_ps();
        for (int64_t j = 0; j < length_; ++j) {
            __m512 v[vectors];
#pragma GCC unroll 16
            for (int i = 0; i < vectors; ++i) v[i] = _mm512_load_ps(values_ + j * size + i * kLanes);
#pragma GCC unroll 16
            for (int r = 0; r < rows; ++r) {
                const __m512 weight = _mm512_set1_ps(scores_[r * padded_ + j]);
#pragma GCC unroll 16
                for (int i = 0; i < vectors; ++i) sum[r][i] = _mm512_fmadd_ps(weight, v[i], sum[r][i]);
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
            const __m512 factor = _mm512_set1_ps(factors[r]);
#pragma GCC unroll 16
            for (int i = 0; i < vectors; ++i) {
                _mm512_storeu_ps(attended + r * width + i * kLanes, _mm512_mul_ps(sum[r][i], factor));
            }
        }
    }

    // Scores of `rows` queries with 16 · registers keys from `from` on; each a single chain of sums over K.
    template <int rows, int registers>
    void score(const float* query, int64_t from) const {
        __m512 sum[rows][registers];
#pragma GCC unroll 32
        for (int i = 0; i < rows * registers; ++i) sum[i / registers][i % registers] = _mm512_setzero_ps();
        for (int64_t k = 0; k < size; ++k) {
            __m512 keys[registers];
#pragma GCC unroll 16
            for (int i = 0; i < registers; ++i) keys[i] = _mm512_loadu_ps(turned_ + k * padded_ + from + i * kLanes);
#pragma GCC unroll 16
            for (int r = 0; r < rows; ++r) {
                const __m512 q = _mm512_set1_ps(query[r * stride_ + k]);
#pragma GCC unroll 16
                for (int i = 0; i < registers; ++i) sum[r][i] = _mm512_fmadd_ps(q, keys[i], sum[r][i]);
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
            for (int i = 0; i < registers; ++i) _mm512_storeu_ps(scores_ + r * padded_ + from + i * kLanes, sum[r][i]);
        }
    }

    int64_t length_, padded_, stride_;
    float* turned_;  // (K, S)
    float* values_;  // (S, K)
    float* scores_;  // (queries of a tile, S)
};

}  // namespace

void SelfAttention::compute(const Call& call) const {
    const auto qkv = call.input<float>(0);
    const auto lengths = call.input<int32_t>(1);
    require(qkv.axes == 3 && qkv.shape[2] % (3 * heads_.count) == 0, "qkv must be (B, S, 3·H·K).");
    const int64_t rows = qkv.shape[0], source = qkv.shape[1], width = qkv.shape[2] / 3, size = width / heads_.count;
    require(lengths.size() == rows, "lengths must be (B).");
    float* attended = call.output<float>(0, {rows, source, width});
    with_vectors(Heads::vectors(size), [&](auto vectors) {
        call.parallel(rows, 2 * rows * source * source * width, [&](int64_t b) {
            const int64_t length = std::clamp<int64_t>(lengths.data[b], 0, source);
            const Head<vectors> head(length, 3 * width);
            for (int64_t h = 0; h < heads_.count; ++h) {
                const float* query = qkv.data + b * source * 3 * width + h * size;
                head.compute(query, query + width, query + 2 * width, attended + b * source * width + h * size, width);
            }
            std::fill_n(attended + (b * source + length) * width, (source - length) * width, 0.0f);
        });
    });
}

}  // namespace dragoman
