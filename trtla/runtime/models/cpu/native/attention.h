// Attention of one sequence's fed tokens, for one key/value head, over the paged cache.
//
// A fed token sees a stretch from the sequence's start and then single tokens, its ancestors in the
// draft's tree, always in the order of their positions: sums do not depend on where a token lies.
// Of both it sees the last `window` ones, and what is before them is not read.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "cache.h"

constexpr int QUERIES = 4;  // that share what is read of keys and values

// What a fed token sees where no window hides it: a place in it is a position of the text.
struct View {
    int stretch;                // tokens from the sequence's start
    std::vector<int64_t> rest;  // slots of those after it
    int size() const { return stretch + (int)rest.size(); }
    int first(int64_t window) const { return std::max<int64_t>(0, size() - window); }
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

// Scores of COUNT queries with tokens [first, end), which all of them see.
template <int COUNT, class C>
void score_together(const float* const* queries, const Cached<C>& keys, const int64_t* slots,
                    int first, int end, int size, float* const* scores) {
    constexpr int several = LANES / QUERIES;
    for (int place = first; place < end; place += several) {
        const C* at[several];
        for (int i = 0; i < several; ++i) {
            at[i] = keys.at(slots[std::min(place + i, end - 1)]);
            fetch(keys, slots, place + i + ROWS_AHEAD, end, size);
        }
        float found[LANES];
        store(found, dots<COUNT, QUERIES>(queries, at, size));
        for (int q = 0; q < COUNT; ++q)
            std::copy(found + q * several, found + (q + 1) * several, scores[q] + place);
    }
}

// Scores of one query with tokens [first, end); up to a whole vector behind them is overwritten.
template <class C>
void score_alone(const float* query, const View& seen, const Cached<C>& keys,
                 const int64_t* slots, int first, int end, int size, float* scores) {
    for (; first < end; first += LANES) {
        const C* at[LANES];
        for (int i = 0; i < LANES; ++i)
            at[i] = keys.at(seen.slot(std::min(first + i, end - 1), slots));
        store(scores + first, dots<1, 1>(&query, at, size));
    }
}

// Scores to shares that add up, with that of a sink, to the result, in place; up to a whole vector is
// overwritten. A sink of -INFINITY is none.
inline float softmax(float* scores, int count, float sink) {
    const int padded = (count + LANES - 1) / LANES * LANES;
    std::fill(scores + count, scores + padded, -INFINITY);
    Floats tops = load(scores);
    for (int i = LANES; i < padded; i += LANES) tops = larger(tops, load(scores + i));
    const float top = std::max(largest(tops), sink);
    Floats total{};
    for (int i = 0; i < padded; i += LANES) {
        store(scores + i, exponential(load(scores + i) - top));
        if (i + LANES > count) std::fill(scores + count, scores + padded, 0.0f);
        total += load(scores + i);
    }
    return sum(total) + std::exp(sink - top);
}

// Multiplies shares [first, end) of COUNT queries with the values' scales.
template <int COUNT, class C>
void scale_together(float* const* shares, const Cached<C>& values, const int64_t* slots, int first,
                    int end, int size) {
    if constexpr (Cached<C>::SCALED)
        for (int place = first; place < end; ++place) {
            const float scale = scale_of(values.at(slots[place]), size);
            for (int q = 0; q < COUNT; ++q) shares[q][place] *= scale;
        }
}

// Adds the values of tokens [first, end) to the output of one query.
template <class C>
void add_alone(float* out, const float* shares, const View& seen, const Cached<C>& values,
               const int64_t* slots, int first, int end, int size) {
    for (; first < end; ++first) {
        const C* value = values.at(seen.slot(first, slots));
        float share = shares[first];
        if constexpr (Cached<C>::SCALED) share *= scale_of(value, size);
        for (int i = 0; i < size; i += LANES)
            store(out + i, load(out + i) + share * load(value + i));
    }
}

// Adds the values of tokens [first, end) to the outputs of COUNT queries; LANES x PARTS elements.
template <int COUNT, int PARTS, class C>
void add_values(float* const* outs, float* const* shares, const Cached<C>& values,
                const int64_t* slots, int first, int end, int size, int offset) {
    Floats sums[COUNT][PARTS];
    for (int q = 0; q < COUNT; ++q)
        for (int i = 0; i < PARTS; ++i) sums[q][i] = load(outs[q] + offset + i * LANES);
    for (int place = first; place < end; ++place) {
        if (!offset) fetch(values, slots, place + ROWS_AHEAD, end, size);
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
                 const int64_t* slots, int first, int end, int size, int offset = 0) {
    for (; offset + PARTS * LANES <= size; offset += PARTS * LANES)
        add_values<COUNT, PARTS>(outs, shares, values, slots, first, end, size, offset);
    if constexpr (PARTS > 1)
        if (offset < size)
            add_stretch<COUNT, PARTS / 2>(outs, shares, values, slots, first, end, size, offset);
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

// COUNT queries [size], already scaled, to outputs [size]. What each of them sees it scores and adds
// in three parts: before what all of them see, that itself, and behind it.
template <int COUNT, class C>
void attend(const float* const* queries, const View* const* seen, float* const* outs,
            const HeadCache<C>& cache, const int64_t* slots, int64_t window, int size,
            const float* sinks, Scores& scores) {
    int longest = 0, shared = 0, end = seen[0]->stretch, firsts[COUNT];
    for (int q = 0; q < COUNT; ++q) {
        longest = std::max(longest, seen[q]->size());
        firsts[q] = seen[q]->first(window);
        shared = std::max(shared, firsts[q]);
        end = std::min(end, seen[q]->stretch);
    }
    scores.reset(longest);
    if (end <= shared) shared = end = 0;  // nothing
    for (int q = 0; q < COUNT; ++q)
        score_alone(queries[q], *seen[q], cache.keys, slots, firsts[q], shared, size, scores.rows[q]);
    score_together<COUNT>(queries, cache.keys, slots, shared, end, size, scores.rows);
    float totals[COUNT];
    for (int q = 0; q < COUNT; ++q) {
        const int first = std::max(firsts[q], end), count = seen[q]->size();
        score_alone(queries[q], *seen[q], cache.keys, slots, first, count, size, scores.rows[q]);
        totals[q] = softmax(scores.rows[q] + firsts[q], count - firsts[q], sinks[q]);
        std::fill(outs[q], outs[q] + size, 0.0f);
        add_alone(outs[q], scores.rows[q], *seen[q], cache.values, slots, firsts[q], shared, size);
    }
    scale_together<COUNT>(scores.rows, cache.values, slots, shared, end, size);
    add_stretch<COUNT>(outs, scores.rows, cache.values, slots, shared, end, size);
    for (int q = 0; q < COUNT; ++q) {
        const int first = std::max(firsts[q], end), count = seen[q]->size();
        add_alone(outs[q], scores.rows[q], *seen[q], cache.values, slots, first, count, size);
        const float scale = 1.0f / totals[q];
        for (int i = 0; i < size; i += LANES) store(outs[q] + i, load(outs[q] + i) * scale);
    }
}
