// SelfAttention: every position of a row attends to the row's first `lengths` positions.
//
//   qkv f32 (B, S, 3D), query | key | value, query scaled; lengths i32 (B) → f32 (B, S, D), zeros beyond the length
#pragma once

#include "attention.h"

namespace dragoman {

class SelfAttention {
public:
    static constexpr const char* kName = "SelfAttention";
    static constexpr std::array<Port, 2> kInputs{{{ElementType::float32}, {ElementType::int32}}};
    static constexpr std::array<Port, 1> kOutputs{{{ElementType::float32}}};

    explicit SelfAttention(const Node& node) : heads_(node) {}
    void compute(const Call& call) const;

private:
    Heads heads_;
};

}  // namespace dragoman
