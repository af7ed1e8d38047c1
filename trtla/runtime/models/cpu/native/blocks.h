// Weights in blocks, as they lie in a panel: small codes and what turns them into numbers.
//
// 32 inputs of WIDTH outputs lie together. Of types with factors, 256 inputs share the numbers in
// front of them. Four neighbouring inputs of LANES outputs are one vector of bytes.
#pragma once

#include "integers.h"

constexpr int WIDTH = 2 * LANES;

// Numbers of codes of 4 bits. Products take them with `zero` added, in `bits` bits.
struct Table {
    int8_t numbers[16];
    int bits, zero;
};
enum TableName { NO_TABLE, NORMAL, E2M1 };
constexpr Table TABLES[] = {
    {},
    {{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}, 8, SIGNED_ZERO},
    {{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}, 5, 12},
};

// Each code's number in a table, with its zero added.
template <TableName TABLE>
TRTLA_INLINE Bytes looked_up(Bytes codes) {
    alignas(16) static constexpr auto shifted = [] {
        Table out = TABLES[TABLE];
        for (int8_t& number : out.numbers) number = (uint8_t)(number + out.zero);
        return out;
    }();
#if defined(TRTLA_SHUFFLED)
    return (Bytes)TRTLA_SHUFFLED(shifted.numbers, codes);
#else
    for (int i = 0; i < (int)sizeof codes; ++i) codes[i] = shifted.numbers[codes[i]];
    return codes;
#endif
}

// 2^(byte - 128) of LANES bytes, as in MXFP4: its numbers are twice as large.
inline Floats half_power_of_two(const uint8_t* bytes) {
    const Ints power = (widened(bytes) & 255) << 23, least = broadcast(1 << 22);  // 2^-127: no exponent has it
    return (Floats)(power > least ? power : least) * 0.5f;
}

// What codes are multiplied with.
enum Scaling {
    SCALES,   // float16 numbers of BLOCK inputs
    FACTORS,  // float16 numbers of 256 inputs, times a byte: a scale's of GROUP inputs, a minimum's of BLOCK
    NIBBLES,  // the same, in a byte of GROUP inputs: a scale's 4 bits, and above them a minimum's
    POWERS,   // a power of two of BLOCK inputs, as a byte
};

// BITS of a code; GROUP inputs share a factor, or a scale where there are none; ZERO: the code of 0;
// TABLE: the numbers of codes, if they are not those of the code itself.
template <int BITS_, int GROUP_, Scaling SCALING, bool MINIMUMS_, int ZERO_, TableName TABLE = NO_TABLE>
struct Blocks {
    static constexpr int BITS = BITS_, GROUP = GROUP_, MINIMUMS = MINIMUMS_, GROUPS = BLOCK / GROUP;
    static constexpr int ZERO = TABLE ? TABLES[TABLE].zero : BITS == 8 ? SIGNED_ZERO : ZERO_;
    static constexpr int PRODUCT_BITS = TABLE ? TABLES[TABLE].bits : BITS;
    static constexpr int LOW = BITS < 4 || BITS == 8 ? BITS : 4, MORE = BITS - LOW;  // bits that lie together
    static constexpr bool SHARED = SCALING == FACTORS || SCALING == NIBBLES;
    static constexpr int HALVES = SCALING == POWERS ? 0 : WIDTH * 2 * (1 + MINIMUMS);  // float16 numbers
    static constexpr int FACTOR_BYTES = SCALING == SCALES ? 0 : GROUPS;  // of an output
    static constexpr int MIN_FACTOR_BYTES = SCALING == FACTORS ? MINIMUMS : 0;
    static constexpr bool SMALL_DOTS = GROUPS > 1 && BITS < 4;  // they fit into 16 bits, as factors do
    static constexpr int SMALL = WIDTH * (FACTOR_BYTES + MIN_FACTOR_BYTES) + (SHARED ? 0 : HALVES);
    static constexpr int BYTES = SMALL + WIDTH * BITS * BLOCK / 8;
    static constexpr int HEAD = SHARED ? HALVES : 0, PER_HEAD = SHARED ? 256 / BLOCK : 1;

    static size_t panel_bytes(int64_t inputs) {
        return inputs / BLOCK / PER_HEAD * (HEAD + (size_t)PER_HEAD * BYTES);
    }

    const uint8_t *halves, *small, *codes;

    Blocks(const uint8_t* panel, int block) {
        halves = panel + (size_t)(block / PER_HEAD) * (HEAD + PER_HEAD * BYTES);
        small = halves + HEAD + block % PER_HEAD * BYTES;
        if (!SHARED) halves = small;
        codes = small + SMALL;
    }

    // Those of scales are at place 0, those of minimums at place 1, where they have factors of their own.
    TRTLA_INLINE Ints factors(int place, int group, int half) const {
        const Ints bytes = widened(small + group * WIDTH + half * LANES);
        return SCALING == NIBBLES ? bytes >> (4 * place) & 15 : bytes;
    }
    Floats wide(int place, int half) const {
        return load((const Float16*)halves + place * WIDTH + half * LANES);
    }
    TRTLA_INLINE Floats numbers(int place, int group, int half) const {
        if constexpr (SCALING == POWERS) return half_power_of_two(small + half * LANES);
        if constexpr (!SHARED) return wide(place, half);
        return wide(place, half) * to_floats(factors(place, group, half));
    }
    Floats scales(int group, int half) const { return numbers(0, group, half); }
    Floats minimums(int group, int half) const {
        return numbers(1, SCALING == NIBBLES ? group : GROUPS, half);
    }

