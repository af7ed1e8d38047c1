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

// Puts the codes of an output where `Blocks::unpacked` takes them from.
template <int BITS>
inline void put_codes(const Codes32& codes, int output, uint8_t* to) {
    constexpr int MORE = BITS - 4, EIGHTS = MORE == 2 ? 2 : 4;  // whose further bits are in a vector
    uint8_t* own = to + output * 4;  // half a panel is one vector behind
    const auto put = [&](int vector, uint32_t bits) {
        std::memcpy(own + (size_t)vector * LANES * 4, &bits, sizeof bits);
    };
    uint32_t further = 0;
    for (int i = 0; i < 4; ++i) {
        const uint64_t eight = codes.eights[i];
        if constexpr (BITS == 8) {
            put(4 * i, eight), put(4 * i + 2, eight >> 32);
            continue;
        }
        const uint64_t low = bits_of_each(eight, 0, 15), high = bits_of_each(eight, 4, (1 << MORE) - 1);
        put(2 * i, low | low >> 28);
        if (!MORE) continue;
        const int place = i % EIGHTS * 2 * MORE;
        further |= (uint32_t)high << place | (uint32_t)(high >> 32) << (place + MORE);
        if (i % EIGHTS == EIGHTS - 1) put(8 + i / EIGHTS * 2, further), further = 0;
    }
}

template <class B, class Row>
void pack_panel(const uint8_t* const* rows, int64_t inputs, int group, uint8_t* panel) {
    constexpr int GROUPS = BLOCK / B::GROUP;
    for (int block = 0; block < inputs / BLOCK; ++block) {
        const Row stored(block, group);
        const B place(panel, block);
        uint16_t* halves = (uint16_t*)place.halves;
        uint8_t* small = (uint8_t*)place.small;
        for (int output = 0; output < WIDTH; ++output) {
            const uint8_t* row = rows[output];
            halves[output] = stored.scale(row);
            if (B::MINIMUMS) halves[WIDTH + output] = stored.minimum(row);
            for (int i = 0; B::FACTORS && i < GROUPS; ++i) small[i * WIDTH + output] = stored.factor(row, i);
            if (B::FACTORS && B::MINIMUMS) small[GROUPS * WIDTH + output] = stored.min_factor(row);
            put_codes<B::BITS>(stored.codes(row), output, (uint8_t*)place.codes);
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
using Stored = std::conditional_t<!B::FACTORS, Plain<B::BITS, B::MINIMUMS>,
                                  std::conditional_t<B::MINIMUMS, Grouped<B::BITS>, Grouped6>>;

template <class B>
Layout blocks(int64_t inputs) {
    return {B::panel_bytes(inputs), pack_panel<B, Stored<B>>, inputs};
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
