// Token recycling: the target's most probable tokens after a token or two, kept between steps.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

constexpr int READ = 16;  // tokens of a row that a step brings and tables keep

// The most probable tokens of a row, best first; logarithms of probabilities in 1/256.
struct Row {
    int32_t tokens[READ];
    uint16_t logs[READ];

    double log(int rank) const { return logs[rank] * (-1.0 / 256.0); }

    void set(const int32_t* ids, const float* values) {
        for (int rank = 0; rank < READ; ++rank) {
            tokens[rank] = ids[rank];
            logs[rank] = (uint16_t)std::min(65534.0f, std::max(0.0f, -256.0f * values[rank]));
        }
    }
};

// An array of zeros. Its pages take no memory until they are written, and most never are; `calloc`
// does this for fresh memory only, and writes every byte of memory that was freed before.
template <class T>
class Zeros {
public:
    explicit Zeros(int64_t count) : data_(mapped(count * sizeof(T)), Unmap{count * sizeof(T)}) {}

    T& operator[](int64_t index) const { return data_.get()[index]; }

private:
    static T* mapped(size_t bytes) {
        void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED) throw std::bad_alloc();
        return (T*)pages;
    }
    struct Unmap {
        size_t bytes;
        void operator()(T* data) const { munmap(data, bytes); }
    };
    std::unique_ptr<T, Unmap> data_;
};

class RowTables {
public:
    explicit RowTables(int64_t vocab)
        : known_(vocab), after_one_(vocab), sets_(SETS), after_two_(SETS * WAYS) {}

    // Tokens below 0 stand for what is in no vocabulary, such as an image: nothing is known of them.
    const Row* after(int32_t token) const {
        return token >= 0 && known_[token] ? &after_one_[token] : nullptr;
    }

    const Row* after(int32_t before, int32_t token) const {
        const int64_t at = set_of(before, token);
        const Set& set = sets_[at];
        for (int way = 0; way < WAYS; ++way)
            if (set.used[way] && set.keys[way] == key(before, token))
                return &after_two_[at * WAYS + way];
        return nullptr;
    }

    void learn(int32_t before, int32_t token, const int32_t* ids, const float* values) {
        if (token < 0) return;
        known_[token] = true;
        after_one_[token].set(ids, values);
        if (before < 0) return;
        const int64_t at = set_of(before, token);
        Set& set = sets_[at];
        int chosen = 0;
        for (int way = 0; way < WAYS; ++way) {
            if (set.used[way] && set.keys[way] == key(before, token)) {
                chosen = way;
                break;
            }
            if (set.used[way] < set.used[chosen]) chosen = way;
        }
        set.keys[chosen] = key(before, token);
        set.used[chosen] = ++now_;
        after_two_[at * WAYS + chosen].set(ids, values);
    }

private:
    static constexpr int SETS = 32768, WAYS = 4;

    // The keys of a set's rows, stored apart from them since most lookups miss.
    struct Set {
        uint64_t keys[WAYS], used[WAYS];  // used: time of the last write; 0: never
    };

    static uint64_t key(int32_t before, int32_t token) {
        return ((uint64_t)(uint32_t)before << 32) | (uint32_t)token;
    }
    static int64_t set_of(int32_t before, int32_t token) {
        return key(before, token) * 0x9E3779B97F4A7C15 >> 49;
    }

    Zeros<bool> known_;
    Zeros<Row> after_one_;
    Zeros<Set> sets_;
    Zeros<Row> after_two_;
    uint64_t now_ = 0;
};
