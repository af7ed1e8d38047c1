// The inputs of a product for all tokens, in the form that its weights are multiplied with.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "blocks.h"
#include "tiles.h"

// The type of a weight. Those in blocks are multiplied in integers.
enum Type : int64_t {
    TYPE_FLOAT32, TYPE_FLOAT16, TYPE_BFLOAT16, TYPE_BFLOAT16_PAIRS,
#define TRTLA_TYPE(name, ...) TYPE_##name,
    TRTLA_BLOCK_TYPES(TRTLA_TYPE)
#undef TRTLA_TYPE
};
inline bool in_blocks(Type type) { return type > TYPE_BFLOAT16_PAIRS; }

// As many sums of products as there are registers for, beside two weights.
constexpr int INTEGER_ROWS = LANES == 16 ? 8 : LANES == 8 ? 6 : 4;
constexpr int MOST_INTEGER_ROWS = HAS_TILES ? 2 * TILE_ROWS : INTEGER_ROWS;

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
inline constexpr int PAIR = 1;
template <>
inline constexpr int PAIR<BFloat16> = 2;
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

// The inputs of a product, in the forms that weights are multiplied with: layers may differ in theirs.
struct Operand {
    Inputs<float> floats;
    Inputs<BFloat16> pairs;
    Codes codes;

    void reset(Type type, int tokens, int size) {
        with(type, [&](auto& x) { x.reset(tokens, size); });
    }
    // Takes a token's inputs for weights of a type.
    void put(Type type, int token, const float* from) {
        with(type, [&](auto& x) { x.put(token, from); });
    }
    template <class X>
    const X& as() const {
        if constexpr (std::is_same_v<X, Codes>) return codes;
        else if constexpr (std::is_same_v<X, Inputs<float>>) return floats;
        else return pairs;
    }

private:
    template <class Work>
    void with(Type type, Work work) {
        in_blocks(type) ? work(codes) : type == TYPE_BFLOAT16_PAIRS ? work(pairs) : work(floats);
    }
};
