// Lays weights out in panels, as matmul.h and blocks.h have them, of rows as files hold them.
#include "blocks.h"
#include "exported.h"
#include "operands.h"

namespace {

// The 32 codes of a block, a byte each.
struct Codes32 {
    uint64_t eights[4];
};

inline uint64_t eight_at(const uint8_t* from) { return load_as<uint64_t>(from); }

// Of each of eight bytes some bits, at the bottom.
constexpr uint64_t bits_of_each(uint64_t bytes, int from, uint64_t mask) {
    return bytes >> from & mask * 0x0101010101010101u;
}

inline uint16_t half_at(const uint8_t* from) { return load_as<uint16_t>(from); }

// Where a block of 32 inputs lies in a row as it is stored, and how it is taken out of any row.

// Blocks of one scale: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, and those of larger groups.
template <int BITS, bool MINIMUM>
struct Plain {
    static constexpr int HIGH = MINIMUM ? 4 : 2, CODES = HIGH + (BITS == 5 ? 4 : 0);
    size_t start, low[2];  // of the stored block, and of each 16 codes
    int shift[2];

    Plain(int block, int group) {
        const int within = block * BLOCK % group, half = group / 2;
        start = (size_t)(block * BLOCK / group) * (CODES + group * (BITS == 8 ? 8 : 4) / 8);
        for (int part = 0; part < 2; ++part) {  // the lower halves of all bytes come first
            const int code = within + 16 * part;
            low[part] = start + CODES + (BITS == 8 ? code : code % half), shift[part] = code < half ? 0 : 4;
        }
    }
    uint16_t scale(const uint8_t* row) const { return half_at(row + start); }
    uint16_t minimum(const uint8_t* row) const { return half_at(row + start + 2); }
    uint8_t factor(const uint8_t*, int) const { return 1; }
    uint8_t min_factor(const uint8_t*) const { return 1; }

    Codes32 codes(const uint8_t* row) const {
        if constexpr (BITS == 8) return load_as<Codes32>(row + low[0]);
        Codes32 out;
        for (int i = 0; i < 4; ++i) {
            out.eights[i] = bits_of_each(eight_at(row + low[i / 2] + i % 2 * 8), shift[i / 2], 15);
            if (BITS == 5) out.eights[i] |= fifth_bits(row[start + HIGH + i]);
        }
        return out;
    }

    // Bit i as the fifth of byte i.
    static uint64_t fifth_bits(uint8_t bits) {
        const uint64_t apart = bits * 0x0101010101010101u & 0x8040201008040201u;
        return (apart + 0x7f7f7f7f7f7f7f7fu) >> 3 & 0x1010101010101010u;
    }
};

// Q4_K and Q5_K: eight groups of 32 with factors of 6 bits; minimums are subtracted there.
template <int BITS>
struct Grouped {
    static constexpr int CODES = BITS == 5 ? 48 : 16, BYTES = CODES + 128;
    size_t start, low;
    int index;

    Grouped(int block, int) : start((size_t)(block / 8) * BYTES), index(block % 8) {
        low = start + CODES + index / 2 * BLOCK;
    }
    uint16_t scale(const uint8_t* row) const { return half_at(row + start); }
    uint16_t minimum(const uint8_t* row) const { return half_at(row + start + 2) ^ 0x8000; }
    uint8_t factor(const uint8_t* row, int) const {
        const uint8_t* packed = row + start + 4;
        return index < 4 ? packed[index] & 63 : (packed[index + 4] & 15) | packed[index - 4] >> 6 << 4;
    }
    uint8_t min_factor(const uint8_t* row) const {
        const uint8_t* packed = row + start + 4;
        return index < 4 ? packed[index + 4] & 63 : packed[index + 4] >> 4 | packed[index] >> 6 << 4;
    }

