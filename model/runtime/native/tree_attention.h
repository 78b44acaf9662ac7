// TreeAttention: one decoder step of self-attention over a tree of hypotheses that only grows.
//
//   qkv f32 (B, W, 3D), query | key | value, query scaled; past_key, past_value f32 (B, H, C, K); write_index i64 (B);
//   visible f32 (B, 1, W, C), 0 where a lane sees an entry
//   → attended f32 (B, W, D); present_key, present_value f32 (B, H, C, K)
//
// Lane w of row b becomes entry write_index[b] + w. Where present is the buffer of past nothing else is written; else past
// is copied first. A lane that sees no entry gives zeros.
#pragma once

#include "attention.h"

namespace dragoman {

class TreeAttention {
public:
    static constexpr const char* kName = "TreeAttention";
    static constexpr std::array<Port, 5> kInputs{{{ElementType::float32},
                                                  {ElementType::float32},
                                                  {ElementType::float32},
                                                  {ElementType::int64},
                                                  {ElementType::float32}}};
    static constexpr std::array<Port, 3> kOutputs{
        {{ElementType::float32}, {ElementType::float32}, {ElementType::float32}}};

    explicit TreeAttention(const Node& node) : heads_(node) {}
    void compute(const Call& call) const;

private:
    Heads heads_;
};

}  // namespace dragoman
