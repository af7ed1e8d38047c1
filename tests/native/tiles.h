// The matrix tile instructions (AMX) in plain C++, for processors without them: included before all else.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define __AMX_BF16__ 1
#define __AMX_INT8__ 1
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbf16ps
#define _tile_loadconfig interpreted::configure
#define _tile_release interpreted::release
#define _tile_zero(tile) interpreted::zero(tile)
#define _tile_loadd(tile, from, step) interpreted::load(tile, from, step)
#define _tile_stored(tile, to, step) interpreted::store(tile, to, step)
#define _tile_dpbssd(sums, rows, columns) interpreted::add<int32_t, int8_t>(sums, rows, columns)
#define _tile_dpbf16ps(sums, rows, columns) interpreted::add<float, interpreted::Wide>(sums, rows, columns)

namespace interpreted {

struct Tile {
    int rows, bytes;
    alignas(64) uint8_t data[16][64];
};
inline thread_local Tile tiles[8];

inline void configure(const void* from) {
    for (int i = 0; i < 8; ++i) {
        uint16_t bytes;
        std::memcpy(&bytes, (const uint8_t*)from + 16 + 2 * i, 2);
        tiles[i] = {((const uint8_t*)from)[48 + i], bytes, {}};
    }
}
inline void release() { std::memset(tiles, 0, sizeof tiles); }
inline void zero(int tile) { std::memset(tiles[tile].data, 0, sizeof tiles[tile].data); }

inline void load(int tile, const void* from, int64_t step) {
    zero(tile);
    for (int row = 0; row < tiles[tile].rows; ++row)
        std::memcpy(tiles[tile].data[row], (const uint8_t*)from + row * step, tiles[tile].bytes);
}
inline void store(int tile, void* to, int64_t step) {
    for (int row = 0; row < tiles[tile].rows; ++row)
        std::memcpy((uint8_t*)to + row * step, tiles[tile].data[row], tiles[tile].bytes);
}

struct Wide {
    uint16_t bits;
    operator float() const {
        const uint32_t wide = (uint32_t)bits << 16;
        float out;
        std::memcpy(&out, &wide, sizeof out);
        return out;
    }
};

template <class Sum, class Number>
void add(int sums, int rows, int columns) {
    constexpr int TOGETHER = 4 / sizeof(Number);
    for (int row = 0; row < tiles[sums].rows; ++row)
        for (int column = 0; column < tiles[sums].bytes / 4; ++column) {
            Sum& sum = ((Sum*)tiles[sums].data[row])[column];
            for (int i = 0; i < tiles[rows].bytes / (int)sizeof(Number); ++i)
                sum += (Sum)((const Number*)tiles[rows].data[row])[i] *
                       (Sum)((const Number*)tiles[columns].data[i / TOGETHER])[column * TOGETHER + i % TOGETHER];
        }
}

}  // namespace interpreted
