// One K/V head's keys or values in the paged cache: rows of float32, bfloat16 or int8 numbers.
//
// Rows of int8 end in a float32 scale of their own: what a token's row holds does not depend on
// what is beside it, and a copied row is complete.
#pragma once

#include <type_traits>

#include "simd.h"

enum CacheType : int32_t { CACHE_FLOAT32, CACHE_BFLOAT16, CACHE_INT8 };

struct Int8 {
    int8_t bits;
};

inline Floats load(const Int8* from) { return to_floats(widened((const uint8_t*)from)); }

template <class C>
inline void put(C* row, const float* numbers, int size) {
    for (int i = 0; i < size; i += LANES) store(row + i, load(numbers + i));
}

// 127 steps each way; what is not finite gives a scale that is not either.
inline void put(Int8* row, const float* numbers, int size) {
    const float top = largest_size(numbers, size), scale = top / 127.0f;
    const float inverse = top > 1e-30f ? 127.0f / top : 0.0f;
    for (int i = 0; i < size; i += LANES) {
        const Narrow codes = narrowed(rounded(load(numbers + i) * inverse));
        std::memcpy(row + i, &codes, sizeof codes);
    }
    std::memcpy(row + size, &scale, sizeof scale);
}

// [slots][size]
template <class C>
struct Cached {
    static constexpr bool SCALED = std::is_same_v<C, Int8>;
    C* data;
    int64_t size;

    C* at(int64_t slot) const { return data + slot * (size + (SCALED ? sizeof(float) : 0)); }
};

// What a row's numbers are to be multiplied with.
inline float scale_of(const Int8* row, int size) {
    float scale;
    std::memcpy(&scale, row + size, sizeof scale);
    return scale;
}

template <class C>
struct HeadCache {
    Cached<C> keys, values;
};
