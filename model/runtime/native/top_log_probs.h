// TopLogProbs: the k best of log-softmax(logits), best first, ties to the lower id.
//
//   logits f32 (B, W, V), -inf where a token is forbidden; k i64 (1), from 1 to V → log_probs f32 (B, W, k), ids i64 (B, W, k)
#pragma once

#include "operator.h"

namespace dragoman {

class TopLogProbs {
public:
    static constexpr const char* kName = "TopLogProbs";
    static constexpr std::array<Port, 2> kInputs{{{ElementType::float32}, {ElementType::int64}}};
    static constexpr std::array<Port, 2> kOutputs{{{ElementType::float32}, {ElementType::int64}}};

    explicit TopLogProbs(const Node&) {}
    void compute(const Call& call) const;
};

}  // namespace dragoman
