#include "packed_linear.h"

namespace dragoman {

namespace {

constexpr int64_t kMostInputs = 65536;  // 65536 · 255 · 127 < 2³¹: no sum can overflow

// One float for each output, with zeros up to the end of the last panel.
void copy_padded(const Tensor<const float>& from, int64_t outputs, Aligned<float>& to, int64_t padded, const char* what) {
    require(from.size() == outputs, what);
    std::fill_n(to.grow(padded), padded, 0.0f);
    std::copy_n(from.data, outputs, to.data());
}

}  // namespace

PackedLinear::PackedLinear(const Node& node, size_t input, float scale, int64_t zero) {
    const auto weight = node.constant<int8_t>(input, "weight");
    require(weight.axes == 2, "weight must have the shape (K, N).");
    inputs_ = weight.shape[0];
    outputs_ = weight.shape[1];
    require(inputs_ >= 1 && inputs_ <= kMostInputs, "K must be from 1 to 65536.");
    require(zero >= 0 && zero <= 255, "zero must be from 0 to 255.");
    require(scale > 1e-30f && scale < 1e30f, "scale must be above 0, from 1e-30 to 1e30.");
    groups_ = (inputs_ + tiles::kInputs - 1) / tiles::kInputs * tiles::kInputs / kGroup;
    panels_ = (outputs_ + kPanel - 1) / kPanel;
    pack(weight.data, zero);
    const int64_t padded = panels_ * kPanel;
    copy_padded(node.constant<float>(input + 1, "weight_scale"), outputs_, scales_, padded, "weight_scale must be (N).");
    copy_padded(node.constant<float>(input + 2, "bias"), outputs_, bias_, padded, "bias must be (N).");
    for (int64_t n = 0; n < padded; ++n) scales_[n] *= scale;
}

void PackedLinear::pack(const int8_t* weight, int64_t zero) {
    std::memset(weights_.grow(panels_ * panel_bytes()), 0, panels_ * panel_bytes());
    std::fill_n(start_.grow(panels_ * kPanel), panels_ * kPanel, 0);
    for (int64_t k = 0; k < inputs_; ++k) {
        for (int64_t n = 0; n < outputs_; ++n) {
            const int8_t value = weight[k * outputs_ + n];
            weights_[((n / kPanel * groups_ + k / kGroup) * kPanel + n % kPanel) * kGroup + k % kGroup] = value;
            start_[n] -= int32_t(zero) * value;
        }
    }
}

}  // namespace dragoman