    Bits vector(int index) const { return load_as<Bits>(codes + (size_t)index * LANES * 4); }

    // Of four inputs each byte's COUNT bits, which lie behind FIRST vectors, from bit `to` on.
    template <int COUNT, int FIRST>
    TRTLA_INLINE Bits bits(int four, int half, int to) const {
        constexpr int TOGETHER = 8 / COUNT;
        const Bits some = vector(FIRST + four / TOGETHER * 2 + half);
        const int from = four % TOGETHER * COUNT;
        const Bits moved = from < to ? some << (to - from) : some >> (from - to);
        return moved & (uint32_t)(((1 << COUNT) - 1) << to) * 0x01010101u;
    }

    // Of 3 bits: the first two vectors' bytes have two codes each, and the lower bits of a third one, whose
    // upper bit is in the last vector.
    TRTLA_INLINE Bits three_bits(int four, int half) const {
        if (four < 6) return vector(four / 2 * 2 + half) >> (four % 2 * 3) & 0x07070707;
        const Bits low = vector((four - 6) * 2 + half) >> 6, high = vector(4 + half) >> (four - 2);
        return (low & 0x03030303) | (high & 0x04040404);
    }

    // The codes of inputs [4 * four, 4 * four + 4).
    TRTLA_INLINE Bytes unpacked(int four, int half) const {
        if constexpr (BITS == 8) return (Bytes)(vector(2 * four + half) ^ SIGNED_ZERO * 0x01010101u);
        if constexpr (BITS == 3) return (Bytes)three_bits(four, half);
        Bits found = bits<LOW, 0>(four, half, 0);
        if constexpr (MORE > 0) found |= bits<MORE, 2 * LOW>(four, half, LOW);
        if constexpr (TABLE != NO_TABLE) return looked_up<TABLE>((Bytes)found);
        return (Bytes)found;
    }

    // One number of this block.
    float number(int output, int input) const {
        const int half = output / LANES, lane = output % LANES, group = input / GROUP;
        const float scale = scales(group, half)[lane];
        const int code = unpacked(input / 4, half)[lane * 4 + input % 4];
        const float value = scale * (int8_t)(code - ZERO);
        if constexpr (!MINIMUMS) return value;
        return value + minimums(group, half)[lane];
    }
};

// The minimums of LANES outputs, and how they are added to a token's sums.
template <class B>
struct Minimums {
    static constexpr int FACTORS = B::SMALL_DOTS ? B::GROUPS : 0;  // as integers
    Floats least;
    Ints factors[FACTORS + 1];

    TRTLA_INLINE Minimums(const B& weights, int half)
        : least(FACTORS ? weights.wide(1, half) : weights.minimums(0, half)) {
        TRTLA_UNROLLED for (int group = 0; group < FACTORS; ++group)
            factors[group] = weights.factors(1, group, half);
    }

    TRTLA_INLINE Floats added(Floats sum, const Scale& of) const {
        if constexpr (!FACTORS) return fused(least, of.shift - Floats{}, sum);
        Ints whole{};
        TRTLA_UNROLLED for (int group = 0; group < FACTORS; ++group)
            whole = with_product(whole, of.sum(group, B::GROUP), factors[group]);
        return fused(least * of.scale, to_floats(whole), sum);
    }
};

// Every type with what `Blocks` takes: enum, products and packing follow, and Python reads the names.
#define TRTLA_BLOCK_TYPES(EACH)                    \
    EACH(Q8_0, 8, 32, SCALES, false, 0)            \
    EACH(Q4_0, 4, 32, SCALES, false, 8)            \
    EACH(Q4_1, 4, 32, SCALES, true, 0)             \
    EACH(Q5_0, 5, 32, SCALES, false, 16)           \
    EACH(Q5_1, 5, 32, SCALES, true, 0)             \
    EACH(Q2_K, 2, 16, NIBBLES, true, 0)            \
    EACH(Q3_K, 3, 16, FACTORS, false, 4)           \
    EACH(Q4_K, 4, 32, FACTORS, true, 0)            \
    EACH(Q5_K, 5, 32, FACTORS, true, 0)            \
    EACH(Q6_K, 6, 16, FACTORS, false, 32)          \
    EACH(IQ4_NL, 4, 32, SCALES, false, 0, NORMAL)  \
    EACH(IQ4_XS, 4, 32, FACTORS, false, 0, NORMAL) \
    EACH(MXFP4, 4, 32, POWERS, false, 0, E2M1)

#define TRTLA_TYPE(name, ...) typedef Blocks<__VA_ARGS__> name;
TRTLA_BLOCK_TYPES(TRTLA_TYPE)
#undef TRTLA_TYPE
