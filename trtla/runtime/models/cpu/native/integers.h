// Products of small integers: codes of weights with inputs of 8 bits, added up in integers.
//
// Sums of integers do not depend on their order: each way below gives the same bits.
#pragma once

#include <cmath>

#include "simd.h"
#if defined(__ARM_NEON)
#include <arm_neon.h>
#elif defined(__SSSE3__)
#include <immintrin.h>
#endif

// Sums stay in registers only where functions are inlined and loops unrolled; compilers do not always
// see it.
#define TRTLA_INLINE __attribute__((always_inline)) inline
#define TRTLA_UNROLLED _Pragma("GCC unroll 16")

typedef int8_t Bytes __attribute__((vector_size(LANES * 4)));  // four inputs of LANES outputs
typedef uint8_t WrappedBytes __attribute__((vector_size(LANES * 4)));  // which may overflow
typedef int16_t Shorts __attribute__((vector_size(LANES * 4)));

// -value where `negative` has all bits, else value.
inline Bytes negated(Bytes values, Bytes negative) {
    return (Bytes)((WrappedBytes)(values ^ negative) - (WrappedBytes)negative);
}

// Each of 16 bytes, by the bytes of `places`, which are from 0 to 15.
#if defined(__AVX512BW__)
#define TRTLA_SHUFFLED(some, places) \
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_as<__m128i>(some)), (__m512i)places)
#elif defined(__AVX2__) && !defined(__AVX512F__)
#define TRTLA_SHUFFLED(some, places) \
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_as<__m128i>(some)), (__m256i)places)
#elif defined(__SSSE3__) && !defined(__AVX2__)
#define TRTLA_SHUFFLED(some, places) _mm_shuffle_epi8(load_as<__m128i>(some), (__m128i)places)
#elif defined(__aarch64__)
#define TRTLA_SHUFFLED(some, places) vqtbl1q_u8(load_as<uint8x16_t>(some), (uint8x16_t)places)
#endif

inline Ints broadcast(int32_t value) { return Ints{} + value; }

// Adds the products of four neighbouring inputs to each lane. Where the processor wants codes without
// sign, those of 8 bits come with SIGNED_ZERO added.
#if defined(__AVX512VNNI__)
#define TRTLA_DOT(sums, codes, inputs) _mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, (__m512i)inputs)
constexpr int SIGNED_ZERO = 128;
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
#define TRTLA_DOT(sums, codes, inputs) _mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)codes, (__m256i)inputs)
constexpr int SIGNED_ZERO = 128;
#elif defined(__ARM_FEATURE_DOTPROD)
#define TRTLA_DOT(sums, codes, inputs) vdotq_s32((int32x4_t)sums, (int8x16_t)codes, (int8x16_t)inputs)
constexpr int SIGNED_ZERO = 0;
#else
constexpr int SIGNED_ZERO = 0;
#if defined(__AVX512BW__)
#define TRTLA_PAIRS(codes, inputs) _mm512_maddubs_epi16((__m512i)codes, (__m512i)inputs)
#define TRTLA_WIDE(pairs) _mm512_madd_epi16((__m512i)pairs, _mm512_set1_epi16(1))
#define TRTLA_SIZES(codes) _mm512_abs_epi8((__m512i)codes)
#define TRTLA_SIGNED(inputs, codes) negated(inputs, codes < 0)
#elif defined(__AVX2__) && !defined(__AVX512F__)
#define TRTLA_PAIRS(codes, inputs) _mm256_maddubs_epi16((__m256i)codes, (__m256i)inputs)
#define TRTLA_WIDE(pairs) _mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16(1))
#define TRTLA_SIZES(codes) _mm256_abs_epi8((__m256i)codes)
#define TRTLA_SIGNED(inputs, codes) _mm256_sign_epi8((__m256i)inputs, (__m256i)codes)
#elif defined(__SSSE3__) && !defined(__AVX2__)
#define TRTLA_PAIRS(codes, inputs) _mm_maddubs_epi16((__m128i)codes, (__m128i)inputs)
#define TRTLA_WIDE(pairs) _mm_madd_epi16((__m128i)pairs, _mm_set1_epi16(1))
#define TRTLA_SIZES(codes) _mm_abs_epi8((__m128i)codes)
#define TRTLA_SIGNED(inputs, codes) _mm_sign_epi8((__m128i)inputs, (__m128i)codes)
#endif
#endif

