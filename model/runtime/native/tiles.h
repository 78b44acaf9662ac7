// Matrix tiles (Intel AMX): products of unsigned by signed bytes, sixteen rows by sixteen outputs at a time.
//
// Their sums are exact integers, the same as those of the vector instructions.
#pragma once

#include <cstdint>

namespace dragoman::tiles {

inline constexpr int64_t kRows = 16;    // rows of a tile
inline constexpr int64_t kInputs = 64;  // bytes of each of them

// Whether this CPU has tiles, the system lends them to this process, and nobody forbade them.
bool available();

// Gives this thread tiles of sixteen rows of 64 bytes, if it has no such ones yet. It keeps them.
void configure();

// What to fetch into the second cache meanwhile: for each 64 inputs so many pairs of cache lines, from `from` on.
struct Ahead {
    const int8_t* from;
    int64_t pairs;  // a multiple of 8
};

// x u8 (16 or 32, K), a row `apart` bytes after the last, by a panel s8 (K / 4, 64, 4) -> sums (16 or 32, 64).
// K is a multiple of 64. Needs a configured thread.
void multiply_16(const uint8_t* x, int64_t apart, const int8_t* panel, int64_t inputs, Ahead ahead, int32_t* sums);
void multiply_32(const uint8_t* x, int64_t apart, const int8_t* panel, int64_t inputs, Ahead ahead, int32_t* sums);

}  // namespace dragoman::tiles
