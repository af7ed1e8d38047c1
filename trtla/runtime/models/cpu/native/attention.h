// Attention of one sequence's fed tokens, for one key/value head, over the paged cache.
//
// A fed token sees a stretch from the sequence's start and then single tokens, its ancestors in the
// draft's tree, always in the order of their positions: sums do not depend on where a token lies.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "cache.h"

constexpr int QUERIES = 4;  // that share what is read of keys and values

// What a fed token sees.
struct View {
    int stretch;                // tokens from the sequence's start
    std::vector<int64_t> rest;  // slots of those after it
    int size() const { return stretch + (int)rest.size(); }
    int64_t slot(int place, const int64_t* slots) const {
        return place < stretch ? slots[place] : rest[place - stretch];
    }
};

struct Sequence {
    int64_t first, count, cached;  // fed tokens: place in the batch, number; tokens before them
    const int64_t* slots;          // of all its tokens in the cache
    int64_t parents;               // where those of fed tokens 1..count-1 begin; -1: a chain
};

inline std::vector<View> views(const Sequence& sequence, const int64_t* parents) {
    std::vector<View> out(sequence.count);
    for (int64_t node = 0; node < sequence.count; ++node) {
        const bool chain = !node || sequence.parents < 0;
        const int64_t parent = chain ? node - 1 : parents[sequence.parents + node - 1];
        View view = parent < 0 ? View{(int)sequence.cached, {}} : out[parent];
        if (view.rest.empty() && view.stretch == sequence.cached + node)
            ++view.stretch;
        else
            view.rest.push_back(sequence.slots[sequence.cached + node]);
        out[node] = std::move(view);
    }
    return out;
}

// Rows of keys or values that are fetched before they are wanted.
constexpr int ROWS_AHEAD = 32;

template <class C>
inline void fetch(const Cached<C>& rows, const int64_t* slots, int place, int count, int size) {
    if (place >= count) return;
    const uint8_t* row = (const uint8_t*)rows.at(slots[place]);
    for (size_t line = 0; line < size * sizeof(C); line += 64) __builtin_prefetch(row + line);
}

// The scores of COUNT queries with LANES / MOST keys, query by query.
template <int COUNT, int MOST, class C>
inline Floats dots(const float* const* queries, const C* const* keys, int size) {
    constexpr int several = LANES / MOST;
    Floats parts[LANES]{};
    for (int i = 0; i < size; i += LANES) {
#pragma GCC unroll 16
        for (int key = 0; key < several; ++key) {
            const Floats piece = load(keys[key] + i);
#pragma GCC unroll 4
            for (int q = 0; q < COUNT; ++q)
                parts[q * several + key] += load(queries[q] + i) * piece;
        }
    }
    Floats found = sums(parts);
    if constexpr (Cached<C>::SCALED) {
        Floats scales;
        for (int i = 0; i < LANES; ++i) scales[i] = scale_of(keys[i % several], size);
        found *= scales;
    }
    return found;
}

// Scores of COUNT queries with the first `count` tokens, which all of them see.
template <int COUNT, class C>
void score_together(const float* const* queries, const Cached<C>& keys, const int64_t* slots,
                    int count, int size, float* const* scores) {
    constexpr int several = LANES / QUERIES;
    for (int place = 0; place < count; place += several) {
        const C* at[several];
        for (int i = 0; i < several; ++i) {
            at[i] = keys.at(slots[std::min(place + i, count - 1)]);
            fetch(keys, slots, place + i + ROWS_AHEAD, count, size);
        }
        float found[LANES];
        store(found, dots<COUNT, QUERIES>(queries, at, size));
        for (int q = 0; q < COUNT; ++q)
            std::copy(found + q * several, found + (q + 1) * several, scores[q] + place);
    }
}

// Scores of one query with the tokens from `first` on.
template <class C>
void score_alone(const float* query, const View& seen, const Cached<C>& keys,
                 const int64_t* slots, int first, int size, float* scores) {
    const int last = seen.size() - 1;
    for (; first <= last; first += LANES) {
        const C* at[LANES];
        for (int i = 0; i < LANES; ++i)
            at[i] = keys.at(seen.slot(std::min(first + i, last), slots));
        store(scores + first, dots<1, 1>(&query, at, size));
    }
}

// Scores to shares that add up to the result, in place; up to a whole vector is overwritten.
inline float softmax(float* scores, int count) {
    const int padded = (count + LANES - 1) / LANES * LANES;
    std::fill(scores + count, scores + padded, -INFINITY);
    Floats tops = load(scores);
    for (int i = LANES; i < padded; i += LANES) tops = larger(tops, load(scores + i));
    const float top = largest(tops);
    Floats total{};
    for (int i = 0; i < padded; i += LANES) {
        store(scores + i, exponential(load(scores + i) - top));
        if (i + LANES > count) std::fill(scores + count, scores + padded, 0.0f);
        total += load(scores + i);
    }
    return sum(total);
}

