// Products of weights in blocks: small integers are multiplied and added up exactly, a block at a time,
// and become floats with the scales of weights and inputs, block after block.
#pragma once

#include <chrono>

#include "ahead.h"
#include "block_tiles.h"
#include "float_product.h"

// The number of tokens from which tiles are faster than vectors.
inline int fewest_in_tiles();

// How a panel is multiplied with one block of rows: blocks of small integers.
template <class B>
struct BlockProduct {
    static constexpr int MOST = MOST_INTEGER_ROWS;
    using InTheseTiles = Tiles<HAS_TILES ? B::GROUP : 0>;
    struct Ready : InTheseTiles {
        explicit Ready(int rows) : InTheseTiles((fewest_in_tiles(), rows)) {}  // measured before
    };
    using Operand = Codes;

    static size_t panel_bytes(int64_t inputs) { return B::panel_bytes(inputs); }

    static float number(const uint8_t* panel, int64_t output, int64_t input) {
        return B(panel, input / BLOCK).number(output, input % BLOCK);
    }

    // Adds the products of the inputs [4 * FIRST, 4 * FIRST + 4 * COUNT) of a block to the dots.
    template <int ROWS, int FIRST, int COUNT>
    TRTLA_INLINE static void add_products(const B& weights, const int8_t* x, int size,
                                          Ints (&dots)[ROWS][2]) {
        typedef Partial<B::PRODUCT_BITS, ROWS> Sum;
        constexpr int together = COUNT < Sum::MOST ? COUNT : Sum::MOST;
        Sum partial[ROWS][2];
        TRTLA_UNROLLED for (int row = 0; row < ROWS; ++row)
            TRTLA_UNROLLED for (int half = 0; half < 2; ++half) partial[row][half].begin(dots[row][half]);
        TRTLA_UNROLLED for (int four = FIRST; four < FIRST + together; ++four) {
            const Bytes first = weights.unpacked(four, 0), second = weights.unpacked(four, 1);
            TRTLA_UNROLLED for (int row = 0; row < ROWS; ++row) {
                const Bytes inputs =
                    (Bytes)broadcast(load_as<int32_t>(x + (size_t)row * size + 4 * four));
                partial[row][0].add(first, inputs);
                partial[row][1].add(second, inputs);
            }
        }
        TRTLA_UNROLLED for (int row = 0; row < ROWS; ++row)
            TRTLA_UNROLLED for (int half = 0; half < 2; ++half) partial[row][half].end(dots[row][half]);
        if constexpr (together < COUNT)
            add_products<ROWS, FIRST + together, COUNT - together>(weights, x, size, dots);
    }

    template <int ROWS, int GROUP>
    TRTLA_INLINE static void add_group(const B& weights, const int8_t* x, int size, const Scale* of,
                                       Ints (&dots)[ROWS][2]) {
        typedef Partial<B::PRODUCT_BITS, ROWS> Sum;
        TRTLA_UNROLLED for (int row = 0; row < ROWS; ++row)
            dots[row][0] = dots[row][1] = Sum::first(of[row].sum(GROUP, B::GROUP) * B::ZERO);
        add_products<ROWS, GROUP * B::GROUP / 4, B::GROUP / 4>(weights, x, size, dots);
    }

    template <int ROWS, int GROUP = 0>
    TRTLA_INLINE static void add_groups(const B& weights, const int8_t* x, int size,
                                        const Scale* of, Floats (&sums)[ROWS][2]) {
        if constexpr (GROUP < B::GROUPS) {
            typedef Partial<B::PRODUCT_BITS, ROWS> Sum;
            Ints dots[ROWS][2];
            add_group<ROWS, GROUP>(weights, x, size, of, dots);
            const Floats scales[2] = {weights.scales(GROUP, 0), weights.scales(GROUP, 1)};
            TRTLA_UNROLLED for (int row = 0; row < ROWS; ++row) {
                Ints zero = of[row].sum(GROUP, B::GROUP);
                TRTLA_IN_ORDER(zero);  // multiplied as a vector: one number would take longer
                TRTLA_UNROLLED for (int half = 0; half < 2; ++half) {
                    const Floats dot = to_floats(Sum::last(dots[row][half], zero * B::ZERO));
                    sums[row][half] = fused(scales[half] * of[row].scale, dot, sums[row][half]);
                    TRTLA_IN_ORDER(sums[row][half]);
                }
            }
            add_groups<ROWS, GROUP + 1>(weights, x, size, of, sums);
        }
    }

    // Small dots times their factors are added up in integers first: there are fewer scales then.
    template <int ROWS, int GROUP = 0>
    TRTLA_INLINE static void add_small(const B& weights, const int8_t* x, int size, const Scale* of,
                                       Ints (&wholes)[ROWS][2]) {
        if constexpr (GROUP < B::GROUPS) {
            typedef Partial<B::PRODUCT_BITS, ROWS> Sum;
            Ints dots[ROWS][2];
            add_group<ROWS, GROUP>(weights, x, size, of, dots);
            TRTLA_UNROLLED for (int half = 0; half < 2; ++half) {
                const Ints factors = weights.factors(0, GROUP, half);
                TRTLA_UNROLLED for (int row = 0; row < ROWS; ++row) {
                    const Ints zero = of[row].sum(GROUP, B::GROUP) * B::ZERO;
                    const Ints dot = Sum::last(dots[row][half], zero);
                    wholes[row][half] = with_product(wholes[row][half], dot, factors);
                }
            }
            add_small<ROWS, GROUP + 1>(weights, x, size, of, wholes);
        }
    }

