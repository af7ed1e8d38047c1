// The processor's matrix tiles (AMX), and products of bfloat16 in them.
//
// A tile product adds the inputs of each output in order, two at a time, for every token on its own:
// a token's numbers are the same alone and among others, as in matmul.h.
#pragma once

#include <algorithm>

#include "simd.h"

#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
#define TRTLA_TILES
#include <sys/syscall.h>
#include <unistd.h>

constexpr bool HAS_TILES = true;
constexpr int TILE_ROWS = 16;     // tokens of a tile
constexpr int TILE_INPUTS = 32;   // inputs of a tile, 64 bytes
constexpr int TILE_OUTPUTS = 16;  // two tiles of weights lie side by side in a panel

// Linux gives tiles to a process that asks for them.
inline bool tiles_are_given() {
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    return !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

// Tile intrinsics do not say what they read: it has to be in memory by then.
inline void in_memory() { asm volatile("" ::: "memory"); }

// Makes the tiles ready for some rows and INPUT_BYTES of each token at a time; 0: they are not used.
template <int INPUT_BYTES>
class Tiles;
template <>
struct Tiles<0> {
    explicit Tiles(int) {}
};

// Tiles 0 to 3: sums [token half][output half]; 4, 5: tokens; 6, 7: weights.
template <int INPUT_BYTES>
class Tiles {
public:
    explicit Tiles(int rows) {
        const uint8_t low = rows < TILE_ROWS ? rows : TILE_ROWS, high = rows - low;
        const uint8_t deep = INPUT_BYTES / 4;
        const uint8_t heights[8] = {low, low, high, high, low, high, deep, deep};
        struct alignas(64) {
            uint8_t palette = 1, start = 0, unused[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        for (int i = 0; i < 8; ++i)
            if (heights[i])
                config.bytes[i] = i == 4 || i == 5 ? INPUT_BYTES : 64, config.rows[i] = heights[i];
        in_memory();
        _tile_loadconfig(&config);
    }
    Tiles(const Tiles&) = delete;
    ~Tiles() { _tile_release(); }
};

constexpr int TILE_WEIGHTS = 4 * TILE_OUTPUTS;  // of two inputs, in a panel
constexpr int TILES_AHEAD = 8192;               // bytes that are fetched before they are wanted

// Adds the products of TILE_INPUTS inputs to the sums.
template <bool MANY>
inline void add_products(const BFloat16* x, size_t row_bytes, const BFloat16* weights) {
    _tile_loadd(4, x, row_bytes);
    if (MANY) _tile_loadd(5, (const uint8_t*)x + TILE_ROWS * row_bytes, row_bytes);
    _tile_loadd(6, weights, TILE_WEIGHTS * sizeof(BFloat16));
    _tile_dpbf16ps(0, 4, 6);
    if (MANY) _tile_dpbf16ps(2, 5, 6);
    _tile_loadd(7, weights + TILE_WEIGHTS / 2, TILE_WEIGHTS * sizeof(BFloat16));
    _tile_dpbf16ps(1, 4, 7);
    if (MANY) _tile_dpbf16ps(3, 5, 7);
}

// The inputs from `done` on, which do not fill a tile: with zeros behind them they do.
template <bool MANY>
void add_last_products(int rows, const BFloat16* x, int inputs, int done, const BFloat16* weights) {
    alignas(64) BFloat16 filled[2 * TILE_ROWS][TILE_INPUTS] = {};
    alignas(64) BFloat16 panel[TILE_INPUTS / 2][TILE_WEIGHTS] = {};
    for (int row = 0; row < rows; ++row)
        std::copy(x + (size_t)row * inputs + done, x + (size_t)(row + 1) * inputs, filled[row]);
    std::copy(weights, weights + (inputs - done) / 2 * TILE_WEIGHTS, panel[0]);
    in_memory();
    add_products<MANY>(filled[0], sizeof filled[0], panel[0]);
}

template <bool MANY>
inline void sum_products(int rows, const BFloat16* x, const BFloat16* panel, int inputs) {
    const int whole = inputs / TILE_INPUTS * TILE_INPUTS;
    for (int k = 0; k < whole; k += TILE_INPUTS) {
        const BFloat16* weights = panel + (size_t)k / 2 * TILE_WEIGHTS;
        for (int line = 0; line < TILE_INPUTS; ++line)  // tile loads are not seen coming
            __builtin_prefetch((const uint8_t*)weights + TILES_AHEAD + 64 * line, 0, 2);
        add_products<MANY>(x + k, inputs * sizeof(BFloat16), weights);
    }
    if (whole < inputs)
        add_last_products<MANY>(rows, x, inputs, whole, panel + (size_t)whole / 2 * TILE_WEIGHTS);
}

// A panel times the `rows` tokens that tiles are ready for; x is [rows][inputs], out [rows][32].
inline void multiply_tiles(int rows, const BFloat16* x, const BFloat16* panel, const float* bias,
                           int inputs, float (*out)[2 * TILE_OUTPUTS]) {
    const bool many = rows > TILE_ROWS;
    in_memory();
    _tile_zero(0);
    _tile_zero(1);
    if (many) _tile_zero(2);
    if (many) _tile_zero(3);
    many ? sum_products<true>(rows, x, panel, inputs) : sum_products<false>(rows, x, panel, inputs);
    _tile_stored(0, out[0], sizeof *out);
    _tile_stored(1, out[0] + TILE_OUTPUTS, sizeof *out);
    if (many) _tile_stored(2, out[TILE_ROWS], sizeof *out);
    if (many) _tile_stored(3, out[TILE_ROWS] + TILE_OUTPUTS, sizeof *out);
    for (int row = 0; bias && row < rows; ++row)
        for (int i = 0; i < 2 * TILE_OUTPUTS; i += LANES)
            store(out[row] + i, load(out[row] + i) + load(bias + i));
}

#else
constexpr bool HAS_TILES = false;
constexpr int TILE_ROWS = 16, TILE_OUTPUTS = 16, TILE_INPUTS = 32;
inline bool tiles_are_given() { return true; }
template <int INPUT_BYTES>
struct Tiles {
    explicit Tiles(int) {}
};
#endif
