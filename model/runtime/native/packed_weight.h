// A weight matrix as the VNNI product wants it: panels of 64 outputs, in each four inputs of an output side by side.
#pragma once

#include <cstdint>

#include "operator.h"

namespace dragoman {

inline constexpr int64_t kPanel = 64;  // outputs in a panel: four registers of sixteen sums
inline constexpr int64_t kGroup = 4;   // inputs that one product instruction adds up

struct PackedWeight {
    int64_t inputs;   // K
    int64_t outputs;  // N
    int64_t groups;   // ⌈K / 4⌉
    int64_t panels;   // ⌈N / 64⌉
    Aligned<int8_t> bytes;            // (panels, groups, 64, 4), zeros where K or N end earlier
    Aligned<int32_t> correction;      // (panels · 64): zero point of x · sum of the output's weights

    // From signed bytes (K, N).
    PackedWeight(const int8_t* weight, int64_t inputs, int64_t outputs, int32_t zero_point);

    int64_t panel_bytes() const { return groups * kPanel * kGroup; }
};

}  // namespace dragoman