    Codes32 codes(const uint8_t* row) const {
        Codes32 out;
        for (int i = 0; i < 4; ++i) {
            out.eights[i] = bits_of_each(eight_at(row + low + 8 * i), index % 2 * 4, 15);
            if (BITS == 5) out.eights[i] |= bits_of_each(eight_at(row + start + 16 + 8 * i), index, 1) << 4;
        }
        return out;
    }
};

// Q6_K: sixteen groups of 16 with signed factors of 8 bits.
struct Grouped6 {
    size_t start, low, high;
    int index;

    Grouped6(int block, int) : start((size_t)(block / 8) * 210), index(block % 8) {
        low = start + index / 4 * 64 + index % 2 * BLOCK, high = start + 128 + index / 4 * BLOCK;
    }
    uint16_t scale(const uint8_t* row) const { return half_at(row + start + 208); }
    uint16_t minimum(const uint8_t*) const { return 0; }
    uint8_t factor(const uint8_t* row, int group) const { return row[start + 192 + 2 * index + group]; }
    uint8_t min_factor(const uint8_t*) const { return 0; }

    Codes32 codes(const uint8_t* row) const {
        Codes32 out;
        for (int i = 0; i < 4; ++i) {
            const uint64_t four = bits_of_each(eight_at(row + low + 8 * i), index % 4 / 2 * 4, 15);
            out.eights[i] = four | bits_of_each(eight_at(row + high + 8 * i), index % 4 * 2, 3) << 4;
        }
        return out;
    }
};

// The low halves of 16 bytes, and then their high halves.
inline Codes32 nibbles(const uint8_t* from) {
    Codes32 out;
    for (int i = 0; i < 4; ++i) out.eights[i] = bits_of_each(eight_at(from + i % 2 * 8), i / 2 * 4, 15);
    return out;
}

// MXFP4: a byte for the scale, and codes of 4 bits.
struct Powers {
    size_t start;

    Powers(int block, int) : start((size_t)block * 17) {}
    uint16_t scale(const uint8_t*) const { return 0; }
    uint16_t minimum(const uint8_t*) const { return 0; }
    uint8_t factor(const uint8_t* row, int) const { return row[start]; }
    uint8_t min_factor(const uint8_t*) const { return 0; }
    Codes32 codes(const uint8_t* row) const { return nibbles(row + start + 1); }
};

// IQ4_XS: eight groups of 32 with signed factors of 6 bits.
struct GroupedTable {
    size_t start;
    int index;

    GroupedTable(int block, int) : start((size_t)(block / 8) * 136), index(block % 8) {}
    uint16_t scale(const uint8_t* row) const { return half_at(row + start); }
    uint16_t minimum(const uint8_t*) const { return 0; }
    uint8_t factor(const uint8_t* row, int) const {
        const int low = row[start + 4 + index / 2] >> index % 2 * 4 & 15;
        return (low | (half_at(row + start + 2) >> 2 * index & 3) << 4) - 32;
    }
    uint8_t min_factor(const uint8_t*) const { return 0; }
    Codes32 codes(const uint8_t* row) const { return nibbles(row + start + 8 + 16 * index); }
};

// Q2_K and Q3_K: two bits of four groups of 32 are in the same bytes.
inline Codes32 crumbs(const uint8_t* from, int index) {
    Codes32 out;
    for (int i = 0; i < 4; ++i)
        out.eights[i] = bits_of_each(eight_at(from + index / 4 * BLOCK + 8 * i), index % 4 * 2, 3);
    return out;
}

// Q3_K: sixteen groups of 16 with signed factors of 6 bits.
struct Grouped3 {
    size_t start;
    int index;

    Grouped3(int block, int) : start((size_t)(block / 8) * 110), index(block % 8) {}
    uint16_t scale(const uint8_t* row) const { return half_at(row + start + 108); }
    uint16_t minimum(const uint8_t*) const { return 0; }
    uint8_t factor(const uint8_t* row, int group) const {
        const uint8_t* packed = row + start + 96;
        const int place = 2 * index + group;
        const int low = packed[place % 8] >> place / 8 * 4 & 15;
        return (low | (packed[8 + place % 4] >> place / 4 * 2 & 3) << 4) - 32;
    }
    uint8_t min_factor(const uint8_t*) const { return 0; }

