#include "feed_forward.h"

#include "sinks.h"

namespace dragoman {

FeedForward::FeedForward(const Node& node)
    : scale_(node.real("scale")),
      zero_(node.integer("zero")),
      hidden_scale_(node.real("hidden_scale")),
      residual_(node.inputs() > 7),
      inner_(node, 1, scale_, zero_),
      outer_(node, 4, hidden_scale_, 0) {
    require(inner_.outputs() == outer_.inputs(), "weight_1 (K, F) and weight_2 (F, N) must agree.");
}

void FeedForward::compute(const Call& call) const {
    const auto x = call.input<float>(0);
    require(x.axes >= 1 && x.axes <= 8 && x.last() == inner_.inputs(), "the last axis of x must be K.");
    const int64_t rows = x.rows(), n = outer_.outputs();
    Tensor<const float> residual;
    if (residual_) residual = call.input<float>(7);
    require(!residual || (residual.rows() == rows && residual.last() == n), "residual must have the shape of y.");
    int64_t shape[8];
    std::copy_n(x.shape, x.axes - 1, shape);
    shape[x.axes - 1] = n;  // (…, K) -> (…, N)
    FloatSink sink({n, n, 1}, false, residual.data, call.output<float>(0, shape, x.axes));
    struct Hidden;
    uint8_t* hidden = scratch<Hidden, uint8_t>(outer_.room(rows));
    const Quantiser quantiser(hidden_scale_, 0);
    const ByteSink bytes_sink(quantiser, hidden, outer_.stride());
    in_chunks(x.data, rows, inner_, Quantiser(scale_, int32_t(zero_)), [&](int64_t begin, int64_t count, const uint8_t* bytes) {
        inner_.multiply(call, bytes, count, bytes_sink);  // (rows, K) -> (rows, F)
        sink.rows(begin, count);
        outer_.multiply(call, hidden, count, sink);  // (rows, F) -> (rows, N)
    });
}

}  // namespace dragoman
