// Vectors as wide as the processor's registers, and numbers of 16 bits. GCC's and clang's vector
// extensions: the same source for AVX-512, AVX2, SSE and NEON.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int MAX_ROWS = 12;  // 24 sums, 2 weights: of 32 registers
#elif defined(__AVX2__)
constexpr int LANES = 8;
constexpr int MAX_ROWS = 6;  // 12 sums, 2 weights: of 16
#elif defined(__ARM_NEON)
constexpr int LANES = 4;
constexpr int MAX_ROWS = 12;
#else
constexpr int LANES = 4;
constexpr int MAX_ROWS = 6;
#endif

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t Bits __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
typedef int8_t Narrow __attribute__((vector_size(LANES)));

struct BFloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

// Calls `work` with a number of rows that the compiler knows.
template <int MOST, class Work>
void with_rows(int rows, Work work) {
    if constexpr (MOST > 0) {
        if (rows == MOST) return work(std::integral_constant<int, MOST>());
        with_rows<MOST - 1>(rows, work);
    }
}

template <class V, class T>
inline V load_as(const T* from) {
    V out;
    std::memcpy(&out, from, sizeof out);
    return out;
}

inline Floats load(const float* from) { return load_as<Floats>(from); }

// LANES integers of 16 bits, without sign.
inline Bits widened(const uint16_t* from) {
#if defined(__AVX512F__)
    return (Bits)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__)
    return (Bits)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
#else
    return __builtin_convertvector(load_as<Halves>(from), Bits);
#endif
}

inline Floats load(const BFloat16* from) { return (Floats)(widened(&from->bits) << 16); }

inline Floats load(const Float16* from) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__) && defined(__F16C__)
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
    const Bits bits = widened(&from->bits);
    const Bits infinite = (Bits)((bits & 0x7c00) == 0x7c00) & 0x7f800000;
    const Floats size = (Floats)((bits & 0x7fff) << 13) * 0x1p112f;  // exact, small numbers too
    return (Floats)((Bits)size | infinite | (bits & 0x8000) << 16);
#endif
}

// a * b + c, rounded once where the processor can.
inline Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

// LANES integers of 8 bits, with their sign.
inline Ints widened(const uint8_t* from) {
#if defined(__AVX512F__)
    return (Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
    Ints out;
    for (int i = 0; i < LANES; ++i) out[i] = (int8_t)from[i];
    return out;
#endif
}

// The lowest 8 bits of each; step by step, as compilers know no instruction for the whole way.
inline Narrow narrowed(Ints values) {
    return __builtin_convertvector(__builtin_convertvector(values, Halves), Narrow);
}

inline Floats to_floats(Ints values) { return __builtin_convertvector(values, Floats); }

inline void store(float* to, Floats values) { std::memcpy(to, &values, sizeof values); }

// To the nearest, ties to even.
inline void store(BFloat16* to, Floats values) {
    Bits bits = (Bits)values;
    Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    rounded = (values == values) ? rounded : (Bits{} + 0x7fc0);
    Halves out = __builtin_convertvector(rounded, Halves);
    std::memcpy(to, &out, sizeof out);
}

// `b` where either is NaN.
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// The halves of every GROUP lanes of `a` and `b` added, those of `a` first.
template <int GROUP, int... LANE>
inline Floats fold(Floats a, Floats b, std::integer_sequence<int, LANE...>) {
    constexpr int half = GROUP / 2;
    return __builtin_shufflevector(a, b, (LANE / half * GROUP + LANE % half)...) +
           __builtin_shufflevector(a, b, (LANE / half * GROUP + LANE % half + half)...);
}

// Lane i is the sum over all lanes of parts[i]; each in the same order.
template <int COUNT = LANES>
inline Floats sums(const Floats* parts) {
    if constexpr (COUNT == 1) return parts[0];
    else
        return fold<2 * LANES / COUNT>(sums<COUNT / 2>(parts), sums<COUNT / 2>(parts + COUNT / 2),
                                       std::make_integer_sequence<int, LANES>());
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// The same sums with shuffles that stay in their half of a register.
template <>
inline Floats sums<LANES>(const Floats* parts) {
    const auto halves = [&](int i) {
        const __m256 a = (__m256)parts[i], b = (__m256)parts[i + 1];
        return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    };
    const auto pairs = [&](int i) {
        const __m256 a = halves(i), b = halves(i + 2);
        return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    };
    const __m256 a = pairs(0), b = pairs(4);
    const __m256 all = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
    return (Floats)_mm256_permutevar8x32_ps(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
#endif

inline float sum(Floats values) {
    Floats parts[LANES] = {values};
    return sums(parts)[0];
}

inline float largest(Floats values) {
    float top = values[0];
    for (int i = 1; i < LANES; ++i) top = values[i] > top ? values[i] : top;
    return top;
}

template <int BY, class V, int... LANE>
inline V rotated(V values, std::integer_sequence<int, LANE...>) {
    return __builtin_shufflevector(values, values, ((LANE + BY) % LANES)...);
}

// Of two vectors of 64 bits, seen as pairs of 32, the upper ones.
template <int... LANE>
inline Bits upper_halves(Bits a, Bits b, std::integer_sequence<int, LANE...>) {
    return __builtin_shufflevector(a, b, (2 * LANE + 1)...);
}
inline Bits upper_halves(Bits a, Bits b) {
    return upper_halves(a, b, std::make_integer_sequence<int, LANES>());
}

// All lanes combined in one, for operations that may be done in any order.
template <int COUNT = LANES, class V, class Combine>
inline auto combined(V values, Combine combine) {
    if constexpr (COUNT == 1) return values[0];
    else {
        const V others = rotated<COUNT / 2>(values, std::make_integer_sequence<int, LANES>());
        return combined<COUNT / 2>(combine(values, others), combine);
    }
}

inline int32_t sum(Ints values) {
    return combined(values, [](Ints a, Ints b) { return a + b; });
}

// The largest absolute value of LANES or more numbers; infinity is above all others, NaN above that.
inline float largest_size(const float* from, int count) {
    const auto larger = [](Ints a, Ints b) { return a > b ? a : b; };
    Ints tops{};  // without their signs numbers are ordered as their bits are
    for (int i = 0; i < count; i += LANES)
        tops = larger(tops, (Ints)((Bits)load(from + i) & 0x7fffffff));
    const int32_t top = combined(tops, larger);
    return load_as<float>(&top);
}

// To the nearest integer, ties to even, of values below 2^22; of NaN any.
inline Ints rounded(Floats values) {
    const float round_off = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    return (Ints)((Bits)(values + round_off) - (Bits)(Floats{} + round_off));
}

// e^x to about one unit in the last place; below -87 and above 88 it stays at the limit's value.
// NaN stays NaN: broken weights must not pass for an answer.
inline Floats exponential(Floats x) {
    const Floats zero{};
    x = larger(zero - 87.0f, x);
    x = x > 88.0f ? zero + 88.0f : x;
    const float round_off = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    Floats shifted = x * 1.44269504088896341f + round_off;
    Floats whole = shifted - round_off;
    Floats rest = x - whole * 0.693359375f;
    rest = rest + whole * 2.12194440e-4f;
    Floats series = zero + 1.9875691500e-4f;
    series = series * rest + 1.3981999507e-3f;
    series = series * rest + 8.3334519073e-3f;
    series = series * rest + 4.1665795894e-2f;
    series = series * rest + 1.6666665459e-1f;
    series = series * rest + 5.0000001201e-1f;
    series = series * rest * rest + rest + 1.0f;
    Ints power = (__builtin_convertvector(whole, Ints) + 127) << 23;
    return series * (Floats)power;
}
