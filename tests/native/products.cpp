// Checks the products of weights in blocks on the instructions that it is compiled for: against sums
// in double precision of single numbers, and a token alone against the same token among others.
#include <cmath>
#include <cstdio>

#include "matmul.h"

static uint64_t state = 88172645463325252ull;
static uint32_t random_bits() {  // xorshift: the same on every machine
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state >> 32;
}

constexpr int INPUTS = 512, PANELS = 2, TOKENS = 37, OUTPUTS = PANELS * WIDTH;
typedef float Out[TOKENS][OUTPUTS];

static void multiply(const Matrix& matrix, const Operand& x, Out& out) {
    matmul(x, matrix, 0, PANELS, [&](int token, int panel, const float* found) {
        std::copy(found, found + WIDTH, out[token] + panel * WIDTH);
    });
}

template <class B>
static std::vector<uint8_t> random_blocks() {
    std::vector<uint8_t> panels(B::panel_bytes(INPUTS) * PANELS);
    for (uint8_t& byte : panels) byte = random_bits();
    for (int i = 0; i < PANELS * INPUTS / BLOCK; ++i) {  // scales are small and finite
        const B block(panels.data() + i / (INPUTS / BLOCK) * B::panel_bytes(INPUTS), i % (INPUTS / BLOCK));
        for (int half = 0; half < B::HALVES / 2; ++half) {
            const uint16_t bits = 0x2000 | (random_bits() & 0x83ff);
            std::memcpy((uint8_t*)block.halves + 2 * half, &bits, 2);
        }
        if (B::HALVES) continue;
        for (int output = 0; output < WIDTH; ++output) ((uint8_t*)block.small)[output] = 120 + random_bits() % 8;
    }
    return panels;
}

template <class B>
static bool check(const char* name, Type type) {
    const std::vector<uint8_t> panels = random_blocks<B>();
    const Matrix matrix{panels.data(), nullptr, OUTPUTS, INPUTS, type};
    std::vector<float> x(TOKENS * INPUTS);
    for (float& number : x) number = ((int)(random_bits() % 2001) - 1000) / 777.0f;
    static Out together, alone;
    Operand all;
    all.reset(type, TOKENS, INPUTS);
    for (int token = 0; token < TOKENS; ++token) all.put(type, token, &x[token * INPUTS]);
    multiply(matrix, all, together);
    double worst = 0;
    int different = 0;
    for (int token = 0; token < TOKENS; ++token) {
        Operand one;
        one.reset(type, 1, INPUTS);
        one.put(type, 0, &x[token * INPUTS]);
        multiply(matrix, one, alone);
        different += std::memcmp(alone[0], together[token], sizeof alone[0]) != 0;
        for (int output = 0; output < OUTPUTS; ++output) {
            double sum = 0, size = 0;
            for (int input = 0; input < INPUTS; ++input) {
                const double scale = one.codes.scales_of(input / BLOCK)[0].scale;
                const double part = number(matrix, output, input) * scale * one.codes.row(0)[input];
                sum += part, size += std::fabs(part);
            }
            worst = std::max(worst, std::fabs(sum - together[token][output]) / size);
        }
    }
    const bool sound = worst < 1e-6 && !different;
    std::printf("%s: off by %.1e, %d of %d tokens differ from alone%s\n", name, worst, different, TOKENS,
                sound ? "" : ": WRONG");
    return sound;
}

// Tiles and vectors give the same bits, for any number of rows that tiles have.
template <class B>
static bool check_tiles(const char* name, Type type) {
#if defined(TRTLA_TILES)
    typedef BlockProduct<B> Product;
    const std::vector<uint8_t> panels = random_blocks<B>();
    float tiles[2 * TILE_ROWS][WIDTH], vectors[2 * TILE_ROWS][WIDTH], numbers[INPUTS];
    for (int rows : {1, 7, 10, TILE_ROWS, TILE_ROWS + 1, TILE_ROWS + 11, 2 * TILE_ROWS}) {
        Operand x;
        x.reset(type, rows, INPUTS);
        for (int row = 0; row < rows; ++row) {
            for (float& number : numbers) number = ((int)(random_bits() % 2001) - 1000) / 777.0f;
            x.put(type, row, numbers);
        }
        {
            const typename Product::InTheseTiles ready(rows);
            Product::in_tiles(rows, x.codes, 0, panels.data(), {}, nullptr, tiles);
        }
        Product::in_vectors(rows, x.codes, 0, panels.data(), {panels.data(), 0}, nullptr, vectors);
        if (!std::memcmp(tiles, vectors, rows * sizeof *tiles)) continue;
        std::printf("%s: %d rows differ in tiles: WRONG\n", name, rows);
        return false;
    }
#endif
    return true;
}

int main() {
    tiles_are_given();
    std::printf("%d lanes%s\n", LANES, HAS_TILES ? ", tiles" : "");
    bool sound = true;
#define TRTLA_TYPE(name, ...) sound &= check<name>(#name, TYPE_##name) & check_tiles<name>(#name, TYPE_##name);
    TRTLA_BLOCK_TYPES(TRTLA_TYPE)
#undef TRTLA_TYPE
    return !sound;
}
