// One linear map of unsigned bytes: its weight as the product wants it, and the product.
//
// A weight is kept as panels of 64 outputs, in each four inputs of an output side by side. Where the outputs go, and what is
// done to them before, is the business of a sink. It gives a place for a panel, which takes sixteen outputs of a row at a time
// and hears when that was all.
#pragma once

#include <algorithm>
#include <cstring>

#include "operator.h"
#include "simd.h"
#include "tiles.h"

namespace dragoman {

inline constexpr int64_t kPanel = 64;     // outputs in a panel: four registers of sixteen sums
inline constexpr int64_t kGroup = 4;      // inputs that one product instruction adds up
inline constexpr int64_t kLine = 64;      // bytes of a cache line
inline constexpr int64_t kMostRows = 6;   // 6 rows · 4 registers of sums leave room for weights and one input
inline constexpr int64_t kChunk = 96;     // rows that are multiplied together: their bytes stay in the second cache
inline constexpr int64_t kAhead = 4096;   // bytes by which a single pass over the weights fetches ahead
inline constexpr int64_t kFewest = 10;    // rows from which on tiles are faster than vectors, where there are tiles

// sum += Σ₄ x · w, unsigned by signed bytes. As the intrinsic, but compilers copy that one's sums to and fro.
inline void add_products(__m512i& sum, __m512i x, __m512i w) { asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w)); }

class PackedLinear {
public:
    // From three constant inputs of the node, the first being `input`: weight s8 (K, N), its scales f32 (N), bias f32 (N).
    PackedLinear(const Node& node, size_t input, float scale, int64_t zero);

    int64_t inputs() const { return inputs_; }
    int64_t outputs() const { return outputs_; }
    int64_t panels() const { return panels_; }
    // Bytes from one row of input to the next: whole cache lines.
    int64_t stride() const { return groups_ * kGroup; }
    // Bytes that a chunk of at most so many rows takes: whole tiles.
    int64_t room(int64_t rows) const { return (std::min(rows, kChunk) + tiles::kRows - 1) / tiles::kRows * tiles::kRows * stride(); }

    // Rows (rows, K) by the weight (K, N), with scales and bias; `rows` is at most kChunk, and `bytes` is of the size
    // `room(rows)`.
    //
    // Panel after panel, in each block after block of rows; all blocks of a panel together fetch the next one. Panels are
    // shared out to the threads in so many parts, 0 being as many as there are panels.
    template <class Sink>
    void multiply(const Call& call, const uint8_t* bytes, int64_t rows, const Sink& sink, int64_t parts = 0) const {
        const bool in_tiles = rows >= kFewest && tiles::available();
        if (!parts) parts = panels_;
        call.parallel(parts, rows * panel_bytes() * panels_, [&](int64_t part) {
            for (int64_t panel = panels_ * part / parts; panel < panels_ * (part + 1) / parts; ++panel) {
                const auto place = sink.place(panel, part);
                in_tiles ? by_tiles(bytes, rows, panel, place) : by_vectors(bytes, rows, panel, place);
                place.end(rows);
            }
        });
    }

private:
    // From sixteen sums to outputs: those of register `v` of a panel.
    struct Finish {
        Finish(const PackedLinear& map, int64_t panel, int v) : Finish(map, panel * kPanel + v * kLanes) {}
        Finish(const PackedLinear& map, int64_t column)
            : lanes(first(map.outputs_ - column)),
              start(_mm512_load_si512(&map.start_[column])),
              scale(_mm512_load_ps(&map.scales_[column])),
              bias(_mm512_load_ps(&map.bias_[column])) {}

