#include "cross_attention.h"

namespace dragoman {

namespace {

struct Shape {
    int64_t rows, lanes, heads, source;
};

template <int vectors>
void compute_row(const Shape& shape, int64_t b, const float* query, History memory, int64_t length, float* attended) {
    constexpr int64_t size = vectors * kLanes;
    const int64_t width = shape.heads * size, head_size = shape.source * size;
    struct Scores;
    float* scores = scratch<Scores, float>(shape.source + kLanes);
    for (int64_t h = 0; h < shape.heads; ++h) {
        const int64_t place = (b * shape.heads + h) * head_size;
        const History seen{memory.keys + place, memory.values + place};
        const History next{seen.keys + head_size, seen.values + head_size};
        for (int64_t w = 0; w < shape.lanes; ++w) {
            const int64_t at = (b * shape.lanes + w) * width + h * size;
            attend<vectors>(query + at, seen, w ? seen : next, length, [](int64_t i) { return i; }, scores, attended + at);
        }
    }
}

}  // namespace

void CrossAttention::compute(const Call& call) const {
    const auto query = call.input<float>(0), key = call.input<float>(1), value = call.input<float>(2);
    const auto lengths = call.input<int32_t>(3);
    require(query.axes == 3 && key.axes == 4 && value.axes == 4, "query must be (B, W, D), key and value (B, H, S, K).");
    require(std::equal(key.shape, key.shape + 4, value.shape), "key and value must have one shape.");
    const Shape shape{query.shape[0], query.shape[1], heads_.count, key.shape[2]};
    require(key.shape[0] == shape.rows && key.shape[1] == shape.heads && lengths.size() == shape.rows &&
                query.shape[2] == shape.heads * key.shape[3],
            "query (B, W, H·K), key (B, H, S, K) and lengths (B) must agree.");
    float* attended = call.output<float>(0, query.shape, 3);
    with_vectors(Heads::vectors(key.shape[3]), [&](auto vectors) {
        call.parallel(shape.rows, 2 * query.size() * shape.source, [&](int64_t b) {
            const int64_t length = std::clamp<int64_t>(lengths.data[b], 0, shape.source);
            compute_row<vectors>(shape, b, query.data, {key.data, value.data}, length, attended);
        });
    });
}

}  // namespace dragoman