    Codes32 codes(const uint8_t* row) const {
        Codes32 out = crumbs(row + start + 32, index);
        for (int i = 0; i < 4; ++i)
            out.eights[i] |= bits_of_each(eight_at(row + start + 8 * i), index, 1) << 2;
        return out;
    }
};

// Q2_K: sixteen groups of 16, with a byte for the factors of scale and minimum.
struct Grouped2 {
    size_t start;
    int index;

    Grouped2(int block, int) : start((size_t)(block / 8) * 84), index(block % 8) {}
    uint16_t scale(const uint8_t* row) const { return half_at(row + start + 80); }
    uint16_t minimum(const uint8_t* row) const { return half_at(row + start + 82) ^ 0x8000; }
    uint8_t factor(const uint8_t* row, int group) const { return row[start + 2 * index + group]; }
    uint8_t min_factor(const uint8_t*) const { return 0; }
    Codes32 codes(const uint8_t* row) const { return crumbs(row + start + 16, index); }
};

// Puts COUNT bits of each code, from bit FIRST on, where `Blocks::bits` takes them from.
template <int COUNT, int FIRST>
inline void put_bits(const Codes32& codes, uint8_t* vectors) {
    constexpr int TOGETHER = 4 / COUNT;  // eights of a vector
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) {
        const uint64_t eight = bits_of_each(codes.eights[i], FIRST, (1 << COUNT) - 1);
        bits |= (uint32_t)(eight | eight >> (32 - COUNT)) << i % TOGETHER * 2 * COUNT;
        if (i % TOGETHER < TOGETHER - 1) continue;
        std::memcpy(vectors + (size_t)(i / TOGETHER * 2) * LANES * 4, &bits, sizeof bits);
        bits = 0;
    }
}

// Puts codes of 3 bits where `Blocks::three_bits` takes them from.
inline void put_three_bits(const Codes32& codes, uint8_t* vectors) {
    const auto four = [&](int index, uint32_t mask) {
        return load_as<uint32_t>((const uint8_t*)&codes + 4 * index) & mask * 0x01010101u;
    };
    for (int i = 0; i < 3; ++i) {
        uint32_t bits = four(2 * i, 7) | four(2 * i + 1, 7) << 3;
        bits |= i < 2 ? four(6 + i, 3) << 6 : four(6, 4) << 4 | four(7, 4) << 5;
        std::memcpy(vectors + (size_t)i * 2 * LANES * 4, &bits, sizeof bits);
    }
}

// Puts the codes of an output where `Blocks::unpacked` takes them from.
template <class B>
inline void put_codes(const Codes32& codes, int output, uint8_t* to) {
    uint8_t* own = to + output * 4;  // half a panel is one vector behind
    if constexpr (B::BITS == 8) {
        for (int i = 0; i < 8; ++i)
            std::memcpy(own + (size_t)i * 2 * LANES * 4, (const uint8_t*)&codes + 4 * i, 4);
        return;
    }
    if constexpr (B::BITS == 3) return put_three_bits(codes, own);
    if constexpr (B::LOW == 2 || B::LOW == 4) put_bits<B::LOW, 0>(codes, own);
    if constexpr (B::MORE > 0) put_bits<B::MORE, B::LOW>(codes, own + (size_t)2 * B::LOW * LANES * 4);
}

template <class B, class Row>
void pack_panel(const uint8_t* const* rows, int64_t inputs, int group, uint8_t* panel) {
    for (int block = 0; block < inputs / BLOCK; ++block) {
        const Row stored(block, group);
        const B place(panel, block);
        uint16_t* halves = (uint16_t*)place.halves;
        uint8_t* small = (uint8_t*)place.small;
        for (int output = 0; output < WIDTH; ++output) {
            const uint8_t* row = rows[output];
            if (B::HALVES) halves[output] = stored.scale(row);
            if (B::MINIMUMS) halves[WIDTH + output] = stored.minimum(row);
            for (int i = 0; i < B::FACTOR_BYTES; ++i) small[i * WIDTH + output] = stored.factor(row, i);
            if (B::MIN_FACTOR_BYTES) small[B::FACTOR_BYTES * WIDTH + output] = stored.min_factor(row);
            put_codes<B>(stored.codes(row), output, (uint8_t*)place.codes);
        }
    }
}

