// Products of packed weights with a few or many tokens.
//
// A weight lies in panels of WIDTH outputs, all inputs of a panel in a row: it is read once, from
// start to end. Every sum runs over the inputs in order, whatever else is in the batch: a token's
// result is the same bit for bit alone and among others.
#pragma once

#include <algorithm>
#include <vector>

#include "blocks.h"
#include "tiles.h"

constexpr int INTEGER_ROWS = LANES == 16 ? 6 : 4;
constexpr int MOST_INTEGER_ROWS = HAS_TILES ? TILE_ROWS : INTEGER_ROWS;
#ifndef TOG
#define TOG 4
#endif
#ifndef FEW
#define FEW 9
#endif
constexpr int FEWEST_IN_TILES = FEW;
constexpr size_t PANELS_BYTES = 512 * 1024;  // panels that stay in the second-level cache

// As in packing.py. Types from Q8_0 on are multiplied in integers.
enum Type : int64_t {
    TYPE_FLOAT32, TYPE_FLOAT16, TYPE_BFLOAT16, TYPE_BFLOAT16_PAIRS,
    TYPE_Q8_0, TYPE_Q4_0, TYPE_Q4_1, TYPE_Q5_0, TYPE_Q5_1, TYPE_Q4_K, TYPE_Q5_K, TYPE_Q6_K
};

struct Matrix {
    const void* panels;  // [panels][inputs][WIDTH]; pairs: [panels][inputs / 2][WIDTH][2]; or blocks.h's
    const float* bias;   // [panels * WIDTH], or null
    int64_t outputs, inputs;
    Type type;

    int num_panels() const { return (outputs + WIDTH - 1) / WIDTH; }
};

// Some tokens in blocks of about the same number of rows, at most `most`.
struct Rows {
    int tokens = 0, size = 0, blocks = 0;

    void reset(int new_tokens, int new_size, int most) {
        tokens = new_tokens, size = new_size, blocks = (tokens + most - 1) / most;
    }
    int first(int block) const { return (int64_t)tokens * block / blocks; }
    int rows(int block) const { return first(block + 1) - first(block); }
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

// Each block of rows is [inputs / PAIR][rows][PAIR], or [rows][inputs] for tiles.
template <class X>
struct Inputs : Rows {
    std::vector<X> data;

    void reset(int new_tokens, int new_size) {
        Rows::reset(new_tokens, new_size, MOST_ROWS<X>);
        if (data.size() < (size_t)tokens * size) data.resize((size_t)tokens * size);
    }
    const X* block(int block) const { return data.data() + (size_t)first(block) * size; }

    // Takes a token's inputs.
    void put(int token, const float* from) {
        const int block = ((int64_t)(token + 1) * blocks - 1) / tokens;
        const int row = token - first(block), count = rows(block);
        X* to = data.data() + (size_t)first(block) * size;
        for (int i = 0; i < size; i += LANES) {
            if constexpr (TILED<X>) {
                store(to + (size_t)row * size + i, load(from + i));
                continue;
            }
            X narrow[LANES];
            store(narrow, load(from + i));
            for (int lane = 0; lane < LANES; ++lane) {
                const int input = i + lane;
                to[((size_t)(input / PAIR<X>)*count + row) * PAIR<X> + input % PAIR<X>] = narrow[lane];
            }
        }
    }
};

// Inputs in 8 bits, [tokens][inputs], and the scales of each BLOCK of them,
// [inputs / BLOCK][tokens].
struct Codes : Rows {
    std::vector<int8_t> data;
    std::vector<Scale> scales;

    void reset(int new_tokens, int new_size) {
        Rows::reset(new_tokens, new_size, MOST_INTEGER_ROWS);
        if (data.size() < (size_t)tokens * size) data.resize((size_t)tokens * size);
        // Tiles read the scales of TILE_ROWS tokens, however many there are.
        const size_t wanted = (size_t)tokens * size / BLOCK + TILE_ROWS;
        if (scales.size() < wanted) scales.resize(wanted);
    }
    const int8_t* row(int token) const { return data.data() + (size_t)token * size; }
    const Scale* scales_of(int block) const { return scales.data() + (size_t)block * tokens; }