// Multiplies the first `count` shares of COUNT queries with the values' scales.
template <int COUNT, class C>
void scale_together(float* const* shares, const Cached<C>& values, const int64_t* slots, int count,
                    int size) {
    if constexpr (Cached<C>::SCALED)
        for (int place = 0; place < count; ++place) {
            const float scale = scale_of(values.at(slots[place]), size);
            for (int q = 0; q < COUNT; ++q) shares[q][place] *= scale;
        }
}

template <class C>
inline void add_value(float* out, float share, const C* value, int size) {
    if constexpr (Cached<C>::SCALED) share *= scale_of(value, size);
    for (int i = 0; i < size; i += LANES) store(out + i, load(out + i) + share * load(value + i));
}

// Adds the values of tokens [0, count) to the outputs of COUNT queries; LANES x PARTS elements.
template <int COUNT, int PARTS, class C>
void add_values(float* const* outs, float* const* shares, const Cached<C>& values,
                const int64_t* slots, int count, int size, int offset) {
    Floats sums[COUNT][PARTS];
    for (int q = 0; q < COUNT; ++q)
        for (int i = 0; i < PARTS; ++i) sums[q][i] = load(outs[q] + offset + i * LANES);
    for (int place = 0; place < count; ++place) {
        if (!offset) fetch(values, slots, place + ROWS_AHEAD, count, size);
        const C* value = values.at(slots[place]) + offset;
        for (int i = 0; i < PARTS; ++i) {
            const Floats part = load(value + i * LANES);
            for (int q = 0; q < COUNT; ++q) sums[q][i] += shares[q][place] * part;
        }
    }
    for (int q = 0; q < COUNT; ++q)
        for (int i = 0; i < PARTS; ++i) store(outs[q] + offset + i * LANES, sums[q][i]);
}

// As many sums at a time as there are registers for, as in float products.
template <int COUNT, int PARTS = 4 * COUNT <= 2 * MAX_ROWS ? 4 : 2, class C>
void add_stretch(float* const* outs, float* const* shares, const Cached<C>& values,
                 const int64_t* slots, int count, int size, int offset = 0) {
    for (; offset + PARTS * LANES <= size; offset += PARTS * LANES)
        add_values<COUNT, PARTS>(outs, shares, values, slots, count, size, offset);
    if constexpr (PARTS > 1)
        if (offset < size)
            add_stretch<COUNT, PARTS / 2>(outs, shares, values, slots, count, size, offset);
}

// Room for QUERIES queries at a time.
struct Scores {
    std::vector<float> data;
    float* rows[QUERIES];
    void reset(int count) {
        const int padded = count + 2 * LANES;
        if (data.size() < (size_t)QUERIES * padded) data.resize((size_t)QUERIES * padded);
        for (int q = 0; q < QUERIES; ++q) rows[q] = data.data() + (size_t)q * padded;
    }
};

// COUNT queries [size], already scaled, to outputs [size].
template <int COUNT, class C>
void attend(const float* const* queries, const View* const* seen, float* const* outs,
            const HeadCache<C>& cache, const int64_t* slots, int size, Scores& scores) {
    int longest = 0, shared = seen[0]->stretch;
    for (int q = 0; q < COUNT; ++q) {
        longest = std::max(longest, seen[q]->size());
        shared = std::min(shared, seen[q]->stretch);
    }
    scores.reset(longest);
    score_together<COUNT>(queries, cache.keys, slots, shared, size, scores.rows);
    float totals[COUNT];
    for (int q = 0; q < COUNT; ++q) {
        score_alone(queries[q], *seen[q], cache.keys, slots, shared, size, scores.rows[q]);
        totals[q] = softmax(scores.rows[q], seen[q]->size());
        std::fill(outs[q], outs[q] + size, 0.0f);
    }
    scale_together<COUNT>(scores.rows, cache.values, slots, shared, size);
    add_stretch<COUNT>(outs, scores.rows, cache.values, slots, shared, size);
    for (int q = 0; q < COUNT; ++q) {
        for (int place = shared; place < seen[q]->size(); ++place) {
            const C* value = cache.values.at(seen[q]->slot(place, slots));
            add_value(outs[q], scores.rows[q][place], value, size);
        }
        const float scale = 1.0f / totals[q];
        for (int i = 0; i < size; i += LANES) store(outs[q] + i, load(outs[q] + i) * scale);
    }
}