    // A block's products, but for its minimums.
    template <int ROWS>
    TRTLA_INLINE static void add_block(const B& weights, const int8_t* x, int size, const Scale* of,
                                       Floats (&sums)[ROWS][2]) {
        if constexpr (!B::SMALL_DOTS) return add_groups<ROWS>(weights, x, size, of, sums);
        Ints wholes[ROWS][2] = {};
        add_small<ROWS>(weights, x, size, of, wholes);
        TRTLA_UNROLLED for (int half = 0; half < 2; ++half) {
            const Floats scale = weights.wide(0, half);
            TRTLA_UNROLLED for (int row = 0; row < ROWS; ++row)
                sums[row][half] = fused(scale * of[row].scale, to_floats(wholes[row][half]), sums[row][half]);
        }
    }

    template <int ROWS>
    TRTLA_INLINE static void add_minimums(const B& weights, const Scale* of, Floats (&sums)[ROWS][2]) {
        TRTLA_UNROLLED for (int half = 0; half < 2; ++half) {
            const Minimums<B> least(weights, half);
            TRTLA_UNROLLED for (int row = 0; row < ROWS; ++row)
                sums[row][half] = least.added(sums[row][half], of[row]);
        }
    }

    // Not inlined: in functions of many loops compilers forget what fits into registers.
    template <int ROWS>
    __attribute__((noinline)) static void multiply_block(const Codes& x, int token,
                                                         const uint8_t* panel, const Ahead& ahead,
                                                         const float* bias, float (*out)[WIDTH]) {
        Floats sums[ROWS][2];
        TRTLA_UNROLLED for (int row = 0; row < ROWS; ++row) {
            sums[row][0] = bias ? load(bias) : Floats{};
            sums[row][1] = bias ? load(bias + LANES) : Floats{};
        }
        const int blocks = x.size / BLOCK;
        for (int block = 0; block < blocks; ++block) {
            const B weights(panel, block);
            ahead.share(block, blocks).fetch();
            const Scale* of = x.scales_of(block) + token;
            add_block<ROWS>(weights, x.row(token) + block * BLOCK, x.size, of, sums);
            if constexpr (B::MINIMUMS) add_minimums<ROWS>(weights, of, sums);
        }
        TRTLA_UNROLLED for (int row = 0; row < ROWS; ++row)
            store(out[row], sums[row][0]), store(out[row] + LANES, sums[row][1]);
    }

    static void run(const Codes& x, int block, const uint8_t* panel, const Ahead& ahead,
                    const float* bias, float (*out)[WIDTH]) {
        const int first = x.first(block), rows = x.rows(block);
#if defined(TRTLA_TILES)
        if (rows >= fewest_in_tiles()) return in_tiles(rows, x, first, panel, ahead, bias, out);
#endif
        in_vectors(rows, x, first, panel, ahead, bias, out);
    }

#if defined(TRTLA_TILES)
    static void in_tiles(int rows, const Codes& x, int first, const uint8_t* panel, const Ahead& ahead,
                         const float* bias, float (*out)[WIDTH]) {
        if (rows > TILE_ROWS)
            InTiles<B>::template multiply<2>(rows, x, first, panel, ahead, bias, out);
        else
            InTiles<B>::template multiply<1>(rows, x, first, panel, ahead, bias, out);
    }
#endif

    // Whether so many rows are multiplied in parts: the first reads the panel from memory, and the others
    // find it in the cache. All of them fetch.
    static bool in_parts(int rows) { return rows > INTEGER_ROWS && rows < fewest_in_tiles(); }

    static void in_vectors(int rows, const Codes& x, int first, const uint8_t* panel,
                           const Ahead& ahead, const float* bias, float (*out)[WIDTH]) {
        const int parts = (rows + INTEGER_ROWS - 1) / INTEGER_ROWS;
        for (int part = 0; part < parts; ++part) {
            const int from = rows * part / parts, to = rows * (part + 1) / parts;
            with_rows<INTEGER_ROWS>(to - from, [&](auto count) {
                multiply_block<count>(x, first + from, panel, ahead.share(part, parts), bias,
                                      out + from);
            });
        }
    }
};

#if defined(TRTLA_TILES)
// Both ways give the same bits: what this finds changes no text.
inline int measured_fewest_in_tiles() {
    constexpr int INPUTS = 1024, TRIES = 40;
    typedef BlockProduct<Q4_0> Product;
    const std::vector<uint8_t> panel(Product::panel_bytes(INPUTS));
    const std::vector<float> ones(INPUTS, 1.0f);
    Codes x;
    x.reset(TILE_ROWS, INPUTS);
    for (int row = 0; row < TILE_ROWS; ++row) x.put(row, ones.data());
    float out[TILE_ROWS][WIDTH];
    const Product::InTheseTiles ready(TILE_ROWS);
    const auto timed = [&](auto multiply) {
        const auto start = std::chrono::steady_clock::now();
        multiply();
        return (std::chrono::steady_clock::now() - start).count();
    };
    const Ahead none{};
    const auto in_tiles = [&] { Product::in_tiles(TILE_ROWS, x, 0, panel.data(), none, nullptr, out); };
    const auto in_vectors = [&] { Product::in_vectors(TILE_ROWS, x, 0, panel.data(), none, nullptr, out); };
    auto tiles = timed(in_tiles), vectors = timed(in_vectors);
    for (int i = 0; i < TRIES; ++i) {
        tiles = std::min(tiles, timed(in_tiles));
        vectors = std::min(vectors, timed(in_vectors));
    }
    return tiles < vectors ? TILE_ROWS * tiles / vectors + 1 : MOST_INTEGER_ROWS + 1;
}

inline int fewest_in_tiles() {
    static const int fewest = measured_fewest_in_tiles();  // once, in less than a millisecond
    return fewest;
}
#else
inline int fewest_in_tiles() { return 0; }
#endif
