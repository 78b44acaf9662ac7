// What becomes of the outputs of a linear map: floats in their place, or bytes for the next map.
#pragma once

#include "packed_linear.h"
#include "quantise.h"

namespace dragoman {

// Where floats go: output n of row r to row(r) + column(n).
struct Places {
    int64_t outputs;    // N
    int64_t head;       // numbers of a head side by side; N if there are no heads
    int64_t positions;  // S; 1 if there are no heads

    int64_t row(int64_t r) const { return r / positions * positions * outputs + r % positions * head; }
    int64_t column(int64_t n) const { return n / head * head * positions + n % head; }
};

// relu?(y) + residual?, for a chunk of rows of which the first is `begin`.
class FloatSink {
public:
    FloatSink(const Places& places, bool relu, const float* residual, float* y)
        : places_(places), relu_(relu), residual_(residual), y_(y) {}

    void rows(int64_t begin, int64_t count) {
        for (int64_t r = 0; r < count; ++r) row_[r] = places_.row(begin + r);
    }

    struct Place {
        const FloatSink& sink;
        int64_t column[kPanel / kLanes];

        void put(int64_t row, int v, __mmask16 lanes, __m512 y) const {
            const int64_t at = sink.row_[row] + column[v];
            if (sink.relu_) y = _mm512_max_ps(y, _mm512_setzero_ps());
            if (sink.residual_) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(lanes, sink.residual_ + at));
            _mm512_mask_storeu_ps(sink.y_ + at, lanes, y);
        }

        void end(int64_t) const {}
    };

    Place place(int64_t panel, int64_t) const {
        Place made{*this, {}};
        for (int v = 0; v < kPanel / kLanes; ++v) made.column[v] = places_.column(panel * kPanel + v * kLanes);
        return made;
    }

private:
    Places places_;
    bool relu_;
    const float* residual_;
    float* y_;
    int64_t row_[kChunk];
};

// relu(y) as unsigned bytes, whole panels: what lies past the last output meets weights of zero.
class ByteSink {
public:
    ByteSink(const Quantiser& quantiser, uint8_t* bytes, int64_t stride)
        : quantiser_(quantiser), bytes_(bytes), stride_(stride) {}

    struct Place {
        const Quantiser& quantiser;
        uint8_t* bytes;
        int64_t stride;

        void put(int64_t row, int v, __mmask16, __m512 y) const {
            quantiser.store(_mm512_max_ps(y, _mm512_setzero_ps()), bytes + row * stride + v * kLanes);
        }

        void end(int64_t) const {}
    };

    Place place(int64_t panel, int64_t) const { return {quantiser_, bytes_ + panel * kPanel, stride_}; }

private:
    const Quantiser& quantiser_;
    uint8_t* bytes_;
    int64_t stride_;
};

// Calls work(begin, count, bytes) for chunks of rows of x (rows, K), quantised.
template <class Work>
void in_chunks(const float* x, int64_t rows, const PackedLinear& map, const Quantiser& quantiser, Work work) {
    struct Quantised;
    uint8_t* bytes = scratch<Quantised, uint8_t>(map.room(rows));
    const int64_t blocks = (rows + tiles::kRows - 1) / tiles::kRows, chunks = (rows + kChunk - 1) / kChunk;
    for (int64_t c = 0; c < chunks; ++c) {
        const int64_t begin = blocks * c / chunks * tiles::kRows, end = blocks * (c + 1) / chunks * tiles::kRows;
        const int64_t count = std::min(rows, end) - begin;
        for (int64_t r = 0; r < count; ++r) {
            quantiser.row(x + (begin + r) * map.inputs(), map.inputs(), bytes + r * map.stride());
        }
        work(begin, count, bytes);
    }
}

}  // namespace dragoman
