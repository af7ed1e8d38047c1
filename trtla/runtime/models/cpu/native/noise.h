// The noise that draws tokens: a number for each (seed, position, token), as in sampling/draw.py.
#pragma once

#include <cmath>
#include <cstdint>

constexpr uint64_t POSITION_STEP = 0xD1B54A32D192ED03, TOKEN_STEP = 0x9E3779B97F4A7C15;

// The finaliser of splitmix64, of a number or of a vector of them.
template <class Bits>
inline Bits mixed(Bits value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
    return value ^ (value >> 31);
}

// The noise of one position, 53 bits.
inline uint64_t noise_at(uint64_t seed, uint64_t position) {
    return mixed(mixed(seed + TOKEN_STEP) + position + TOKEN_STEP) >> 11;
}

// A token's number in (0, 1) from its position's noise.
inline double number(uint64_t position, int64_t token) {
    const uint64_t bits = mixed(position * POSITION_STEP + token * TOKEN_STEP) >> 12;
    return ((double)bits + 0.5) * 0x1p-52;
}

inline double gumbel(double number) { return -std::log(-std::log(number)); }
