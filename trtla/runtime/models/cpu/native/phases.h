// What a forward does, phase by phase, and how the threads share a phase.
#pragma once

#include <algorithm>
#include <cstdint>

// Those of matrix products come first.
enum Kind { QKV, DENSE, GATE_UP, DOWN, SCORE, EMBED, PREPARE, PLACE, ATTEND, TAP, MEET, ADD };
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
