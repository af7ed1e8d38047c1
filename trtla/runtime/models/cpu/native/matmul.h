// Products of packed weights with a few or many tokens.
//
// A weight lies in panels of WIDTH outputs, all inputs of a panel in a row: it is read once, from
// start to end. Every sum runs over the inputs in order, whatever else is in the batch: a token's
// result is the same bit for bit alone and among others.
#pragma once

#include "block_product.h"

constexpr size_t PANELS_BYTES = 256 * 1024;  // as many again are fetched meanwhile
constexpr size_t AHEAD = 4096;  // bytes before they are wanted, where weights are read once
constexpr int FEW_BLOCKS = 4;   // of rows, for which a panel alone stays in the second-level cache

struct Matrix {
    const void* panels;  // [panels][inputs][WIDTH]; pairs: [panels][inputs / 2][WIDTH][2]; or blocks.h's
    const float* bias;   // [panels * WIDTH], or null
    int64_t outputs, inputs;
    Type type;

    int num_panels() const { return (outputs + WIDTH - 1) / WIDTH; }
};

// Refers to what takes products. Not a template's argument: all users share the compiled products.
class Sink {
public:
    template <class Take>
    Sink(const Take& take)
        : take_(&take), call_([](const void* to, int token, int panel, const float* products) {
              (*(const Take*)to)(token, panel, products);
          }) {}
    void operator()(int token, int panel, const float* products) const {
        call_(take_, token, panel, products);
    }

private:
    const void* take_;
    void (*call_)(const void*, int, int, const float*);
};

template <class Product>
void multiply_panels(const typename Product::Operand& x, const Matrix& matrix, int from, int to,
                     const Sink& sink) {
    const size_t panel_bytes = Product::panel_bytes(matrix.inputs);
    const int blocks = x.blocks;
    const int together = blocks > FEW_BLOCKS ? std::max<size_t>(1, PANELS_BYTES / panel_bytes) : 1;
    const auto weights = [&](int panel) { return (const uint8_t*)matrix.panels + panel * panel_bytes; };
    float out[Product::MOST][WIDTH];
    for (int first = from; first < to; first += together) {
        const int last = std::min(to, first + together), count = last - first;
        const Ahead next{weights(last), last < to ? count * panel_bytes : 0};
        for (int block = 0; block < blocks; ++block) {
            const int token = x.first(block), rows = x.rows(block);
            [[maybe_unused]] const typename Product::Ready ready(rows);
            const size_t before = Product::in_parts(rows) ? panel_bytes : AHEAD;
            for (int panel = first; panel < last; ++panel) {
                const float* bias = matrix.bias ? matrix.bias + panel * WIDTH : nullptr;
                const Ahead ahead = blocks == 1 ? Ahead{weights(panel) + before, panel_bytes}
                                                : next.share(block * count + panel - first, blocks * count);
                Product::run(x, block, weights(panel), ahead, bias, out);
                for (int row = 0; row < rows; ++row) sink(token + row, panel, out[row]);
            }
        }
    }
}

// Each is compiled in one of products_*.cpp: they take longest, so several are compiled at a time.
#define TRTLA_PRODUCT(...)                                                                         \
    template void multiply_panels<__VA_ARGS__>(const __VA_ARGS__::Operand&, const Matrix&, int, int, \
                                               const Sink&)
extern TRTLA_PRODUCT(FloatProduct<float, float>);
extern TRTLA_PRODUCT(FloatProduct<float, Float16>);
extern TRTLA_PRODUCT(FloatProduct<float, BFloat16>);
extern TRTLA_PRODUCT(FloatProduct<BFloat16, BFloat16>);
#define TRTLA_TYPE(name, ...) extern TRTLA_PRODUCT(BlockProduct<name>);
TRTLA_BLOCK_TYPES(TRTLA_TYPE)
#undef TRTLA_TYPE

template <class T>
struct Named {
    typedef T type;
};

// Calls `work` with the product of a type, as Named<...>.
template <class Work>
auto with_product(Type type, Work work) {
    switch (type) {
        case TYPE_FLOAT32: return work(Named<FloatProduct<float, float>>());
        case TYPE_FLOAT16: return work(Named<FloatProduct<float, Float16>>());
        case TYPE_BFLOAT16: return work(Named<FloatProduct<float, BFloat16>>());
#define TRTLA_TYPE(name, ...) \
    case TYPE_##name: return work(Named<BlockProduct<name>>());
            TRTLA_BLOCK_TYPES(TRTLA_TYPE)
#undef TRTLA_TYPE
        default: return work(Named<FloatProduct<BFloat16, BFloat16>>());
    }
}

// All tokens times the panels [from, to); `sink(token, panel, products)` takes WIDTH of them.
inline void matmul(const Operand& x, const Matrix& matrix, int from, int to, const Sink& sink) {
    with_product(matrix.type, [&](auto named) {
        typedef typename decltype(named)::type Product;
        multiply_panels<Product>(x.as<typename Product::Operand>(), matrix, from, to, sink);
    });
}

// One number of a matrix.
inline float number(const Matrix& matrix, int64_t output, int64_t input) {
    return with_product(matrix.type, [&](auto named) {
        typedef typename decltype(named)::type Product;
        const size_t panel = output / WIDTH * Product::panel_bytes(matrix.inputs);
        return Product::number((const uint8_t*)matrix.panels + panel, output % WIDTH, input);
    });
}
