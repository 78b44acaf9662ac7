// CrossAttention: every lane of a row attends to the row's source, and to no more of it than there is.
//
//   query f32 (B, W, D), scaled; key, value f32 (B, H, S, K); lengths i32 (B) → f32 (B, W, D)
#pragma once

#include "attention.h"

namespace dragoman {

class CrossAttention {
public:
    static constexpr const char* kName = "CrossAttention";
    static constexpr std::array<Port, 4> kInputs{
        {{ElementType::float32}, {ElementType::float32}, {ElementType::float32}, {ElementType::int32}}};
    static constexpr std::array<Port, 1> kOutputs{{{ElementType::float32}}};

    explicit CrossAttention(const Node& node) : heads_(node) {}
    void compute(const Call& call) const;

private:
    Heads heads_;
};

}  // namespace dragoman
