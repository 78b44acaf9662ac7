#include "tiles.h"

#include <cpuid.h>
#include <immintrin.h>

#include <atomic>
#include <cstring>

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace dragoman::tiles {

namespace {

std::atomic<bool> forbidden{false};

}  // namespace

#if defined(__AMX_TILE__) && defined(__AMX_INT8__)

namespace {

constexpr int64_t kQuarter = 16 * 4;      // bytes of a panel from four inputs of sixteen outputs to those of the next sixteen
constexpr int64_t kGroupApart = 64 * 4;   // … from four inputs to the next four
constexpr int64_t kStep = kInputs / 4 * kGroupApart;  // … from 64 inputs to the next 64
constexpr int64_t kSumsApart = 64 * 4;    // bytes from a row of sums to the next

// Linux lends tiles to a process that asks for them, with all its threads.
bool lent() {
#ifdef __linux__
    constexpr long kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
#else
    return false;
#endif
}

// What the CPU says of itself; some that are virtual announce tiles and have no palette of them.
bool there() {
    unsigned a, b, c, d;
    constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTile) || !(d & kInt8)) return false;
    return __get_cpuid_count(0x1D, 0, &a, &b, &c, &d) && a >= 1;
}

struct alignas(64) Configuration {
    uint8_t palette = 1;
    uint8_t start = 0;
    uint8_t reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Fetches between products, a few lines at a time: in one burst they would hold up the loads of the tiles.
class Fetcher {
public:
    Fetcher(const Ahead& ahead, int64_t products) : from_(ahead.from), each_(ahead.pairs / products) {}

    void operator()() {
        for (int64_t i = 0; i < each_; ++i, from_ += 128) _mm_prefetch(from_, _MM_HINT_T1);  // its neighbour comes with it
    }

private:
    const int8_t* from_;
    int64_t each_;
};

}  // namespace

bool available() {
    static const bool usable = there() && lent();
    return usable && !forbidden.load(std::memory_order_relaxed);
}

void configure() {
    static constexpr Configuration wanted;
    Configuration found;
    _tile_storeconfig(&found);  // to look takes 8 ns, to configure 100
    asm volatile("" ::: "memory");  // nor does that say how much it writes
    if (std::memcmp(&found, &wanted, sizeof wanted)) _tile_loadconfig(&wanted);
}

void multiply_16(const uint8_t* x, int64_t apart, const int8_t* panel, int64_t inputs, Ahead ahead, int32_t* sums) {
    asm volatile("" ::: "memory");  // tile loads do not say that they read memory
    Fetcher fetch(ahead, 4);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < inputs / kInputs; ++k) {
        const int8_t* weights = panel + k * kStep;
        _tile_loadd(4, x + k * kInputs, apart);
        _tile_loadd(5, weights, kGroupApart);
        fetch();
        _tile_dpbusd(0, 4, 5);
        _tile_loadd(6, weights + kQuarter, kGroupApart);
        fetch();
        _tile_dpbusd(1, 4, 6);
        _tile_loadd(7, weights + 2 * kQuarter, kGroupApart);
        fetch();
        _tile_dpbusd(2, 4, 7);
        _tile_loadd(5, weights + 3 * kQuarter, kGroupApart);
        fetch();
        _tile_dpbusd(3, 4, 5);
    }
    _tile_stored(0, sums, kSumsApart);
    _tile_stored(1, sums + 16, kSumsApart);
    _tile_stored(2, sums + 32, kSumsApart);
    _tile_stored(3, sums + 48, kSumsApart);
}

void multiply_32(const uint8_t* x, int64_t apart, const int8_t* panel, int64_t inputs, Ahead ahead, int32_t* sums) {
    asm volatile("" ::: "memory");
    Fetcher fetch(ahead, 8);
    const uint8_t* lower = x + kRows * apart;
    for (int64_t half = 0; half < 2; ++half) {  // 32 outputs: with four tiles of sums, two of x and two of weights
        const int8_t* weights = panel + half * 2 * kQuarter;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t k = 0; k < inputs / kInputs; ++k) {
            _tile_loadd(4, x + k * kInputs, apart);
            _tile_loadd(6, weights + k * kStep, kGroupApart);
            fetch();
            _tile_dpbusd(0, 4, 6);
            _tile_loadd(5, lower + k * kInputs, apart);
            fetch();
            _tile_dpbusd(1, 5, 6);
            _tile_loadd(7, weights + k * kStep + kQuarter, kGroupApart);
            fetch();
            _tile_dpbusd(2, 4, 7);
            fetch();
            _tile_dpbusd(3, 5, 7);
        }
        int32_t* to = sums + half * 32;
        _tile_stored(0, to, kSumsApart);
        _tile_stored(1, to + kRows * 64, kSumsApart);
        _tile_stored(2, to + 16, kSumsApart);
        _tile_stored(3, to + kRows * 64 + 16, kSumsApart);
    }
}

#else  // a compiler that does not know them

bool available() { return false; }
void configure() {}
void multiply_16(const uint8_t*, int64_t, const int8_t*, int64_t, Ahead, int32_t*) {}
void multiply_32(const uint8_t*, int64_t, const int8_t*, int64_t, Ahead, int32_t*) {}

#endif

}  // namespace dragoman::tiles

// Forbids tiles to all that is computed from now on, or allows them again: for tests and comparisons. Returns whether
// they are in use then.
extern "C" __attribute__((visibility("default"))) int dragoman_tiles(int allowed) {
    dragoman::tiles::forbidden.store(!allowed);
    return dragoman::tiles::available();
}
