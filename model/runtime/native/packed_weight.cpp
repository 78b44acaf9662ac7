#include "packed_weight.h"

#include <cstring>

namespace dragoman {

PackedWeight::PackedWeight(const int8_t* weight, int64_t k, int64_t n, int32_t zero_point)
    : inputs(k),
      outputs(n),
      groups((k + kGroup - 1) / kGroup),
      panels((n + kPanel - 1) / kPanel),
      bytes(panels * panel_bytes()),
      correction(panels * kPanel) {
    std::memset(bytes.data(), 0, panels * panel_bytes());
    std::memset(correction.data(), 0, panels * kPanel * sizeof(int32_t));
    for (int64_t row = 0; row < k; ++row) {
        for (int64_t column = 0; column < n; ++column) {
            const int8_t value = weight[row * n + column];
            const int64_t panel = column / kPanel, place = column % kPanel;
            bytes[((panel * groups + row / kGroup) * kPanel + place) * kGroup + row % kGroup] = value;
            correction[column] += zero_point * value;
        }
    }
}

}  // namespace dragoman