        __m512 operator()(__m512i sum) const {
            return _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale), bias);
        }

        const __mmask16 lanes;
        const __m512i start;
        const __m512 scale, bias;
    };

    struct Block {
        const uint8_t* bytes;
        int64_t from, to;  // rows
        int64_t panel;
    };

    int64_t panel_bytes() const { return groups_ * kPanel * kGroup; }
    void pack(const int8_t* weight, int64_t zero);

    // (rows, K) by one panel (K, 64) -> (rows, 64), on tiles.
    template <class Place>
    void by_tiles(const uint8_t* bytes, int64_t rows, int64_t panel, const Place& place) const {
        constexpr int64_t kMost = 2 * tiles::kRows, kPairs = tiles::kInputs * kPanel / (2 * kLine);
        alignas(kLine) int32_t sums[kMost * kPanel];
        const int64_t blocks = (rows + kMost - 1) / kMost;
        const int8_t *weights = weights_.data() + panel * panel_bytes(), *next = weights + panel_bytes();
        const std::array<Finish, 4> finish{{{*this, panel, 0}, {*this, panel, 1}, {*this, panel, 2}, {*this, panel, 3}}};
        tiles::configure();
        for (int64_t i = 0; i < blocks; ++i) {
            const int64_t from = i * kMost, count = std::min(rows - from, kMost);
            const int64_t begin = kPairs * i / blocks / 8 * 8, end = kPairs * (i + 1) / blocks / 8 * 8;
            const tiles::Ahead ahead{next + begin * groups_ / 16 * 2 * kLine, end - begin};
            const auto multiply = count > tiles::kRows ? tiles::multiply_32 : tiles::multiply_16;
            multiply(bytes + from * stride(), stride(), weights, groups_ * kGroup, ahead, sums);
            for (int64_t r = 0; r < count; ++r) {
                for (int v = 0; v < 4; ++v) {
                    const __m512i sum = _mm512_load_si512(sums + r * kPanel + v * kLanes);
                    place.put(from + r, v, finish[v].lanes, finish[v](_mm512_add_epi32(sum, finish[v].start)));
                }
            }
        }
    }

    // The same on vectors.
    template <class Place>
    void by_vectors(const uint8_t* bytes, int64_t rows, int64_t panel, const Place& place) const {
        const int64_t blocks = (rows + kMostRows - 1) / kMostRows, size = panel_bytes();
        const int8_t* weights = weights_.data() + panel * size;
        for (int64_t i = 0; i < blocks; ++i) {
            const Block at{bytes, rows * i / blocks, rows * (i + 1) / blocks, panel};
            if (blocks == 1)
                block<4>(at, weights + kAhead, place);
            else if (blocks == 2)
                block<2>(at, weights + size + i * size / 2, place);
            else if (i < 4)
                block<1>(at, weights + size + i * size / 4, place);
            else
                block<0>(at, weights, place);
        }
    }

    template <int ahead, class Place>
    void block(const Block& at, const int8_t* next, const Place& place) const {
        switch (at.to - at.from) {
            case 1: return block_of<1, ahead>(at, next, place);
            case 2: return block_of<2, ahead>(at, next, place);
            case 3: return block_of<3, ahead>(at, next, place);
            case 4: return block_of<4, ahead>(at, next, place);
            case 5: return block_of<5, ahead>(at, next, place);
            default: return block_of<6, ahead>(at, next, place);
        }
    }

    // (rows, K) by one panel (K, 64) -> (rows, 64). Fetches `ahead` lines of `next` for each four inputs.
    template <int rows, int ahead, class Place>
    void block_of(const Block& at, const int8_t* next, const Place& place) const {
        const int8_t* weights = weights_.data() + at.panel * panel_bytes();
        const int64_t column = at.panel * kPanel, apart = stride();
        const uint8_t* bytes = at.bytes + at.from * apart;
        __m512i sum[rows][4];
#pragma GCC unroll 8
        for (int v = 0; v < 4; ++v) {
            const __m512i start = _mm512_load_si512(&start_[column + v * kLanes]);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) sum[r][v] = start;
        }
        for (int64_t k = 0; k < groups_; ++k) {
            __m512i w[4];
#pragma GCC unroll 8
            for (int v = 0; v < 4; ++v) w[v] = _mm512_load_si512(weights + (k * 4 + v) * kLine);
            // A single pass wants them at once; else the next panel waits in the second cache, this one fills the first.
#pragma GCC unroll 8
            for (int i = 0; i < ahead; ++i) _mm_prefetch(next + (k * ahead + i) * kLine, ahead == 4 ? _MM_HINT_T0 : _MM_HINT_T1);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                int32_t four;
                std::memcpy(&four, bytes + r * apart + k * kGroup, sizeof four);
                const __m512i x = _mm512_set1_epi32(four);
#pragma GCC unroll 8
                for (int v = 0; v < 4; ++v) add_products(sum[r][v], x, w[v]);
            }
        }
#pragma GCC unroll 8
        for (int v = 0; v < 4; ++v) {
            const Finish finish(*this, at.panel, v);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) place.put(at.from + r, v, finish.lanes, finish(sum[r][v]));
        }
    }

    int64_t inputs_ = 0;   // K
    int64_t outputs_ = 0;  // N
    int64_t groups_ = 0;   // K / 4, rounded up to whole tiles
    int64_t panels_ = 0;   // ⌈N / 64⌉
    // Zeros where K or N end earlier.
    Aligned<int8_t> weights_;  // (panels, groups, 64, 4)
    Aligned<int32_t> start_;   // (panels · 64): − zero point of x · sum of the output's weights
    Aligned<float> scales_;    // (panels · 64): s_x s_n
    Aligned<float> bias_;      // (panels · 64)
};

}  // namespace dragoman