// Keeps compilers from adding up products later in another order, for which they would all be stored.
#if defined(TRTLA_PAIRS)
#define TRTLA_IN_ORDER(sum) asm("" : "+v"(sum))
#else
#define TRTLA_IN_ORDER(sum)
#endif

// sum + a * b, of numbers that fit into 16 bits.
inline Ints with_product(Ints sum, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)(b & 0xffff));
#elif defined(__AVX512BW__)
    return sum + (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)(b & 0xffff));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return sum + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)(b & 0xffff));
#elif defined(__SSSE3__) && !defined(__AVX2__)
    return sum + (Ints)_mm_madd_epi16((__m128i)a, (__m128i)(b & 0xffff));
#else
    return sum + a * b;
#endif
}

// A sum of products that is wide enough for MOST additions, added to a dot of `first()`; `last()` is
// the dot less `zero`.
template <int BITS, int ROWS>
struct Partial {
#if defined(TRTLA_DOT)
    static constexpr int MOST = 8;
    Ints sums;
    static Ints first(Ints zero) { return -zero; }
    static Ints last(Ints dot, Ints) { return dot; }
    void begin(Ints dot) { sums = dot; }
    void add(Bytes codes, Bytes inputs) { sums = (Ints)TRTLA_DOT(sums, codes, inputs); }
    void end(Ints& dot) const { dot = sums; }
#elif defined(TRTLA_PAIRS)
    // Two products are added in 16 bits. Codes of 8 bits are multiplied without their sign, which
    // the inputs get: two such products just fit.
    static constexpr int MOST = BITS <= 4 ? 8 : BITS == 5 ? 4 : BITS == 6 ? 2 : 1;
    Shorts sums{};
    static Ints first(Ints) { return Ints{}; }
    static Ints last(Ints dot, Ints zero) { return dot - zero; }
    void begin(Ints) {}
    void add(Bytes codes, Bytes inputs) {
        if constexpr (BITS == 8) {
            inputs = (Bytes)TRTLA_SIGNED(inputs, codes);
            // Of -128 both are 128 without a sign; compilers keep those of several rows in registers
            // with the second alone.
            codes = ROWS == 1 ? (Bytes)TRTLA_SIZES(codes) : negated(codes, codes < 0);
        }
        sums += (Shorts)TRTLA_PAIRS(codes, inputs);
        if constexpr (ROWS > 1) TRTLA_IN_ORDER(sums);  // one row gains by another order
    }
    void end(Ints& dot) const { dot += (Ints)TRTLA_WIDE(sums); }
#else
    static constexpr int MOST = 8;
    Ints sums;
    static Ints first(Ints zero) { return -zero; }
    static Ints last(Ints dot, Ints) { return dot; }
    void begin(Ints dot) { sums = dot; }
    void add(Bytes codes, Bytes inputs) {
        const Ints c = (Ints)codes, x = (Ints)inputs;
        for (int i = 24; i >= 0; i -= 8) sums += (c << i >> 24) * (x << i >> 24);
    }
    void end(Ints& dot) const { dot = sums; }
#endif
};

// The inputs of some tokens in 8 bits, each 32 of them with a scale.
constexpr int BLOCK = 32;

struct Scale {
    float scale, shift;      // shift: the scale times the sum of the codes
    int32_t whole, sums[2];  // of all codes, and of the first and the last 16

    // Of the codes of a group of 16 or 32, in every lane.
    Ints sum(int group, int size) const { return broadcast(size == BLOCK ? whole : sums[group]); }
};

// Codes of BLOCK numbers. Numbers that are not finite get a scale that is none.
inline Scale quantise(const float* from, int8_t* to) {
    const float largest = largest_size(from, BLOCK);
    Scale out{largest / 127.0f, 0.0f, 0, {0, 0}};
    if (!(largest < INFINITY)) out.scale = load_as<float>("\xff\xff\xff\x7f");
    const float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
    for (int half = 0; half < 2; ++half) {
        Ints codes{};
        for (int i = half * BLOCK / 2; i < (half + 1) * BLOCK / 2; i += LANES) {
            const Ints some = rounded(load(from + i) * inverse);
            const Narrow narrow = narrowed(some);
            std::memcpy(to + i, &narrow, sizeof narrow);
            codes += some;
        }
        out.sums[half] = sum(codes);
    }
    out.whole = out.sums[0] + out.sums[1];
    out.shift = out.scale * out.whole;
    return out;
}
