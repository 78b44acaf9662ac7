// AddNorm: LayerNormalization of x, or of x + residual.
//
//   x f32 (…, D); residual f32 (…, D) or absent; weight, bias f32 (D), constant → normed f32 (…, D); sum f32 (…, D) if asked for
#pragma once

#include "operator.h"

namespace dragoman {

class AddNorm {
public:
    static constexpr const char* kName = "AddNorm";
    static constexpr std::array<Port, 4> kInputs{{{ElementType::float32},
                                                  {ElementType::float32, Presence::optional},
                                                  {ElementType::float32},
                                                  {ElementType::float32}}};
    static constexpr std::array<Port, 2> kOutputs{
        {{ElementType::float32}, {ElementType::float32, Presence::optional}}};

    explicit AddNorm(const Node& node);
    void compute(const Call& call) const;

private:
    float epsilon_;
    int64_t size_;  // D
    Aligned<float> weight_;
    Aligned<float> bias_;
};

}  // namespace dragoman
