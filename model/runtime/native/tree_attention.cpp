#include "tree_attention.h"

#include <cstring>

namespace dragoman {

namespace {

struct Shape {
    int64_t rows, lanes, heads, capacity;
};

// The first `count` entries that are visible, in order: their number, and their indices in `entries`.
int64_t list_visible(const float* visible, int64_t count, int32_t* entries) {
    int64_t listed = 0;
    __m512i index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int64_t i = 0; i < count; i += kLanes) {
        const __mmask16 lanes = first(count - i);
        const __mmask16 seen = _mm512_mask_cmp_ps_mask(lanes, _mm512_maskz_loadu_ps(lanes, visible + i),
                                                       _mm512_setzero_ps(), _CMP_EQ_OQ);
        _mm512_mask_compressstoreu_epi32(entries + listed, seen, index);
        listed += __builtin_popcount(seen);
        index = _mm512_add_epi32(index, _mm512_set1_epi32(kLanes));
    }
    return listed;
}

template <int vectors>
class Step {
public:
    Step(const Shape& shape, const float* qkv, float* keys, float* values, float* attended)
        : shape_(shape), qkv_(qkv), keys_(keys), values_(values), attended_(attended) {
        struct Entries;
        struct Counts;
        struct Scores;
        entries_ = scratch<Entries, int32_t>(shape.lanes * shape.capacity);
        counts_ = scratch<Counts, int64_t>(shape.lanes);
        scores_ = scratch<Scores, float>(shape.capacity + kLanes);
    }

    void row(int64_t b, int64_t written, const float* visible) const {
        for (int64_t w = 0; w < shape_.lanes; ++w) {
            const float* seen = visible + (b * shape_.lanes + w) * shape_.capacity;
            counts_[w] = list_visible(seen, written + shape_.lanes, entries_ + w * shape_.capacity);
        }
        for (int64_t h = 0; h < shape_.heads; ++h) head(b, h, written);
    }

private:
    static constexpr int64_t size = vectors * kLanes;

    void head(int64_t b, int64_t h, int64_t written) const {
        const int64_t width = shape_.heads * size, place = (b * shape_.heads + h) * shape_.capacity * size;
        const History seen{keys_ + place, values_ + place};
        const History next{seen.keys + shape_.capacity * size, seen.values + shape_.capacity * size};
        for (int64_t w = 0; w < shape_.lanes; ++w) {
            const float* query = qkv_ + (b * shape_.lanes + w) * 3 * width + h * size;
            const int64_t entry = place + (written + w) * size;
            std::memcpy(keys_ + entry, query + width, size * sizeof(float));
            std::memcpy(values_ + entry, query + 2 * width, size * sizeof(float));
        }
        for (int64_t w = 0; w < shape_.lanes; ++w) {
            const float* query = qkv_ + (b * shape_.lanes + w) * 3 * width + h * size;
            const int32_t* entries = entries_ + w * shape_.capacity;
            attend<vectors>(query, seen, w ? seen : next, counts_[w], [entries](int64_t i) { return entries[i]; },
                            scores_, attended_ + (b * shape_.lanes + w) * width + h * size);
        }
    }

    Shape shape_;
    const float* qkv_;
    float* keys_;
    float* values_;
    float* attended_;
    int32_t* entries_;
    int64_t* counts_;
    float* scores_;
};

// The output of a cache: the same buffer, or a copy.
float* present(const Call& call, size_t index, const Tensor<const float>& past) {
    float* made = call.output<float>(index, past.shape, past.axes);
    if (made != past.data) std::memcpy(made, past.data, past.size() * sizeof(float));
    return made;
}

}  // namespace

void TreeAttention::compute(const Call& call) const {
    const auto qkv = call.input<float>(0), key = call.input<float>(1), value = call.input<float>(2);
    const auto written = call.input<int64_t>(3);
    const auto visible = call.input<float>(4);
    require(qkv.axes == 3 && key.axes == 4 && value.axes == 4, "qkv must be (B, W, 3D), the caches (B, H, C, K).");
    require(std::equal(key.shape, key.shape + 4, value.shape), "past_key and past_value must have one shape.");
    const Shape shape{qkv.shape[0], qkv.shape[1], heads_.count, key.shape[2]};
    const int64_t width = shape.heads * key.shape[3];
    require(key.shape[0] == shape.rows && key.shape[1] == shape.heads && qkv.shape[2] == 3 * width &&
                written.size() == shape.rows && visible.size() == shape.rows * shape.lanes * shape.capacity,
            "qkv (B, W, 3·H·K), caches (B, H, C, K), write_index (B) and visible (B, 1, W, C) must agree.");
    for (int64_t b = 0; b < shape.rows; ++b) {
        require(written.data[b] >= 0 && written.data[b] <= shape.capacity - shape.lanes,
                "write_index and the lanes after it must lie within the capacity.");
    }
    float* attended = call.output<float>(0, {shape.rows, shape.lanes, width});
    float* keys = present(call, 1, key);
    float* values = present(call, 2, value);
    if (shape.rows == 0) return;
    with_vectors(Heads::vectors(key.shape[3]), [&](auto vectors) {
        const int64_t most = *std::max_element(written.data, written.data + shape.rows);
        call.parallel(shape.rows, 2 * shape.rows * shape.lanes * width * most, [&](int64_t b) {
            Step<vectors>(shape, qkv.data, keys, values, attended).row(b, written.data[b], visible.data);
        });
    });
}

}  // namespace dragoman
