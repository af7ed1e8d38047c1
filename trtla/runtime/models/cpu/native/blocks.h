// Weights in blocks, as they lie in a panel: small codes and what turns them into numbers.
//
// 32 inputs of WIDTH outputs lie together. Of types with factors, 256 inputs share the numbers in
// front of them. Four neighbouring inputs of LANES outputs are one vector of bytes.
#pragma once

#include "integers.h"

constexpr int WIDTH = 2 * LANES;

// BITS of a code; GROUP inputs share a factor, or a scale where there are none; ZERO: the code of 0.
template <int BITS_, int GROUP_, bool FACTORS_, bool MINIMUMS_, int ZERO_>
struct Blocks {
    static constexpr int BITS = BITS_, GROUP = GROUP_, MINIMUMS = MINIMUMS_;
    static constexpr int ZERO = BITS == 8 ? SIGNED_ZERO : ZERO_;
    static constexpr bool FACTORS = FACTORS_;
    static constexpr int HALVES = WIDTH * 2 * (1 + MINIMUMS);  // float16 scales and minimums
    static constexpr int SMALL = FACTORS ? WIDTH * (BLOCK / GROUP + MINIMUMS) : HALVES;
    static constexpr int BYTES = SMALL + WIDTH * BITS * BLOCK / 8;
    static constexpr int HEAD = FACTORS ? HALVES : 0, PER_HEAD = FACTORS ? 256 / BLOCK : 1;

    static size_t panel_bytes(int64_t inputs) {
        return inputs / BLOCK / PER_HEAD * (HEAD + (size_t)PER_HEAD * BYTES);
    }

    const uint8_t *halves, *small, *codes;

    Blocks(const uint8_t* panel, int block) {
        halves = panel + (size_t)(block / PER_HEAD) * (HEAD + PER_HEAD * BYTES);
        small = halves + HEAD + block % PER_HEAD * BYTES;
        if (!FACTORS) halves = small;
        codes = small + SMALL;
    }

    TRTLA_INLINE Floats numbers(int place, int group, int half) const {
        const Floats wide = load((const Float16*)halves + place * WIDTH + half * LANES);
        if constexpr (!FACTORS) return wide;
        return wide * to_floats(widened(small + group * WIDTH + half * LANES));
    }
    Floats scales(int group, int half) const { return numbers(0, group, half); }
    Floats minimums(int half) const { return numbers(1, BLOCK / GROUP, half); }

    Bits vector(int index) const { return load_as<Bits>(codes + (size_t)index * LANES * 4); }

    // The codes of inputs [4 * four, 4 * four + 4).
    TRTLA_INLINE Bytes unpacked(int four, int half) const {
        if constexpr (BITS == 8) return (Bytes)(vector(2 * four + half) ^ SIGNED_ZERO * 0x01010101u);
        const Bits low = (vector(four / 2 * 2 + half) >> (four % 2 * 4)) & 0x0f0f0f0f;
        if constexpr (BITS == 5) return (Bytes)(low | (moved(vector(8 + half), four) & 0x10101010));
        if constexpr (BITS == 6)
            return (Bytes)(low | (moved(vector(8 + four / 4 * 2 + half), four % 4 * 2) & 0x30303030));
        return (Bytes)low;
    }

    // Brings bits from place `from` to place 4.
    static Bits moved(Bits bits, int from) { return from < 4 ? bits << (4 - from) : bits >> (from - 4); }

    // One number of this block.
    float number(int output, int input) const {
        const int half = output / LANES, lane = output % LANES, group = input / GROUP;
        const float scale = scales(group, half)[lane];
        const int code = unpacked(input / 4, half)[lane * 4 + input % 4];
        const int value = BITS == 8 ? (int8_t)(code ^ SIGNED_ZERO) : code - ZERO;
        return scale * value + (MINIMUMS ? minimums(half)[lane] : 0.0f);
    }
};

// Every type with what `Blocks` takes: enum, products and packing follow, and Python reads the names.
#define TRTLA_BLOCK_TYPES(EACH)             \
    EACH(Q8_0, 8, 32, false, false, 0)      \
    EACH(Q4_0, 4, 32, false, false, 8)      \
    EACH(Q4_1, 4, 32, false, true, 0)       \
    EACH(Q5_0, 5, 32, false, false, 16)     \
    EACH(Q5_1, 5, 32, false, true, 0)       \
    EACH(Q4_K, 4, 32, true, true, 0)        \
    EACH(Q5_K, 5, 32, true, true, 0)        \
    EACH(Q6_K, 6, 16, true, false, 32)

#define TRTLA_TYPE(name, ...) typedef Blocks<__VA_ARGS__> name;
TRTLA_BLOCK_TYPES(TRTLA_TYPE)
#undef TRTLA_TYPE
