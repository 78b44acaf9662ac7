// LinearTopLogProbs: the k best of log-softmax(y), y being what QuantizedLinear makes of x; best first, ties to the lower id.
//
//   x f32 (B, W, K), weight s8 (K, N), weight_scale f32 (N), bias f32 (N), -inf where a token is forbidden,
//   k i64 (1), from 1 to N → log_probs f32 (B, W, k), ids i64 (B, W, k)
//
// The numbers y never lie in memory all at once: each panel of 64 outputs leaves of a row its largest one, a sum of
// exponentials, and those that are among the k best so far.
#pragma once

#include "packed_linear.h"

namespace dragoman {

class LinearTopLogProbs {
public:
    static constexpr const char* kName = "LinearTopLogProbs";
    static constexpr std::array<Port, 5> kInputs{{{ElementType::float32},
                                                  {ElementType::int8},
                                                  {ElementType::float32},
                                                  {ElementType::float32},
                                                  {ElementType::int64}}};
    static constexpr std::array<Port, 2> kOutputs{{{ElementType::float32}, {ElementType::int64}}};

    explicit LinearTopLogProbs(const Node& node);
    void compute(const Call& call) const;

private:
    float scale_;
    int64_t zero_;
    PackedLinear map_;
};

}  // namespace dragoman
