// Products of weights in blocks in the processor's matrix tiles (AMX): the same bits as in vectors.
#pragma once

#include "ahead.h"
#include "blocks.h"
#include "operands.h"

#if defined(TRTLA_TILES)
template <class B>
struct InTiles {
    static constexpr int FOURS = B::GROUP / 4, GROUPS = B::GROUPS;
    static constexpr int TOGETHER = 2;  // groups of a stage: all of a block, or those of two
    typedef int8_t Unpacked[2][FOURS][64];
    typedef int32_t Dots[2][2][TILE_ROWS][TILE_OUTPUTS];  // [row half][output half]

    // Codes of one group of WIDTH outputs, with their sign.
    static void unpack(const B& weights, int group, Unpacked& codes) {
        for (int half = 0; half < 2; ++half)
            for (int four = 0; four < FOURS; ++four) {
                const auto some =
                    (WrappedBytes)weights.unpacked(group * FOURS + four, half) - (uint8_t)B::ZERO;
                std::memcpy(codes[half][four], &some, sizeof some);
            }
    }

    template <int TILES>
    static void multiply_group(const int8_t* x, size_t size, const Unpacked& codes, Dots& dots) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_loadd(4, x, size);
        _tile_loadd(6, codes[0], 64);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(7, codes[1], 64);
        _tile_dpbssd(1, 4, 7);
        if (TILES == 2) {
            _tile_zero(2);
            _tile_zero(3);
            _tile_loadd(5, x + TILE_ROWS * size, size);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        }
        _tile_stored(0, dots[0][0], 64);
        _tile_stored(1, dots[0][1], 64);
        if (TILES == 2) _tile_stored(2, dots[1][0], 64);
        if (TILES == 2) _tile_stored(3, dots[1][1], 64);
    }

    // Adds the dots of some groups, from `first` on, to the sums of a tile's first ROWS rows.
    template <int ROWS>
    static void add(const uint8_t* panel, int first, int count, int half, const Codes& x, int token,
                    const int32_t (*dots)[2][2][TILE_ROWS][TILE_OUTPUTS], int rows_half,
                    Floats* kept) {
        Floats sums[ROWS];
        Ints wholes[ROWS];
        TRTLA_UNROLLED for (int row = 0; row < ROWS; ++row) sums[row] = kept[row], wholes[row] = Ints{};
        for (int i = 0; i < count; ++i) {
            const int group = (first + i) % GROUPS, block = (first + i) / GROUPS;
            const bool last = group == GROUPS - 1;
            const B weights(panel, block);
            const Scale* of = x.scales_of(block) + token;
            if constexpr (B::SMALL_DOTS) {
                const Ints factors = weights.factors(0, group, half);
                TRTLA_UNROLLED for (int row = 0; row < ROWS; ++row) {
                    const Ints dot = load_as<Ints>(dots[i][rows_half][half][row]);
                    wholes[row] = with_product(wholes[row], dot, factors);
                }
                if (!last) continue;
            }
            const Floats scale = B::SMALL_DOTS ? weights.wide(0, half) : weights.scales(group, half);
            TRTLA_UNROLLED for (int row = 0; row < ROWS; ++row) {
                const Ints whole = B::SMALL_DOTS ? wholes[row] : load_as<Ints>(dots[i][rows_half][half][row]);
                sums[row] = fused(scale * of[row].scale, to_floats(whole), sums[row]);
                wholes[row] = Ints{};
            }
            if (!B::MINIMUMS || !last) continue;
            const Minimums<B> least(weights, half);
            TRTLA_UNROLLED for (int row = 0; row < ROWS; ++row) sums[row] = least.added(sums[row], of[row]);
        }
        TRTLA_UNROLLED for (int row = 0; row < ROWS; ++row) kept[row] = sums[row];
    }

    // The same for `rows` rows, or up to three more: those are of no token.
    static auto adding(int rows) {
        return rows <= 4 ? add<4> : rows <= 8 ? add<8> : rows <= 12 ? add<12> : add<TILE_ROWS>;
    }

    // WIDTH outputs of up to TILES x TILE_ROWS tokens.
    template <int TILES>
    static void multiply(int rows, const Codes& x, int token, const uint8_t* panel, const Ahead& ahead,
                         const float* bias, float (*out)[WIDTH]) {
        const int count = x.size / B::GROUP, stages = (count + TOGETHER - 1) / TOGETHER;
        alignas(64) Unpacked codes[3][TOGETHER];
        alignas(64) Dots dots[2][TOGETHER];
        Floats sums[TILES][2][TILE_ROWS];
        for (auto& tile : sums)
            for (int half = 0; half < 2; ++half)
                for (Floats& sum : tile[half]) sum = bias ? load(bias + half * LANES) : Floats{};
        const auto groups = [&](int stage) {
            return stage < 0 ? 0 : std::min(TOGETHER, count - stage * TOGETHER);
        };
        const decltype(adding(0)) add[] = {adding(rows), adding(rows - TILE_ROWS)};
        // What a stage writes is read in the next one: between vectors and tiles nothing is
        // forwarded, so it has to be in the cache.
        for (int stage = -2; stage < stages; ++stage) {
            if (stage >= 0) ahead.share(stage, stages).fetch();
            for (int i = 0, next = stage + 2; i < groups(next); ++i) {
                const int index = next * TOGETHER + i;
                unpack(B(panel, index / GROUPS), index % GROUPS, codes[next % 3][i]);
            }
            in_memory();
            for (int i = 0, next = stage + 1; i < groups(next); ++i) {
                const int8_t* from = x.row(token) + (next * TOGETHER + i) * B::GROUP;
                multiply_group<TILES>(from, x.size, codes[next % 3][i], dots[next % 2][i]);
            }
            in_memory();
            for (int tile = 0; tile < TILES && groups(stage); ++tile)
                for (int half = 0; half < 2; ++half)
                    add[tile](panel, stage * TOGETHER, groups(stage), half, x, token + tile * TILE_ROWS,
                              dots[stage % 2], tile, sums[tile][half]);
        }
        for (int row = 0; row < rows; ++row)
            for (int half = 0; half < 2; ++half)
                store(out[row] + half * LANES, sums[row / TILE_ROWS][half][row % TILE_ROWS]);
    }
};
#endif
