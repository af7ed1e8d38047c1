// Products of packed weights with a few or many tokens.
//
// A weight lies in panels of WIDTH outputs, all inputs of a panel in a row: it is read once, from
// start to end. Every sum runs over the inputs in order, whatever else is in the batch: a token's
// result is the same bit for bit alone and among others.
#pragma once

#include <algorithm>
#include <vector>

#include "simd.h"
#include "tiles.h"

constexpr int WIDTH = 2 * LANES;
constexpr size_t PANELS_BYTES = 512 * 1024;  // panels that stay in the second-level cache

enum Type : int64_t { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2 };

struct Matrix {
    const void* panels;  // [panels][inputs][WIDTH]; for bfloat16 inputs [inputs / 2][WIDTH][2]
    const float* bias;   // [panels * WIDTH], or null
    int64_t outputs, inputs;
    Type type;

    int num_panels() const { return (outputs + WIDTH - 1) / WIDTH; }
};

// Neighbouring inputs that are multiplied at once, and whether that is done in tiles.
template <class X>
constexpr int PAIR = 1;
template <>
constexpr int PAIR<BFloat16> = 2;
template <class X>
constexpr bool TILED = HAS_TILES && PAIR<X> == 2;
template <class X>
constexpr int MOST_ROWS = TILED<X> ? 2 * TILE_ROWS : MAX_ROWS;

// Inputs of all tokens, in blocks of about the same number of rows, at most MOST_ROWS; each block is
// [inputs / PAIR][rows][PAIR], or [rows][inputs] for tiles.
template <class X>
struct Inputs {
    std::vector<X> data;
    int tokens = 0, size = 0, blocks = 0;

    void reset(int new_tokens, int new_size) {
        tokens = new_tokens, size = new_size;
        blocks = (tokens + MOST_ROWS<X> - 1) / MOST_ROWS<X>;
        if (data.size() < (size_t)tokens * size) data.resize((size_t)tokens * size);
    }
    int first(int block) const { return (int64_t)tokens * block / blocks; }
    int rows(int block) const { return first(block + 1) - first(block); }
    const X* block(int block) const { return data.data() + (size_t)first(block) * size; }

    // Puts LANES inputs of a token, `place` on, into their places.
    void put(int token, int place, Floats values) {
        if constexpr (TILED<X>) return store(data.data() + (size_t)token * size + place, values);
        const int block = ((int64_t)(token + 1) * blocks - 1) / tokens;
        const int row = token - first(block), count = rows(block);
        X* to = data.data() + (size_t)first(block) * size;
        X narrow[LANES];
        store(narrow, values);
        for (int i = 0; i < LANES; ++i) {
            const int input = place + i;
            to[((size_t)(input / PAIR<X>)*count + row) * PAIR<X> + input % PAIR<X>] = narrow[i];
        }
    }
};

template <class W, int ROWS>
inline void multiply(const float* x, const W* w, int inputs, Floats (&sums)[ROWS][2]) {
    for (int k = 0; k < inputs; ++k, x += ROWS, w += WIDTH) {
        const Floats first = load(w), second = load(w + LANES);
#pragma GCC unroll 12
        for (int row = 0; row < ROWS; ++row) {
            sums[row][0] += x[row] * first;
            sums[row][1] += x[row] * second;
        }
    }
}

#if defined(__AVX512BF16__)
constexpr bool HAS_BFLOAT16_PRODUCTS = true;
template <int ROWS>
inline void multiply(const BFloat16* x, const BFloat16* w, int inputs, Floats (&sums)[ROWS][2]) {
    for (int k = 0; k < inputs; k += 2, x += 2 * ROWS, w += 2 * WIDTH) {
        if (ROWS > 5) {  // with fewer rows the processor's own prefetching keeps up
            __builtin_prefetch(w + 4096, 0, 2);
            __builtin_prefetch(w + 4096 + WIDTH, 0, 2);
        }
        const __m512bh first = (__m512bh)_mm512_loadu_si512(w);
        const __m512bh second = (__m512bh)_mm512_loadu_si512(w + WIDTH);
#pragma GCC unroll 12
        for (int row = 0; row < ROWS; ++row) {
            const __m512bh pair = (__m512bh)_mm512_set1_epi32(load_as<int32_t>(x + 2 * row));
            sums[row][0] = (Floats)_mm512_dpbf16_ps((__m512)sums[row][0], pair, first);
            sums[row][1] = (Floats)_mm512_dpbf16_ps((__m512)sums[row][1], pair, second);
        }
    }
}
#else
constexpr bool HAS_BFLOAT16_PRODUCTS = false;
template <int ROWS>
inline void multiply(const BFloat16*, const BFloat16*, int, Floats (&)[ROWS][2]) {}
#endif

template <class X>
using Products = float[MOST_ROWS<X>][WIDTH];

// One panel times one block of ROWS tokens.
template <class X, class W, int ROWS>
void multiply_block(const X* x, const W* panel, const float* bias, int inputs, Products<X>& out) {
    Floats sums[ROWS][2];
    for (auto& sum : sums) {
        sum[0] = bias ? load(bias) : Floats{};
        sum[1] = bias ? load(bias + LANES) : Floats{};
    }
    multiply(x, panel, inputs, sums);
    for (int row = 0; row < ROWS; ++row)
        store(out[row], sums[row][0]), store(out[row] + LANES, sums[row][1]);
}

template <class X, class W, int ROWS = MAX_ROWS>
void multiply_rows(int rows, const X* x, const W* panel, const float* bias, int inputs,
                   Products<X>& out) {
    if constexpr (ROWS > 0) {
        if (rows == ROWS) return multiply_block<X, W, ROWS>(x, panel, bias, inputs, out);
        multiply_rows<X, W, ROWS - 1>(rows, x, panel, bias, inputs, out);
    }
}

template <class X, class W, class Sink>
void multiply_panels(const Inputs<X>& x, const Matrix& matrix, int from, int to, Sink sink) {
    const size_t panel_size = (size_t)matrix.inputs * WIDTH;
    const int together = std::max<size_t>(1, PANELS_BYTES / (panel_size * sizeof(W)));
    Products<X> out;
    for (int first = from; first < to; first += together) {
        for (int block = 0; block < x.blocks; ++block) {
            const int token = x.first(block), rows = x.rows(block);
            [[maybe_unused]] const Tiles<TILED<X>> configured(rows);
            for (int panel = first; panel < std::min(to, first + together); ++panel) {
                const float* bias = matrix.bias ? matrix.bias + panel * WIDTH : nullptr;
                const W* weights = (const W*)matrix.panels + panel * panel_size;
                if constexpr (TILED<X>)
                    multiply_tiles(rows, x.block(block), weights, bias, matrix.inputs, out);
                else
                    multiply_rows<X, W>(rows, x.block(block), weights, bias, matrix.inputs, out);
                for (int row = 0; row < rows; ++row) sink(token + row, panel, out[row]);
            }
        }
    }
}

// All tokens times the panels [from, to); `sink(token, panel, products)` takes WIDTH of them.
template <class X, class Sink>
void matmul(const Inputs<X>& x, const Matrix& matrix, int from, int to, Sink sink) {
    if constexpr (PAIR<X> == 2) {
        multiply_panels<X, BFloat16>(x, matrix, from, to, sink);
    } else if (matrix.type == FLOAT32) {
        multiply_panels<X, float>(x, matrix, from, to, sink);
    } else if (matrix.type == FLOAT16) {
        multiply_panels<X, Float16>(x, matrix, from, to, sink);
    } else {
        multiply_panels<X, BFloat16>(x, matrix, from, to, sink);
    }
}
