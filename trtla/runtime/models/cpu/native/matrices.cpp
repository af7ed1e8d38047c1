// Calls for a packed matrix on its own: its products with some rows, and its numbers.
#include "exported.h"
#include "phases.h"
#include "team.h"

namespace {

// First the rows' inputs are prepared, then come the products, panel by panel.
struct Multiply final : Job {
    const Matrix& matrix;
    const float* rows;
    const int num_rows, threads;
    float* out;
    Operand& inputs;

    Multiply(const Matrix& matrix, const float* rows, int num_rows, float* out, int threads,
             Operand& inputs)
        : matrix(matrix), rows(rows), num_rows(num_rows), threads(threads), out(out), inputs(inputs) {
        inputs.reset(matrix.type, num_rows, matrix.inputs);
    }

    Chunks cut(int phase) const { return {phase ? matrix.num_panels() : num_rows, threads}; }
    int phases() const override { return 2; }
    int chunks(int phase) const override { return cut(phase).count(); }

    void run(int phase, int chunk) override {
        const int from = cut(phase).begin(chunk), to = cut(phase).begin(chunk + 1);
        if (phase) return multiply(from, to);
        for (int row = from; row < to; ++row)
            inputs.put(matrix.type, row, rows + row * matrix.inputs);
    }

    void multiply(int from, int to) {
        matmul(inputs, matrix, from, to, [&](int row, int panel, const float* products) {
            const int64_t first = (int64_t)panel * WIDTH;
            const int width = std::min<int64_t>(WIDTH, matrix.outputs - first);
            std::copy(products, products + width, out + row * matrix.outputs + first);
        });
    }
};

}  // namespace

// Rows [num_rows][inputs] to products [num_rows][outputs].
EXPORTED void trtla_multiply(const Matrix* matrix, const float* rows, int64_t num_rows, float* out,
                             int64_t threads) {
    static thread_local Operand inputs;
    Multiply job(*matrix, rows, num_rows, out, threads, inputs);
    Team::shared().run(job, threads);
}

// Rows of the weight itself, [num_outputs][inputs], from output 0 on.
EXPORTED void trtla_numbers(const Matrix* matrix, int64_t num_outputs, float* out) {
    for (int64_t output = 0; output < num_outputs; ++output)
        for (int64_t input = 0; input < matrix->inputs; ++input)
            *out++ = number(*matrix, output, input);
}
