// The weights that are fetched into the second-level cache while others are multiplied.
#pragma once

#include <cstddef>
#include <cstdint>

struct Ahead {
    const uint8_t* from = nullptr;
    size_t bytes = 0;

    // One of `count` shares that follow each other.
    Ahead share(int index, int count) const { return {from + bytes / count * index, bytes / count}; }

    void fetch() const {
        for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(from + line, 0, 2);
    }
};
