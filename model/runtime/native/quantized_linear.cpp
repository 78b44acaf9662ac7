#include "quantized_linear.h"

#include <algorithm>
#include <cstring>

#include "quantise.h"

namespace dragoman {

namespace {

constexpr int kMostRows = 6;        // 6 rows · 4 registers of sums leave room for weights and one input
constexpr int64_t kChunk = 96;      // rows quantised at a time: their bytes stay in the second cache
constexpr int64_t kMostInputs = 65536;  // 65536 · 255 · 127 < 2³¹: no sum can overflow
constexpr int64_t kLine = 64;       // bytes of a cache line
constexpr int64_t kAhead = 4096;    // bytes by which a single pass over the weights fetches ahead

// sum += Σ₄ x · w, unsigned by signed bytes. As the intrinsic, but compilers copy that one's sums to and fro.
inline void add_products(__m512i& sum, __m512i x, __m512i w) { asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w)); }

// Floats of one value for each output, with zeros up to the end of the last panel.
void copy_padded(const Tensor<const float>& from, int64_t outputs, Aligned<float>& to, int64_t padded, const char* what) {
    require(from.size() == outputs, what);
    std::fill_n(to.data(), padded, 0.0f);
    std::copy_n(from.data, outputs, to.data());
}

PackedWeight packed(const Node& node) {
    const auto weight = node.constant<int8_t>(1, "weight");
    require(weight.axes == 2, "weight must have the shape (K, N).");
    require(weight.shape[0] >= 1 && weight.shape[0] <= kMostInputs, "K must be from 1 to 65536.");
    const int64_t zero = node.integer("zero");
    require(zero >= 0 && zero <= 255, "zero must be from 0 to 255.");
    return {weight.data, weight.shape[0], weight.shape[1], int32_t(zero)};
}

}  // namespace

// Where outputs go: output n of row r to row(r) + column(n).
struct QuantizedLinear::Places {
    int64_t outputs;    // N
    int64_t head;       // numbers of a head side by side; N if y has no heads
    int64_t positions;  // S; 1 if y has no heads

    int64_t row(int64_t r) const { return r / positions * positions * outputs + r % positions * head; }
    int64_t column(int64_t n) const { return n / head * head * positions + n % head; }
};

// Rows of the input, quantised, and where their outputs go: those of row r and register v to places[r] + columns[v].
struct QuantizedLinear::Rows {
    const uint8_t* bytes;
    int64_t stride;
    const int64_t* places;
    const int64_t* columns;
    const float* residual;  // null if there is none
    float* y;
};

QuantizedLinear::QuantizedLinear(const Node& node)
    : scale_(node.real("scale")),
      zero_(int32_t(node.integer("zero"))),
      relu_(node.integer("relu") != 0),
      residual_(node.inputs() > 4),
      heads_(node.integer("heads", 0)),
      weight_(packed(node)),
      scales_(weight_.panels * kPanel),
      bias_(weight_.panels * kPanel) {
    require(scale_ > 1e-30f && scale_ < 1e30f, "scale must be above 0, from 1e-30 to 1e30.");
    require(heads_ >= 0 && (!heads_ || weight_.outputs % (heads_ * kLanes) == 0),
            "the outputs must be shared out to heads of a multiple of 16.");
    require(!heads_ || !residual_, "heads and a residual exclude each other.");
    const int64_t padded = weight_.panels * kPanel;
    copy_padded(node.constant<float>(2, "weight_scale"), weight_.outputs, scales_, padded, "weight_scale must be (N).");
    copy_padded(node.constant<float>(3, "bias"), weight_.outputs, bias_, padded, "bias must be (N).");
    for (int64_t n = 0; n < padded; ++n) scales_[n] *= scale_;
}

