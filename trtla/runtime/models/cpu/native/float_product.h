// Products of weights in floats.
#pragma once

#include "ahead.h"
#include "blocks.h"
#include "operands.h"

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

// How a panel is multiplied with one block of rows: floats.
template <class X, class W>
struct FloatProduct {
    static constexpr int MOST = MOST_ROWS<X>, PIECE = 64;
    using Ready = Tiles<TILED<X> ? TILE_INPUTS * 2 : 0>;
    using Operand = Inputs<X>;

    static size_t panel_bytes(int64_t inputs) { return inputs * WIDTH * sizeof(W); }

    static float number(const uint8_t* panel, int64_t output, int64_t input) {
        const int64_t at = (input / PAIR<X> * WIDTH + output) * PAIR<X> + input % PAIR<X>;
        const W lanes[LANES] = {((const W*)panel)[at]};
        return load(lanes)[0];
    }

    template <int ROWS>
    static void multiply_block(const X* x, const W* panel, const Ahead& ahead, const float* bias,
                               int inputs, float (*out)[WIDTH]) {
        Floats sums[ROWS][2];
        for (auto& sum : sums) {
            sum[0] = bias ? load(bias) : Floats{};
            sum[1] = bias ? load(bias + LANES) : Floats{};
        }
        const int pieces = (inputs + PIECE - 1) / PIECE;
        for (int piece = 0; piece < pieces; ++piece) {
            const int first = piece * PIECE;
            ahead.share(piece, pieces).fetch();
            multiply(x + first * ROWS, panel + first * WIDTH, std::min(PIECE, inputs - first), sums);
        }
        for (int row = 0; row < ROWS; ++row)
            store(out[row], sums[row][0]), store(out[row] + LANES, sums[row][1]);
    }

    static bool in_parts(int) { return false; }

    static void run(const Inputs<X>& x, int block, const uint8_t* panel, const Ahead& ahead,
                    const float* bias, float (*out)[WIDTH]) {
        const int rows = x.rows(block);
        const W* weights = (const W*)panel;
        if constexpr (TILED<X>)
            multiply_tiles(rows, x.block(block), weights, bias, x.size, out);
        else
            with_rows<MAX_ROWS>(rows, [&](auto count) {
                multiply_block<count>(x.block(block), weights, ahead, bias, x.size, out);
            });
    }
};
