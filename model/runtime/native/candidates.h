// Candidates for the next token, and which of two is the better one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace dragoman {

struct Candidate {
    float value;
    int32_t id;
};

// The higher value; among equals the lower id.
inline bool better(const Candidate& a, const Candidate& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

// The k best of `found` candidates as log-probabilities and ids, best first; there are fewer than k only where logits are
// no numbers.
inline void write_best(Candidate* candidates, int64_t found, int64_t k, float normaliser, float* log_probs, int64_t* ids) {
    const int64_t kept = std::min(found, k);
    std::partial_sort(candidates, candidates + kept, candidates + found, better);
    for (int64_t i = 0; i < k; ++i) {
        log_probs[i] = i < kept ? candidates[i].value - normaliser : std::numeric_limits<float>::quiet_NaN();
        ids[i] = i < kept ? candidates[i].id : 0;
    }
}

}  // namespace dragoman