// Panels of plain numbers: two neighbouring ones of 16 bits are one unit where they are multiplied as a pair.
template <class Unit>
void pack_panel(const uint8_t* const* rows, int64_t units, int, uint8_t* panel) {
    constexpr int TOGETHER = 64 / sizeof(Unit);  // a line of the cache, of each row
    for (int64_t first = 0; first < units; first += TOGETHER) {
        const int count = std::min<int64_t>(TOGETHER, units - first);
        for (int output = 0; output < WIDTH; ++output) {
            const uint8_t* from = rows[output] + first * sizeof(Unit);
            Unit* to = (Unit*)panel + first * WIDTH + output;
            for (int unit = 0; unit < count; ++unit)
                std::memcpy(to + unit * WIDTH, from + unit * sizeof(Unit), sizeof(Unit));
        }
    }
}

struct Layout {
    size_t panel_bytes;
    void (*pack)(const uint8_t* const*, int64_t, int, uint8_t*);
    int64_t columns;  // inputs, or units of them
};

// How a type lies in files.
template <class B>
struct Stored {
    typedef Plain<B::BITS, B::MINIMUMS> Row;
};
template <> struct Stored<Q2_K> { typedef Grouped2 Row; };
template <> struct Stored<Q3_K> { typedef Grouped3 Row; };
template <> struct Stored<Q4_K> { typedef Grouped<4> Row; };
template <> struct Stored<Q5_K> { typedef Grouped<5> Row; };
template <> struct Stored<Q6_K> { typedef Grouped6 Row; };
template <> struct Stored<IQ4_XS> { typedef GroupedTable Row; };
template <> struct Stored<MXFP4> { typedef Powers Row; };

template <class B>
Layout blocks(int64_t inputs) {
    return {B::panel_bytes(inputs), pack_panel<B, typename Stored<B>::Row>, inputs};
}

template <class Unit>
Layout plain(int64_t units) {
    return {units * WIDTH * sizeof(Unit), pack_panel<Unit>, units};
}

Layout layout_of(int64_t type, int64_t inputs) {
    switch (type) {
        case TYPE_FLOAT32: return plain<uint32_t>(inputs);
        case TYPE_BFLOAT16_PAIRS: return plain<uint32_t>(inputs / 2);
#define TRTLA_TYPE(name, ...) \
    case TYPE_##name: return blocks<name>(inputs);
            TRTLA_BLOCK_TYPES(TRTLA_TYPE)
#undef TRTLA_TYPE
        default: return plain<uint16_t>(inputs);
    }
}

}  // namespace

// The names of all types, in the order of `Type`.
EXPORTED const char* trtla_types() {
#define TRTLA_TYPE(name, ...) " " #name
    return "float32 float16 bfloat16 bfloat16-pairs" TRTLA_BLOCK_TYPES(TRTLA_TYPE);
#undef TRTLA_TYPE
}

EXPORTED int64_t trtla_panel_bytes(int64_t type, int64_t inputs) {
    return layout_of(type, inputs).panel_bytes;
}

// Fills panels of rows, WIDTH of them for each. `group`: inputs of a stored block.
EXPORTED void trtla_pack(int64_t type, int64_t inputs, int64_t group, const uint8_t* const* rows,
                         int64_t panels, uint8_t* to) {
    const Layout layout = layout_of(type, inputs);
    for (int64_t panel = 0; panel < panels; ++panel)
        layout.pack(rows + panel * WIDTH, layout.columns, group, to + panel * layout.panel_bytes);
}
