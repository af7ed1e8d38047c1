// What the target says, from one row of logits: the most probable token, or a draw; -1 where the
// logits are no answer: one of them is NaN or +infinity, or all are -infinity.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <vector>

#include "noise.h"
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

// The top_k-th largest logit: those equal to it stay as well.
inline float least_of_top_k(const float* logits, int64_t size, int64_t top_k) {
    if (top_k <= 0 || top_k >= size) return -INFINITY;
    std::vector<float> ordered(logits, logits + size);
    std::nth_element(ordered.begin(), ordered.begin() + top_k - 1, ordered.end(),
                     std::greater<float>());
    return ordered[top_k - 1];
}

// The smallest set of most probable tokens, logits of at least `least`, whose share reaches top_p;
// ordered by their logits, which a high temperature makes equally probable.
inline std::vector<int64_t> nucleus(const float* logits, int64_t size, float least, double top,
                                    double temperature, double top_p) {
    std::vector<double> shares(size);
    double total = 0.0;
    for (int64_t token = 0; token < size; ++token) {
        shares[token] = logits[token] < least ? 0.0 : std::exp((logits[token] - top) / temperature);
        total += shares[token];
    }
    std::vector<int64_t> tokens;
    const double few = total * (1.0 - top_p) / (2 * size);  // together they are outside
    for (int64_t token = 0; token < size; ++token)
        if (shares[token] > few) tokens.push_back(token);
    std::stable_sort(tokens.begin(), tokens.end(),
                     [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
    double before = 0.0;
    size_t kept = 0;
    while (kept < tokens.size() && before / total < top_p) before += shares[tokens[kept++]];
    tokens.resize(kept);
    return tokens;
}

// For LANES tokens from `first` on what their numbers lack of 1, to 31 bits, and never more.
inline Floats missing(uint64_t position, int64_t first) {
    typedef uint64_t Longs __attribute__((vector_size(LANES * 4)));
    constexpr int HALF = LANES / 2;
    Longs steps;
    for (int i = 0; i < HALF; ++i) steps[i] = i * TOKEN_STEP;
    const uint64_t start = position * POSITION_STEP + first * TOKEN_STEP;
    const Longs low = mixed(steps + start), high = mixed(steps + (start + HALF * TOKEN_STEP));
    return to_floats((Ints)(~upper_halves((Bits)low, (Bits)high) >> 1)) * 0x1p-31f;
}

// The search for the token whose log probability and Gumbel noise add up to most.
struct Race {
    const float* logits;
    double top, temperature, floor;  // below the floor, log probabilities relative to the top lose
    uint64_t position;
    int64_t best;
    double most;

    Race(const float* logits, int64_t first, double temperature, double floor, uint64_t position)
        : logits(logits), top(logits[first]), temperature(temperature), floor(floor),
          position(position), best(first), most(gumbel(number(position, first))) {}

    void enter(int64_t token) {
        const double relative = (logits[token] - top) / temperature;
        if (relative < floor) return;
        const double own = relative + gumbel(number(position, token));
        if (own > most || (own == most && token < best)) most = own, best = token;
    }

    // Tokens [0, size), without logarithms for those that cannot win, as -log u >= 1 - u, and without
    // noise for those that cannot win with any.
    void enter_all(int64_t size, float least) {
        // Finite, so that equal logits stay equal; smaller is safe, as it rules out fewer tokens.
        const float inverse = std::min<double>(1.0 / temperature, FLT_MAX);
        float reach = 1.05f * std::exp((float)-most);  // rough weights are within 3 %
        int64_t start = 0;
        for (; start + LANES <= size; start += LANES) {
            const Floats some = load(logits + start);
            const Floats enough = rough_exponential((some - (float)top) * inverse) * reach;
            const Ints open = (enough > 0x1p-53f) & (some >= least);
            if (!any(open)) continue;
            const Ints close = open & (missing(position, start) <= enough);
            if (!any(close)) continue;
            for (int i = 0; i < LANES; ++i)
                if (close[i]) enter(start + i);
            reach = 1.05f * std::exp((float)-most);
        }
        for (; start < size; ++start)
            if (logits[start] >= least) enter(start);
    }
};

// What a row's token is drawn by: the settings of these names, each as a double.
#define TRTLA_FILTERS(EACH) EACH(temperature) EACH(top_k) EACH(top_p) EACH(min_p)

struct Filters {
#define TRTLA_FIELD(name) double name;
    TRTLA_FILTERS(TRTLA_FIELD)
#undef TRTLA_FIELD
};

inline int64_t draw(const float* logits, int64_t size, const Filters& filters, double noise) {
    const int64_t first = most_probable(logits, size);
    if (first < 0) return -1;
    Race race(logits, first, filters.temperature, std::log(filters.min_p), noise * 0x1p53);
    const float least = least_of_top_k(logits, size, (int64_t)filters.top_k);
    if (filters.top_p < 1.0)
        for (int64_t token :
             nucleus(logits, size, least, race.top, filters.temperature, filters.top_p))
            race.enter(token);
    else
        race.enter_all(size, least);
    return race.best;
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
