// Sums over the ranks of tensor parallelism, in memory that the processes of one machine share.
//
// Every rank writes its part, meets the others, and adds all parts in the order of the ranks: the
// same sum, bit for bit, on every rank and whatever else is fed. A rank may be one meeting ahead of
// another, so there are two sets of parts, which sums use in turns.
#pragma once

#include <fcntl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "simd.h"
#include "team.h"

struct alignas(64) Arrivals {
    std::atomic<uint64_t> count;  // meetings that this rank has come to
};

// As Python hands it over; `arrivals` and `parts` are in the shared memory.
struct Exchange {
    int64_t rank, ranks;
    Arrivals* arrivals;    // [ranks]
    float* parts;          // [2][ranks][room]
    int64_t room;          // numbers of a part
    int64_t first_output;  // of the vocabulary, that this rank's lm_head has
    int64_t file;          // of the memory; rank i has locked its byte i for as long as it lives
    int64_t lost;          // 1: another rank has ended, and nothing is waited for any more

    float* part(int set, int of) const { return parts + (set * ranks + of) * room; }

    // Returns when all ranks have come, or one will never come.
    void meet() {
        const uint64_t mine = arrivals[rank].count.load(std::memory_order_relaxed) + 1;
        arrivals[rank].count.store(mine, std::memory_order_release);
        for (int other = 0; other < ranks; ++other)
            if (!lost) await(other, mine);
    }

    void add(int set, float* to, int64_t first, int64_t count) const {
        for (int64_t i = first; i < first + count; i += LANES) {
            Floats sum = load(part(set, 0) + i);
            for (int of = 1; of < ranks; ++of) sum += load(part(set, of) + i);
            store(to + i, load(to + i) + sum);
        }
    }

private:
    bool has_come(int other, uint64_t mine) const {
        return arrivals[other].count.load(std::memory_order_acquire) >= mine;
    }

    // Spins for a short while, then gives the core away: the rank may need this one.
    void await(int other, uint64_t mine) {
        using Clock = std::chrono::steady_clock;
        const auto spun = Clock::now() + std::chrono::microseconds(200);
        do
            for (int i = 0; i < 32; ++i) {
                if (has_come(other, mine)) return;
                relax();
            }
        while (Clock::now() < spun);
        for (int naps = 1; !has_come(other, mine); ++naps) {
            if (naps % 1024 == 0 && has_ended(other) && !has_come(other, mine)) {
                lost = 1;
                return;
            }
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
    }

    bool has_ended(int other) const {
        struct flock lock {};
        lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET, lock.l_start = other, lock.l_len = 1;
        return fcntl((int)file, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
    }
};
