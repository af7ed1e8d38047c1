// What happens to tokens' rows beside a product's sums.
#pragma once

#include <cmath>

#include "matmul.h"
#include "model.h"

// May be in place.
inline void normalise(const float* from, int64_t size, const float* weight, float epsilon, float* out) {
    Floats squares{};
    for (int i = 0; i < size; i += LANES) squares += load(from + i) * load(from + i);
    const float scale = 1.0f / std::sqrt(sum(squares) / size + epsilon);
    for (int i = 0; i < size; i += LANES)
        store(out + i, load(from + i) * scale * load(weight + i));
}

inline Floats activate(Activation activation, Floats gate) {
    if (activation == SILU) return gate / (1.0f + exponential(-gate));
    // (1 + tanh(x)) / 2 is 1 / (1 + exp(-2x)).
    const Floats x = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);
    return gate / (1.0f + exponential(-2.0f * x));
}

// The products of gate_proj, activated, with those of up_proj: rows of `width` numbers.
inline void gate(const Operand& x, const Matrix& matrix, Activation activation, int from, int to,
                 float* out, int64_t width) {
    matmul(x, matrix, from, to, [&](int row, int panel, const float* products) {
        const Floats gate = load(products), up = load(products + LANES);
        store(out + row * width + panel * LANES, activate(activation, gate) * up);
    });
}

// Products as they are: rows of `width` numbers.
inline void write(const Operand& x, const Matrix& matrix, int from, int to, float* out, int64_t width) {
    matmul(x, matrix, from, to, [&](int row, int panel, const float* products) {
        const int64_t first = (int64_t)panel * WIDTH, count = std::min<int64_t>(WIDTH, width - first);
        std::copy(products, products + count, out + row * width + first);
    });
}