// (rows, K) by one panel (K, 64) -> (rows, 64). Fetches `ahead` lines of `next` for each four inputs.
template <int rows, int ahead>
void QuantizedLinear::block(const Rows& at, int64_t panel, const int8_t* next) const {
    const int8_t* weights = weight_.bytes.data() + panel * weight_.panel_bytes();
    const int64_t column = panel * kPanel;
    __m512i sum[rows][4];
#pragma GCC unroll 8
    for (int v = 0; v < 4; ++v) {
        const __m512i correction = _mm512_load_si512(&weight_.correction[column + v * kLanes]);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) sum[r][v] = _mm512_sub_epi32(_mm512_setzero_si512(), correction);
    }
    for (int64_t k = 0; k < weight_.groups; ++k) {
        __m512i w[4];
#pragma GCC unroll 8
        for (int v = 0; v < 4; ++v) w[v] = _mm512_load_si512(weights + (k * 4 + v) * kLine);
#pragma GCC unroll 8
        for (int line = 0; line < ahead; ++line) _mm_prefetch(next + (k * ahead + line) * kLine, ahead < 4 ? _MM_HINT_T1 : _MM_HINT_T0);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            int32_t four;
            std::memcpy(&four, at.bytes + r * at.stride + k * kGroup, sizeof four);
            const __m512i x = _mm512_set1_epi32(four);
#pragma GCC unroll 8
            for (int v = 0; v < 4; ++v) add_products(sum[r][v], x, w[v]);
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < 4; ++v) {
        const int64_t n = column + v * kLanes;
        const __mmask16 lanes = first(weight_.outputs - n);
        const __m512 scale = _mm512_load_ps(&scales_[n]), bias = _mm512_load_ps(&bias_[n]);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            __m512 y = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][v]), scale), bias);
            if (relu_) y = _mm512_max_ps(y, _mm512_setzero_ps());
            const int64_t place = at.places[r] + at.columns[v];
            if (at.residual) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(lanes, at.residual + place));
            _mm512_mask_storeu_ps(at.y + place, lanes, y);
        }
    }
}

template <int ahead>
void QuantizedLinear::block(int rows, const Rows& at, int64_t panel, const int8_t* next) const {
    switch (rows) {
        case 1: return block<1, ahead>(at, panel, next);
        case 2: return block<2, ahead>(at, panel, next);
        case 3: return block<3, ahead>(at, panel, next);
        case 4: return block<4, ahead>(at, panel, next);
        case 5: return block<5, ahead>(at, panel, next);
        default: return block<6, ahead>(at, panel, next);
    }
}

// Panel after panel, in each block after block of rows. All blocks together fetch the next panel.
void QuantizedLinear::chunk(const Rows& all, int64_t rows, const Places& places) const {
    const int64_t blocks = (rows + kMostRows - 1) / kMostRows, bytes = weight_.panel_bytes();
    for (int64_t panel = 0; panel < weight_.panels; ++panel) {
        const int8_t* weights = weight_.bytes.data() + panel * bytes;
        int64_t columns[4];
        for (int v = 0; v < 4; ++v) columns[v] = places.column(panel * kPanel + v * kLanes);
        for (int64_t i = 0; i < blocks; ++i) {
            const int64_t from = rows * i / blocks, to = rows * (i + 1) / blocks;
            const Rows at{all.bytes + from * all.stride, all.stride, all.places + from, columns, all.residual, all.y};
            if (blocks == 1)
                block<4>(int(to - from), at, panel, weights + kAhead);
            else if (blocks == 2)
                block<2>(int(to - from), at, panel, weights + bytes + i * bytes / 2);
            else if (i < 4)
                block<1>(int(to - from), at, panel, weights + bytes + i * bytes / 4);
            else
                block<0>(int(to - from), at, panel, nullptr);
        }
    }
}

void QuantizedLinear::compute(const Call& call) const {
    const auto x = call.input<float>(0);
    require(x.axes >= 1 && x.axes <= 8 && x.last() == weight_.inputs, "the last axis of x must be K.");
    const int64_t rows = x.rows(), k = weight_.inputs, n = weight_.outputs;
    require(!heads_ || x.axes == 3, "x must be (B, S, K) for outputs in heads.");
    const Places places{n, heads_ ? n / heads_ : n, heads_ ? x.shape[1] : 1};
    Tensor<const float> residual;
    if (residual_) residual = call.input<float>(4);
    require(!residual || (residual.rows() == rows && residual.last() == n), "residual must have the shape of y.");
    int64_t shape[8];
    std::copy_n(x.shape, x.axes - 1, shape);
    shape[x.axes - 1] = n;  // (…, K) -> (…, N)
    float* y = heads_ ? call.output<float>(0, {x.shape[0], heads_, x.shape[1], places.head})  // (B, S, K) -> (B, H, S, N / H)
                      : call.output<float>(0, shape, x.axes);

    const int64_t stride = (weight_.groups * kGroup + kLine - 1) / kLine * kLine;
    const int64_t chunks = (rows + kChunk - 1) / kChunk;
    const Quantiser quantiser(scale_, zero_);
    struct Quantised;
    uint8_t* bytes = scratch<Quantised, uint8_t>(std::min(rows, kChunk) * stride);
    for (int64_t c = 0; c < chunks; ++c) {
        const int64_t from = rows * c / chunks, count = rows * (c + 1) / chunks - from;
        int64_t row_places[kChunk];
        for (int64_t r = 0; r < count; ++r) {
            quantiser.row(x.data + (from + r) * k, k, bytes + r * stride);
            row_places[r] = places.row(from + r);
        }
        chunk({bytes, stride, row_places, nullptr, residual.data, y}, count, places);
    }
}

}  // namespace dragoman
