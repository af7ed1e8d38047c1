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

inline Floats silu(Floats gate, float alpha = 1.0f) {
    return gate / (1.0f + exponential(-alpha * gate));
}

// What an MLP makes of a gate, and of what it gates.
inline Floats gated(const Model& model, Floats gate, Floats up) {
    if (model.activation == SILU) return silu(gate) * up;
    if (model.activation == CLAMPED) {
        const Floats most = Floats{} + model.swiglu_limit;
        gate = gate > most ? most : gate;
        up = up > most ? most : up < -most ? -most : up;
        return silu(gate, model.swiglu_alpha) * (up + 1.0f);
    }
    // (1 + tanh(x)) / 2 is 1 / (1 + exp(-2x)).
    const Floats x = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);
    return gate / (1.0f + exponential(-2.0f * x)) * up;
}

// The products of gate_proj, activated, with those of up_proj: rows of `width` numbers.
inline void gate(const Operand& x, const Matrix& matrix, const Model& model, int from, int to,
                 float* out, int64_t width) {
    matmul(x, matrix, from, to, [&](int row, int panel, const float* products) {
        const Floats gate = load(products), up = load(products + LANES);
        store(out + row * width + panel * LANES, gated(model, gate, up));
    });
}

// Products as they are: rows of `width` numbers.
inline void write(const Operand& x, const Matrix& matrix, int from, int to, float* out, int64_t width) {
    matmul(x, matrix, from, to, [&](int row, int panel, const float* products) {
        const int64_t first = (int64_t)panel * WIDTH, count = std::min<int64_t>(WIDTH, width - first);
        std::copy(products, products + count, out + row * width + first);
    });
}
