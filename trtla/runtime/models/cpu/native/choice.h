// What the target says, from one row of logits: the most probable tokens; -1 where the logits are no
// answer: one of them is NaN or +infinity, or all are -infinity.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd.h"

inline bool any(Ints mask) {
    uint64_t parts[sizeof(Ints) / 8], found = 0;
    __builtin_memcpy(parts, &mask, sizeof(Ints));
    for (const uint64_t part : parts) found |= part;
    return found;
}

// e^x within 3 %, for x from -80 to 0; less is as -80.
inline Floats rough_exponential(Floats x) {
    const Floats scaled = larger(x, Floats{} - 80.0f) * 12102203.0f + 1064986816.0f;
    return (Floats)__builtin_convertvector(scaled, Ints);
}

inline int64_t most_probable(const float* logits, int64_t size) {
    Floats tops = Floats{} - INFINITY;
    Ints sound = Ints{} - 1;  // all bits: below infinity, which NaN is not
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        const Floats some = load(logits + i);
        tops = larger(tops, some);
        sound &= some < INFINITY;
    }
    float top = largest(tops);
    bool answers = true;
    for (int lane = 0; lane < LANES; ++lane) answers &= sound[lane] != 0;
    for (; i < size; ++i) {
        top = std::max(top, logits[i]);
        answers &= logits[i] < INFINITY;
    }
    if (!answers || top == -INFINITY) return -1;
    int64_t start = 0;
    while (start + LANES <= size && !any(load(logits + start) == top)) start += LANES;
    return std::find(logits + start, logits + size, top) - logits;
}

// A row whose tokens without a bit in the mask are impossible.
inline void masked(const float* logits, int64_t size, const uint32_t* mask, float* out) {
    constexpr int WORD = 32;
    for (int64_t start = 0; start < size; start += WORD) {
        const uint32_t bits = mask[start / WORD];
        const int64_t end = std::min(start + WORD, size);
        if (!bits) std::fill(out + start, out + end, -INFINITY);
        else if (!~bits) std::copy(logits + start, logits + end, out + start);
        else
            for (int64_t i = start; i < end; ++i)
                out[i] = bits >> (i - start) & 1 ? logits[i] : -INFINITY;
    }
}

// NaN where any number is.
inline float largest_of(const float* numbers, int64_t size) {
    Floats tops[4], broken[4]{};
    std::fill(tops, tops + 4, Floats{} - INFINITY);
    int64_t i = 0;
    for (; i + 4 * LANES <= size; i += 4 * LANES)
        for (int part = 0; part < 4; ++part) {
            const Floats some = load(numbers + i + part * LANES);
            tops[part] = some > tops[part] ? some : tops[part];
            broken[part] += some - some;
        }
    float top = largest(larger(larger(tops[0], tops[1]), larger(tops[2], tops[3])));
    float rest = sum((broken[0] + broken[1]) + (broken[2] + broken[3]));
    for (; i < size; ++i) {
        top = std::max(top, numbers[i]);
        rest += numbers[i] - numbers[i];
    }
    return top + rest;
}

// The most probable tokens of a row, best first, and the logarithms of their probabilities within
// 0.03; -1 and -infinity where there are no more, or a logit is not finite.
inline void top_of_row(const float* logits, int64_t size, int64_t count, int32_t* tokens, float* logs) {
    std::fill(tokens, tokens + count, -1);
    std::fill(logs, logs + count, -INFINITY);
    const float top = largest_of(logits, size);
    if (!(std::abs(top) < INFINITY)) return;
    const auto enter = [&](int64_t token) {
        int64_t place = count - 1;
        for (; place > 0 && logs[place - 1] < logits[token]; --place) {
            logs[place] = logs[place - 1];
            tokens[place] = tokens[place - 1];
        }
        logs[place] = logits[token];
        tokens[place] = token;
    };
    constexpr int STRETCH = 4 * LANES;
    Floats totals[4]{};
    float total = 0.0f;
    int64_t start = 0;
    for (; start + STRETCH <= size; start += STRETCH) {
        Ints above{};
        for (int i = 0; i < 4; ++i) {
            const Floats some = load(logits + start + i * LANES);
            above |= some > logs[count - 1];
            totals[i] += rough_exponential(some - top);
        }
        if (!any(above)) continue;
        for (int64_t part = start; part < start + STRETCH; part += LANES) {
            if (!any(load(logits + part) > logs[count - 1])) continue;
            for (int64_t token = part; token < part + LANES; ++token)
                if (logits[token] > logs[count - 1]) enter(token);
        }
    }
    for (; start < size; ++start) {
        total += std::exp(logits[start] - top);
        if (logits[start] > logs[count - 1]) enter(start);
    }
    total += sum(totals[0] + totals[1]) + sum(totals[2] + totals[3]);
    const float whole = top + std::log(total);
    for (int64_t place = 0; place < count; ++place) logs[place] -= whole;
}
