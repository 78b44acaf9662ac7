#include "quantized_linear.h"

#include "sinks.h"

namespace dragoman {

QuantizedLinear::QuantizedLinear(const Node& node)
    : scale_(node.real("scale")),
      zero_(node.integer("zero")),
      relu_(node.integer("relu") != 0),
      residual_(node.inputs() > 4),
      heads_(node.integer("heads", 0)),
      map_(node, 1, scale_, zero_) {
    require(heads_ >= 0 && (!heads_ || map_.outputs() % (heads_ * kLanes) == 0),
            "the outputs must be shared out to heads of a multiple of 16.");
    require(!heads_ || !residual_, "heads and a residual exclude each other.");
}

// (…, K) -> (…, N), or (B, S, K) -> (B, H, S, N / H).
float* QuantizedLinear::output(const Call& call, const Tensor<const float>& x) const {
    if (heads_) return call.output<float>(0, {x.shape[0], heads_, x.shape[1], map_.outputs() / heads_});
    int64_t shape[8];
    std::copy_n(x.shape, x.axes - 1, shape);
    shape[x.axes - 1] = map_.outputs();
    return call.output<float>(0, shape, x.axes);
}

void QuantizedLinear::compute(const Call& call) const {
    const auto x = call.input<float>(0);
    require(x.axes >= 1 && x.axes <= 8 && x.last() == map_.inputs(), "the last axis of x must be K.");
    require(!heads_ || x.axes == 3, "x must be (B, S, K) for outputs in heads.");
    const int64_t rows = x.rows(), n = map_.outputs();
    Tensor<const float> residual;
    if (residual_) residual = call.input<float>(4);
    require(!residual || (residual.rows() == rows && residual.last() == n), "residual must have the shape of y.");
    const Places places{n, heads_ ? n / heads_ : n, heads_ ? x.shape[1] : 1};
    FloatSink sink(places, relu_, residual.data, output(call, x));
    in_chunks(x.data, rows, map_, Quantiser(scale_, int32_t(zero_)), [&](int64_t begin, int64_t count, const uint8_t* bytes) {
        sink.rows(begin, count);
        map_.multiply(call, bytes, count, sink);
    });
}

}  // namespace dragoman