    void put(int token, const float* from) {
        for (int i = 0; i < size; i += BLOCK) {
            int8_t* to = &data[(size_t)token * size + i];
            scales[(size_t)(i / BLOCK) * tokens + token] = quantise(from + i, to);
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

// Calls `work` with a number of rows that the compiler knows.
template <int MOST, class Work>
void with_rows(int rows, Work work) {
    if constexpr (MOST > 0) {
        if (rows == MOST) return work(std::integral_constant<int, MOST>());
        with_rows<MOST - 1>(rows, work);
    }
}

// How a panel is multiplied with one block of rows: floats.
template <class X, class W>
struct FloatProduct {
    static constexpr int MOST = MOST_ROWS<X>;
    using Ready = Tiles<TILED<X> ? TILE_INPUTS * 2 : 0>;
    using Operand = Inputs<X>;

    static size_t panel_bytes(int64_t inputs) { return inputs * WIDTH * sizeof(W); }

    static float number(const uint8_t* panel, int64_t output, int64_t input) {
        const int64_t at = (input / PAIR<X> * WIDTH + output) * PAIR<X> + input % PAIR<X>;
        const W lanes[LANES] = {((const W*)panel)[at]};
        return load(lanes)[0];
    }

    template <int ROWS>
    static void multiply_block(const X* x, const W* panel, const float* bias, int inputs,
                               float (*out)[WIDTH]) {
        Floats sums[ROWS][2];
        for (auto& sum : sums) {
            sum[0] = bias ? load(bias) : Floats{};
            sum[1] = bias ? load(bias + LANES) : Floats{};
        }
        multiply(x, panel, inputs, sums);
        for (int row = 0; row < ROWS; ++row)
            store(out[row], sums[row][0]), store(out[row] + LANES, sums[row][1]);
    }

    static void run(const Inputs<X>& x, int block, const uint8_t* panel, const float* bias,
                    float (*out)[WIDTH]) {
        const int rows = x.rows(block);
        const W* weights = (const W*)panel;
        if constexpr (TILED<X>)
            multiply_tiles(rows, x.block(block), weights, bias, x.size, out);
        else
            with_rows<MAX_ROWS>(rows, [&](auto count) {
                multiply_block<count>(x.block(block), weights, bias, x.size, out);
            });
    }
};

// How a panel is multiplied with one block of rows: blocks of small integers.
template <class B>
struct BlockProduct {
    static constexpr int MOST = MOST_INTEGER_ROWS;
    static constexpr int GROUP_FOURS = B::GROUP / 4;
    static constexpr int TOGETHER = TOG;
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

#if defined(TRTLA_TILES)
    // Codes of one group of LANES outputs, with their sign.
    static void unpack(const B& weights, int group, int half, int8_t (&codes)[GROUP_FOURS][64]) {
        for (int four = 0; four < GROUP_FOURS; ++four) {
            const Bytes some = weights.unpacked(group * GROUP_FOURS + four, half);
            const Bytes centred = some - (int8_t)B::ZERO;
            std::memcpy(codes[four], &centred, sizeof centred);
        }
    }

    // LANES outputs of up to TILE_ROWS tokens in tiles: the same numbers as `multiply_block`.
    static void multiply_tiles(int rows, const Codes& x, int token, const uint8_t* panel, int half,
                               const float* bias, float (*out)[WIDTH]) {
        constexpr int groups = BLOCK / B::GROUP;
        const int count = x.size / B::GROUP, stages = (count + TOGETHER - 1) / TOGETHER;
        alignas(64) int8_t codes[3][TOGETHER][GROUP_FOURS][64];
        alignas(64) int32_t dots[2][TOGETHER][TILE_ROWS][TILE_OUTPUTS];
        const auto each = [&](int stage, auto work) {
            const int first = stage * TOGETHER;
            for (int i = 0; stage >= 0 && i < TOGETHER && first + i < count; ++i) work(first + i, i);
        };
        Floats sums[TILE_ROWS];
        for (Floats& sum : sums) sum = bias ? load(bias + half * LANES) : Floats{};
        // What a stage writes is read two stages later: tiles and vectors do not forward it.
        for (int stage = -2; stage < stages; ++stage) {
            each(stage + 2, [&](int index, int i) {
                unpack(B(panel, index / groups), index % groups, half, codes[(stage + 2) % 3][i]);
            });
            in_memory();
            each(stage + 1, [&](int index, int i) {
                const int8_t* from = x.row(token) + index * B::GROUP;
                multiply_integers(i, from, x.size, codes[(stage + 1) % 3][i][0], dots[(stage + 1) % 2][i][0]);
            });
            in_memory();
            each(stage, [&](int index, int i) {
                const B weights(panel, index / groups);
                const Scale* of = x.scales_of(index / groups) + token;
                const Floats scale = weights.scales(index % groups, half);
#pragma GCC unroll 16
                for (int row = 0; row < TILE_ROWS; ++row) {
                    const Floats dot = to_floats(load_as<Ints>(dots[stage % 2][i][row]));
                    sums[row] = fused(scale * of[row].scale, dot, sums[row]);
                }
                if (!B::MINIMUMS || index % groups < groups - 1) return;
                const Floats least = weights.minimums(half);
#pragma GCC unroll 16
                for (int row = 0; row < TILE_ROWS; ++row)
                    sums[row] = fused(least, Floats{} + of[row].shift, sums[row]);
            });
        }
        for (int row = 0; row < rows; ++row) store(out[row] + half * LANES, sums[row]);
    }
#endif

    static void run(const Codes& x, int block, const uint8_t* panel, const float* bias,
                    float (*out)[WIDTH]) {
        const int first = x.first(block), rows = x.rows(block);
#if defined(TRTLA_TILES)
        if (rows >= FEWEST_IN_TILES) {
            multiply_tiles(rows, x, first, panel, 0, bias, out);
            return multiply_tiles(rows, x, first, panel, 1, bias, out);
        }
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

template <class Product, class Sink>
void multiply_panels(const typename Product::Operand& x, const Matrix& matrix, int from, int to, Sink sink) {
    const size_t panel_bytes = Product::panel_bytes(matrix.inputs);
    const int together = std::max<size_t>(1, PANELS_BYTES / panel_bytes);
    float out[Product::MOST][WIDTH];
    for (int first = from; first < to; first += together) {
        for (int block = 0; block < x.blocks; ++block) {
            const int token = x.first(block), rows = x.rows(block);
            [[maybe_unused]] const typename Product::Ready ready(rows);
            for (int panel = first; panel < std::min(to, first + together); ++panel) {
                const float* bias = matrix.bias ? matrix.bias + panel * WIDTH : nullptr;
                Product::run(x, block, (const uint8_t*)matrix.panels + panel * panel_bytes, bias, out);
                for (int row = 0; row < rows; ++row) sink(token + row, panel, out[row]);
            }
        }
    }
}

// The inputs of a product, in the form that its matrix's type is multiplied with.
struct Operand {
    Inputs<float> floats;
    Inputs<BFloat16> pairs;
    Codes codes;
    Type type = TYPE_FLOAT32;

    void reset(Type new_type, int tokens, int size) {
        type = new_type;
        with([&](auto& x) { x.reset(tokens, size); });
    }
    void put(int token, const float* from) {
        with([&](auto& x) { x.put(token, from); });
    }
    template <class X>
    const X& as() const {
        if constexpr (std::is_same_v<X, Codes>) return codes;
        else if constexpr (std::is_same_v<X, Inputs<float>>) return floats;
        else return pairs;
    }

private:
    template <class Work>
    void with(Work work) {
        type >= TYPE_Q8_0 ? work(codes) : type == TYPE_BFLOAT16_PAIRS ? work(pairs) : work(floats);
    }
};

template <class T>
struct Named {
    typedef T type;
};

// Calls `work` with the product of a type, as Named<...>.
template <class Work>
auto with_product(Type type, Work work) {
    switch (type) {
        case TYPE_FLOAT32: return work(Named<FloatProduct<float, float>>());
        case TYPE_FLOAT16: return work(Named<FloatProduct<float, Float16>>());
        case TYPE_BFLOAT16: return work(Named<FloatProduct<float, BFloat16>>());
        case TYPE_BFLOAT16_PAIRS: return work(Named<FloatProduct<BFloat16, BFloat16>>());
        case TYPE_Q8_0: return work(Named<BlockProduct<Q8_0>>());
        case TYPE_Q4_0: return work(Named<BlockProduct<Q4_0>>());
        case TYPE_Q4_1: return work(Named<BlockProduct<Q4_1>>());
        case TYPE_Q5_0: return work(Named<BlockProduct<Q5_0>>());
        case TYPE_Q5_1: return work(Named<BlockProduct<Q5_1>>());
        case TYPE_Q4_K: return work(Named<BlockProduct<Q4_K>>());
        case TYPE_Q5_K: return work(Named<BlockProduct<Q5_K>>());
        default: return work(Named<BlockProduct<Q6_K>>());
    }
}

// All tokens times the panels [from, to); `sink(token, panel, products)` takes WIDTH of them.
template <class Sink>
void matmul(const Operand& x, const Matrix& matrix, int from, int to, Sink sink) {
    with_product(matrix.type, [&](auto named) {
        typedef typename decltype(named)::type Product;
        multiply_panels<Product>(x.as<typename Product::Operand>(), matrix, from, to, sink);
    });
}

// One number of a matrix.
inline float number(const Matrix& matrix, int64_t output, int64_t input) {
    return with_product(matrix.type, [&](auto named) {
        typedef typename decltype(named)::type Product;
        const size_t panel = output / WIDTH * Product::panel_bytes(matrix.inputs);
        return Product::number((const uint8_t*)matrix.panels + panel, output % WIDTH, input);
    });
}
