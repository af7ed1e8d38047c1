// Products of weights in blocks: small integers are multiplied and added up exactly, a block at a time,
// and become floats with the scales of weights and inputs, block after block.
#pragma once

#include "block_tiles.h"
#include "float_product.h"

// How a panel is multiplied with one block of rows: blocks of small integers.
template <class B>
struct BlockProduct {
    static constexpr int MOST = MOST_INTEGER_ROWS;
    static constexpr int AHEAD = 4096;  // bytes that are fetched before they are wanted
    using Ready = Tiles<HAS_TILES ? B::GROUP : 0>;
    using Operand = Codes;

    static size_t panel_bytes(int64_t inputs) { return B::panel_bytes(inputs); }

    static float number(const uint8_t* panel, int64_t output, int64_t input) {
        return B(panel, input / BLOCK).number(output, input % BLOCK);
    }

    // Adds the products of the inputs [4 * FIRST, 4 * FIRST + 4 * COUNT) of a block to the dots.
    template <int ROWS, int FIRST, int COUNT>
    static void add_products(const B& weights, const int8_t* x, int size, Ints (&dots)[ROWS][2]) {
        constexpr int together = std::min(COUNT, Partial<B::BITS>::MOST);
        Partial<B::BITS> partial[ROWS][2];
#pragma GCC unroll 8
        for (int four = FIRST; four < FIRST + together; ++four) {
            const Bytes first = weights.unpacked(four, 0), second = weights.unpacked(four, 1);
#pragma GCC unroll 12
            for (int row = 0; row < ROWS; ++row) {
                const Bytes inputs =
                    (Bytes)broadcast(load_as<int32_t>(x + (size_t)row * size + 4 * four));
                partial[row][0].add(first, inputs);
                partial[row][1].add(second, inputs);
            }
        }
        for (int row = 0; row < ROWS; ++row)
            for (int half = 0; half < 2; ++half) dots[row][half] += partial[row][half].widened();
        if constexpr (together < COUNT)
            add_products<ROWS, FIRST + together, COUNT - together>(weights, x, size, dots);
    }

    template <int ROWS, int GROUP = 0>
    static void add_groups(const B& weights, const int8_t* x, int size, const Scale* of,
                           Floats (&sums)[ROWS][2]) {
        if constexpr (GROUP < BLOCK / B::GROUP) {
            Ints dots[ROWS][2];
            for (int row = 0; row < ROWS; ++row) {
                const int sum = of[row].sum(GROUP, B::GROUP);
                dots[row][0] = dots[row][1] = broadcast(-B::ZERO * sum);
            }
            add_products<ROWS, GROUP * B::GROUP / 4, B::GROUP / 4>(weights, x, size, dots);
            const Floats first = weights.scales(GROUP, 0), second = weights.scales(GROUP, 1);
            for (int row = 0; row < ROWS; ++row) {
                const float scale = of[row].scale;
                sums[row][0] = fused(first * scale, to_floats(dots[row][0]), sums[row][0]);
                sums[row][1] = fused(second * scale, to_floats(dots[row][1]), sums[row][1]);
            }
            add_groups<ROWS, GROUP + 1>(weights, x, size, of, sums);
        }
    }

    template <int ROWS>
    static void multiply_block(const Codes& x, int token, const uint8_t* panel, const float* bias,
                               float (*out)[WIDTH]) {
        Floats sums[ROWS][2];
        for (int row = 0; row < ROWS; ++row) {
            sums[row][0] = bias ? load(bias) : Floats{};
            sums[row][1] = bias ? load(bias + LANES) : Floats{};
        }
        for (int block = 0; block < x.size / BLOCK; ++block) {
            const B weights(panel, block);
            for (int line = 0; line < B::BYTES; line += 64)
                __builtin_prefetch(weights.small + line + AHEAD, 0, 2);
            const Scale* of = x.scales_of(block) + token;
            add_groups<ROWS>(weights, x.row(token) + block * BLOCK, x.size, of, sums);
            if constexpr (B::MINIMUMS)
                for (int half = 0; half < 2; ++half) {
                    const Floats least = weights.minimums(half);
                    for (int row = 0; row < ROWS; ++row)
                        sums[row][half] =
                            fused(least, Floats{} + of[row].shift, sums[row][half]);
                }
        }
        for (int row = 0; row < ROWS; ++row)
            store(out[row], sums[row][0]), store(out[row] + LANES, sums[row][1]);
    }

    static void run(const Codes& x, int block, const uint8_t* panel, const float* bias,
                    float (*out)[WIDTH]) {
        const int first = x.first(block), rows = x.rows(block);
#if defined(TRTLA_TILES)
        if (rows > TILE_ROWS) return InTiles<B>::template multiply<2>(rows, x, first, panel, bias, out);
        if (rows >= FEWEST_IN_TILES)
            return InTiles<B>::template multiply<1>(rows, x, first, panel, bias, out);
#endif
        const int parts = (rows + INTEGER_ROWS - 1) / INTEGER_ROWS;
        for (int part = 0; part < parts; ++part) {
            const int from = rows * part / parts, to = rows * (part + 1) / parts;
            with_rows<INTEGER_ROWS>(to - from, [&](auto count) {
                multiply_block<count>(x, first + from, panel, bias, out + from);
            });
        }
    }
};
