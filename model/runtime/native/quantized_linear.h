// QuantizedLinear: y = relu?(s_x s_n (Σ_k q_x[k] q_W[k, n] − zero · Σ_k q_W[k, n]) + b[n]) + residual?
//
//   x f32 (…, K), weight s8 (K, N), weight_scale f32 (N), bias f32 (N), residual f32 (…, N) or absent → y f32 (…, N)
//
// With the attribute `heads` above 0 x is (B, S, K) and y comes as heads (B, H, S, N / H), without a residual.
// `scale` and `zero` say how x becomes unsigned bytes, as QuantizeLinear does it. The sum is exact, so y has the bits of
// QuantizeLinear and MatMulIntegerToFloat, in any batch.
#pragma once

#include "packed_linear.h"

namespace dragoman {

class QuantizedLinear {
public:
    static constexpr const char* kName = "QuantizedLinear";
    static constexpr std::array<Port, 5> kInputs{{{ElementType::float32},
                                                  {ElementType::int8},
                                                  {ElementType::float32},
                                                  {ElementType::float32},
                                                  {ElementType::float32, Presence::optional}}};
    static constexpr std::array<Port, 1> kOutputs{{{ElementType::float32}}};

    explicit QuantizedLinear(const Node& node);
    void compute(const Call& call) const;

private:
    float* output(const Call& call, const Tensor<const float>& x) const;

    float scale_;
    int64_t zero_;
    bool relu_;
    bool residual_;
    int64_t heads_;  // 0: y keeps the axes of x
    PackedLinear map_;
};

}  // namespace dragoman
