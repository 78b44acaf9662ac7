// FeedForward: two QuantizedLinear with a ReLU between them, whose hidden numbers never are floats in memory.
//
//   x f32 (…, K); weight_1 s8 (K, F), its scales and bias f32 (F); weight_2 s8 (F, N), its scales and bias f32 (N);
//   residual f32 (…, N) or absent → y f32 (…, N)
//
// `scale` and `zero` say how x becomes bytes, `hidden_scale` how the hidden numbers do: never negative, their zero is 0.
// The bits are those of the two operators.
#pragma once

#include "packed_linear.h"

namespace dragoman {

class FeedForward {
public:
    static constexpr const char* kName = "FeedForward";
    static constexpr std::array<Port, 8> kInputs{{{ElementType::float32},
                                                  {ElementType::int8},
                                                  {ElementType::float32},
                                                  {ElementType::float32},
                                                  {ElementType::int8},
                                                  {ElementType::float32},
                                                  {ElementType::float32},
                                                  {ElementType::float32, Presence::optional}}};
    static constexpr std::array<Port, 1> kOutputs{{{ElementType::float32}}};

    explicit FeedForward(const Node& node);
    void compute(const Call& call) const;

private:
    float scale_;
    int64_t zero_;
    float hidden_scale_;
    bool residual_;
    PackedLinear inner_;
    PackedLinear outer_;
};

}  // namespace dragoman
