// What a forward does phase by phase, how the threads share a phase, and room for its results.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "attention.h"
#include "experts.h"
#include "matmul.h"
#include "model.h"

// Those of matrix products come first.
enum Kind {
    QKV, DENSE, GATE_UP, DOWN, ROUTE, SCORE,
    EXPERTS_GATE_UP, EXPERTS_DOWN, PREPARE_EXPERTS, PREPARE_EXPERTS_DOWN, CHOOSE, COMBINE,
    EMBED, PREPARE, NORMALISE, PLACE, ATTEND, TAP, MEET, ADD
};
constexpr int PRODUCTS = SCORE + 1;

struct Phase {
    Kind kind;
    int layer, pieces;
    Kind product = QKV;  // whose inputs are prepared, or whose parts are added
};

// Chunks of a phase are large at first and small at its end: threads end at about the same time.
struct Chunks {
    static constexpr int ROUNDS = 5;
    int pieces, threads;

    int count() const { return threads == 1 ? 1 : std::min(pieces, ROUNDS * threads); }
    // Where chunk `index` begins.
    int begin(int index) const {
        if (index >= count()) return pieces;
        if (count() == pieces || threads == 1) return index;
        const int round = index / threads, done = pieces - (pieces >> round);
        const int size = (round + 1 < ROUNDS ? pieces - (pieces >> (round + 1)) : pieces) - done;
        return done + (int64_t)size * (index % threads) / threads;
    }
};

// Room for a step's intermediate results, kept from step to step: a token has a row in each.
struct Buffers {
    std::vector<float> states, embedded, qkv, attended, gated, delta;
    Operand inputs[PRODUCTS];
    Routing routing;
};

inline uint64_t next_stamp() {
    static std::atomic<uint64_t> last{0};
    return ++last;
}

// Whether QUERIES take all queries of a K/V head: then one piece of work places and attends.
inline bool queries_are_one_piece(const Model& model, const Step& step) {
    const int group_size = model.heads / model.kv_heads;
    for (int i = 0; i < step.num_sequences; ++i)
        if (step.sequences()[i].count * group_size > QUERIES) return false;
    return true;
}
