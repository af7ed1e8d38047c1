// The part of a layer that is a mixture of experts. Its products take the rows of one expert after the
// other: an expert's panels are read once, and all experts of a layer are one pool of work.
#pragma once

#include <vector>

#include "experts.h"
#include "rows.h"

struct ExpertLayers {
    const Model& model;
    const Step& step;
    Routing& routing;
    std::vector<float>& states;

    void fit() const {
        int64_t outputs = 0;
        for (int layer = 0; layer < model.num_layers; ++layer)
            outputs = std::max(outputs, model.layers[layer].router.outputs);
        routing.fit(step.tokens, outputs, model.gates_shared, model.experts_per_token,
                    model.expert_intermediate, model.hidden);
    }

    // What a layer's router says of each token.
    void route(const Operand& x, const Matrix& router, int from, int to) const {
        write(x, router, from, to, routing.scores.data(), router.outputs);
    }

    void choose(const Layer& layer) const {
        routing.choose({(bool)model.scores_are_sigmoids, (bool)model.shares_of_chosen,
                        model.share_scale, layer.correction});
        for (int slot = 0; slot < routing.slots(); ++slot) {
            const Matrix &first = gate_up(layer, slot), &second = down(layer, slot);
            const int rows = routing.rows_of(slot);
            if (!slot || !alone()) routing.inputs[slot].reset(first.type, rows, first.inputs);
            routing.between[slot].reset(second.type, rows, second.inputs);
        }
    }

    // A single token is the same input to all of its experts.
    int inputs() const { return alone() ? 1 : routing.rows(); }

    void prepare(const Layer& layer, int row) const {
        const int slot = routing.slot_of[row];
        const float* state = &states[routing.token_of[row] * model.hidden];
        static thread_local std::vector<float> normal;
        normal.resize(model.hidden);
        normalise(state, model.hidden, layer.post_norm, model.epsilon, normal.data());
        routing.inputs[slot].put(gate_up(layer, slot).type, routing.row_in_expert(row), normal.data());
    }

    void prepare_down(const Layer& layer, int row) const {
        const int slot = routing.slot_of[row];
        const float* gated = &routing.gated[row * model.expert_intermediate];
        routing.between[slot].put(down(layer, slot).type, routing.row_in_expert(row), gated);
    }

    int panels(const Layer& layer) const {
        return routing.slots() * layer.experts_gate_up->num_panels();
    }
    int panels_down(const Layer& layer) const {
        return routing.slots() * layer.experts_down->num_panels();
    }

    void multiply(const Layer& layer, int from, int to) const {
        const int64_t width = model.expert_intermediate;
        each(layer.experts_gate_up->num_panels(), from, to, [&](int slot, int start, int end) {
            gate(routing.inputs[alone() ? 0 : slot], gate_up(layer, slot), model, start, end,
                 &routing.gated[routing.first[slot] * width], width);
        });
    }

    void multiply_down(const Layer& layer, int from, int to) const {
        each(layer.experts_down->num_panels(), from, to, [&](int slot, int start, int end) {
            write(routing.between[slot], down(layer, slot), start, end,
                  &routing.parts[routing.first[slot] * model.hidden], model.hidden);
        });
    }

    // Adds up a token's experts, the best one first and the shared one last, and calls
    // `take(first number, sums)`.
    template <class Take>
    void combine(const Layer& layer, int token, Take take) const {
        const int first = token * routing.each;
        const float* shared = layer.down.outputs ? &routing.shared[token * model.hidden] : nullptr;
        const float share = routing.share_of_shared(token);
        for (int64_t i = 0; i < model.hidden; i += LANES) {
            Floats sum{};
            for (int place = first; place < first + routing.each; ++place) {
                const float* part = &routing.parts[routing.places[place] * model.hidden + i];
                sum += load(part) * routing.shares[place];
            }
            if (shared) sum += load(shared + i) * share;
            take(i, sum);
        }
    }

private:
    bool alone() const { return step.tokens == 1; }
    const Matrix& gate_up(const Layer& layer, int slot) const {
        return layer.experts_gate_up[routing.used[slot]];
    }
    const Matrix& down(const Layer& layer, int slot) const {
        return layer.experts_down[routing.used[slot]];
    }

    // Calls `work(slot, from, to)` for the panels of used experts in a part of those of all of them.
    template <class Work>
    void each(int panels, int from, int to, Work work) const {
        for (int slot = from / panels; slot * panels < to; ++slot)
            work(slot, std::max(from - slot * panels, 0), std::min(to - slot * panels, panels));
    }
};
