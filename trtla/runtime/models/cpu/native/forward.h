// The phases of a Llama forward. A phase has pieces that are independent of each other: panels of a
// product, heads of attention, tokens. Which thread takes a piece changes no result.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "expert_layers.h"
#include "phases.h"
#include "team.h"

constexpr int TWICE = 16384;  // numbers up to which each thread makes a product's inputs for itself

// C: the type of keys and values in the cache.
template <class C>
struct Forward final : Job {
    const Model& model;
    const Step& step;
    const bool alone;      // a head's queries are one piece
    const uint64_t stamp;  // of this forward alone
    const int attended_size;
    std::vector<float>&states, &embedded, &qkv, &attended, &gated, &delta;
    Operand (&shared)[PRODUCTS];
    ExpertLayers experts;
    int64_t widths[PRODUCTS]{};  // the most inputs of a product in any layer
    std::vector<std::vector<View>> seen;
    std::vector<Phase> program;

    Forward(const Model& model, const Step& step, Buffers& buffers)
        : model(model), step(step), alone(queries_are_one_piece(model, step)), stamp(next_stamp()),
          attended_size(model.heads * model.head_size), states(buffers.states),
          embedded(buffers.embedded), qkv(buffers.qkv), attended(buffers.attended),
          gated(buffers.gated), delta(buffers.delta), shared(buffers.inputs),
          experts{model, step, buffers.routing, buffers.states} {
        fit(states, model.hidden);
        if (model.embedding_norm) fit(embedded, model.hidden);
        fit(qkv, qkv_size());
        fit(attended, attended_size);
        fit(gated, model.intermediate);
        if (adds_later(DENSE, *model.layers) || adds_later(DOWN, *model.layers))
            fit(delta, model.hidden);
        if (model.experts_per_token) experts.fit();
        for (int product = QKV; product < PRODUCTS; ++product) make_room(Kind(product));
        for (int i = 0; i < step.num_sequences; ++i)
            seen.push_back(views(step.sequences()[i], step.parents()));
        plan();
    }

    void fit(std::vector<float>& rows, size_t size) const {
        if (rows.size() < step.tokens * size) rows.resize(step.tokens * size);
    }

    void make_room(Kind product) {
        const Layer* end = model.layers + model.num_layers;
        for (const Layer* layer = model.layers; layer < end; ++layer)
            widths[product] = std::max(widths[product], matrix(product, *layer).inputs);
        if (few(product)) return;
        for (const Layer* layer = model.layers; layer < end; ++layer)
            if (matrix(product, *layer).outputs) reset(inputs_before(product, *layer), product, *layer);
    }

    // Those that a phase before a product makes. Dense layers may be of another width than shared experts.
    Operand& inputs_before(Kind product, const Layer& layer) {
        return product == DOWN && layer.router.outputs ? experts.routing.shared_inputs : shared[product];
    }

    size_t qkv_size() const { return (model.heads + 2 * model.kv_heads) * model.head_size; }
    int group_size() const { return model.heads / model.kv_heads; }

    void embed(int token, float* out) const {
        for (int i = 0; i < model.hidden; ++i)
            out[i] = number(model.embedding, step.ids()[token], i) * model.embedding_multiplier;
    }

    // A model begins with a token's embedding; a head reads that beside a state that comes in.
    void begin(int token) {
        const int64_t size = model.hidden;
        float* state = &states[token * size];
        if (!model.embedding_norm) return embed(token, state);
        float* embedding = &embedded[token * size];
        embed(token, embedding);
        normalise(embedding, size, model.embedding_norm, model.epsilon, embedding);
        normalise_or_copy(step.states_in + token * size, size, model.residual_norm, state);
    }

    void normalise_or_copy(const float* from, int64_t size, const float* weight, float* out) const {
        if (weight) return normalise(from, size, weight, model.epsilon, out);
        std::copy(from, from + size, out);
    }

    const Matrix& matrix(Kind product, const Layer& layer) const {
        return product == QKV     ? layer.qkv[0]
               : product == DENSE ? layer.dense
               : product == DOWN  ? layer.down
               : product == ROUTE ? layer.router
               : product == SCORE ? model.lm_head
                                  : layer.gate_up;
    }

    // Whether a product is only for the step's rows: of a head all are but keys and values.
    bool of_rows(Kind product) const {
        return product == SCORE || (model.embedding_norm && product != QKV);
    }
    int rows(Kind product) const { return of_rows(product) ? step.num_rows : step.tokens; }
    int64_t token_of(Kind product, int row) const {
        return of_rows(product) ? step.rows()[row] : row;
    }

    // Whether a product's inputs are so few that each thread makes them for itself.
    bool few(Kind product) const {
        return rows(product) * widths[product] <= TWICE;
    }

    void reset(Operand& inputs, Kind product, const Layer& layer) const {
        const Matrix& weights = matrix(product, layer);
        inputs.reset(weights.type, rows(product), weights.inputs);
    }

    // Makes the inputs of a product from one of its rows.
    void prepare(Kind product, const Layer& layer, int row, Operand& out) const {
        const Type type = matrix(product, layer).type;
        const int64_t token = token_of(product, row);
        if (product == DENSE) return out.put(type, row, &attended[token * attended_size]);
        if (product == DOWN) return out.put(type, row, &gated[(size_t)row * model.intermediate]);
        static thread_local std::vector<float> normal;
        normal.resize(2 * model.hidden);
        const float* state = &states[token * model.hidden];
        if (product == QKV && model.embedding_norm) {
            const float* embedding = &embedded[token * model.hidden];
            std::copy(embedding, embedding + model.hidden, normal.data());
            normalise_or_copy(state, model.hidden, layer.input_norm, &normal[model.hidden]);
            return out.put(type, row, normal.data());
        }
        const float* weight = product == SCORE   ? model.norm
                              : product == QKV ? layer.input_norm
                                               : layer.post_norm;
        normalise(state, model.hidden, weight, model.epsilon, normal.data());
        out.put(type, row, normal.data());
    }

    // A product's inputs: a thread's own where they are few, else those of the phase before.
    const Operand& inputs(int phase) {
        const Kind product = program[phase].kind;
        if (!few(product)) return inputs_before(product, model.layers[program[phase].layer]);
        static thread_local Operand own;
        static thread_local std::pair<uint64_t, int> made;
        if (made == std::pair{stamp, phase}) return own;
        const Layer& layer = model.layers[program[phase].layer];
        reset(own, product, layer);
        for (int row = 0; row < rows(product); ++row) prepare(product, layer, row, own);
        made = {stamp, phase};
        return own;
    }

    // Queries, keys and values, whose weights may be in several matrices.
    void project(const Operand& x, const Layer& layer, int from, int to) {
        const size_t stride = qkv_size();
        size_t offset = 0;
        for (const Matrix& part : layer.qkv) {
            const int panels = part.num_panels();
            matmul(x, part, from, std::min(to, panels), [&](int token, int panel, const float* products) {
                const int first = panel * WIDTH, width = std::min<int>(WIDTH, part.outputs - first);
                std::copy(products, products + width, &qkv[token * stride + offset + first]);
            });
            offset += part.outputs;
            from = std::max(from - panels, 0), to -= panels;
            if (to <= 0) return;
        }
    }

    void rotate(float* head, int token, const Layer& layer) const {
        const int half = model.head_size / 2;
        const int64_t rope = step.rope_rows()[token] * half;
        const float *cosine = step.cosine[layer.rotary] + rope, *sine = step.sine[layer.rotary] + rope;
        for (int i = 0; i < half; ++i) {
            const float first = head[i], second = head[i + half];
            head[i] = first * cosine[i] - second * sine[i];
            head[i + half] = second * cosine[i] + first * sine[i];
        }
    }

    float* head(int token, int index) const {
        return &qkv[token * qkv_size() + index * model.head_size];
    }

    HeadCache<C> cache(int layer, int kv_head) const {
        void* const* at = step.cache + 2 * (layer * model.kv_heads + kv_head);
        return {{(C*)at[0], model.head_size}, {(C*)at[1], model.head_size}};
    }

    // A head's own norm; one of all heads has come before.
    void normalise_head(float* head, const float* weight) const {
        if (weight && !model.qk_norm_all_heads)
            normalise(head, model.head_size, weight, model.epsilon, head);
    }

    void normalise_heads(const Layer& layer, int token) const {
        float *queries = head(token, 0), *keys = head(token, model.heads);
        normalise(queries, keys - queries, layer.q_norm, model.epsilon, queries);
        normalise(keys, model.kv_heads * model.head_size, layer.k_norm, model.epsilon, keys);
    }

    // Rotates a token's queries and key of one K/V head, and stores key and value.
    void place(int index, const Sequence& sequence, int row, int kv_head) const {
        const int token = sequence.first + row, size = model.head_size;
        const HeadCache<C> to = cache(index, kv_head);
        const Layer& layer = model.layers[index];
        const int64_t slot = sequence.slots[sequence.cached + row];
        float* key = head(token, model.heads + kv_head);
        const float* value = head(token, model.heads + model.kv_heads + kv_head);
        normalise_head(key, layer.k_norm);
        rotate(key, token, layer);
        put(to.keys.at(slot), key, size);
        put(to.values.at(slot), value, size);
        for (int fold = 0; fold < group_size(); ++fold) {
            float* query = head(token, kv_head * group_size() + fold);
            normalise_head(query, layer.q_norm);
            rotate(query, token, layer);
            for (int i = 0; i < size; ++i) query[i] *= model.attention_scale;
        }
    }

    // Fed tokens whose queries attend, the last ones: of a head only the step's rows.
    int asking(const Sequence& sequence) const { return model.embedding_norm ? 1 : sequence.count; }

    // Attention of QUERIES queries of one K/V head, `first` on; a row has `group_size` of them.
    void attend_from(int layer, const Sequence& sequence, const std::vector<View>& views,
                     int kv_head, int first, Scores& scores) {
        const int queries_in_all = asking(sequence) * group_size(), size = model.head_size;
        const int skipped = sequence.count - asking(sequence);
        const float* queries[QUERIES];
        const View* seen[QUERIES];
        float *outs[QUERIES], sinks[QUERIES];
        const float* own = model.layers[layer].sinks;
        const int several = std::min(QUERIES, queries_in_all - first);
        for (int q = 0; q < several; ++q) {
            const int row = skipped + (first + q) / group_size(), token = sequence.first + row;
            const int index = kv_head * group_size() + (first + q) % group_size();
            queries[q] = head(token, index);
            seen[q] = &views[row];
            sinks[q] = own ? own[index] : -INFINITY;
            outs[q] = &attended[(size_t)token * attended_size + index * size];
        }
        with_rows<QUERIES>(several, [&](auto count) {
            attend<count>(queries, seen, outs, cache(layer, kv_head), sequence.slots,
                          model.layers[layer].window, size, sinks, scores);
        });
    }

    // Calls `work(sequence's number, piece of it)` for some pieces; `each` is the pieces of a sequence.
    template <class Each, class Work>
    void over_sequences(int from, int to, Each each, Work work) {
        for (int i = 0; i < step.num_sequences && from < to; ++i) {
            const int pieces = each(step.sequences()[i]);
            for (; from < std::min(pieces, to); ++from) work(i, from);
            from = std::max(from - pieces, 0), to -= pieces;
        }
    }

    int placements(const Sequence& sequence) const { return sequence.count * model.kv_heads; }

    void place_some(int layer, int from, int to) {
        over_sequences(
            from, to, [&](const Sequence& sequence) { return placements(sequence); },
            [&](int i, int piece) {
                place(layer, step.sequences()[i], piece / model.kv_heads, piece % model.kv_heads);
            });
    }

    // Pieces of QUERIES queries of a K/V head.
    int attentions(const Sequence& sequence) const {
        return (asking(sequence) * group_size() + QUERIES - 1) / QUERIES * model.kv_heads;
    }

    void attend_some(int layer, int from, int to) {
        static thread_local Scores scores;
        over_sequences(
            from, to, [&](const Sequence& sequence) { return attentions(sequence); },
            [&](int i, int piece) {
                const Sequence& sequence = step.sequences()[i];
                const int pieces = attentions(sequence) / model.kv_heads, head = piece / pieces;
                for (int row = 0; alone && row < sequence.count; ++row)
                    place(layer, sequence, row, head);
                attend_from(layer, sequence, seen[i], head, piece % pieces * QUERIES, scores);
            });
    }

    void add_to_states(Kind product, const Operand& x, const Matrix& matrix, int from, int to) {
        matmul(x, matrix, from, to, [&](int row, int panel, const float* products) {
            float* out = &states[token_of(product, row) * model.hidden + panel * WIDTH];
            const int width = std::min<int>(WIDTH, model.hidden - panel * WIDTH);
            for (int i = 0; i < width; ++i) out[i] += products[i] * model.residual_multiplier;
        });
    }

    // Parts of the two products of a layer lie in different sets.
    static int set_of(Kind product) { return product == DOWN; }

    const float* norm_behind(Kind product, const Layer& layer) const {
        return product == DOWN ? layer.mlp_norm : layer.attention_norm;
    }

    // Whether something happens to all of a product before it is added to the states.
    bool adds_later(Kind product, const Layer& layer) const {
        return norm_behind(product, layer) || (model.exchange && model.residual_multiplier != 1.0f);
    }

    void add_product_to_states(int phase, const Layer& layer, const Matrix& matrix, int from, int to) {
        const Kind product = program[phase].kind;
        if (model.exchange) {
            float* part = model.exchange->part(set_of(product), model.exchange->rank);
            return write(inputs(phase), matrix, from, to, part, model.hidden);
        }
        if (adds_later(product, layer)) return write(inputs(phase), matrix, from, to, delta.data(), model.hidden);
        add_to_states(product, inputs(phase), matrix, from, to);
    }

    // Adds what all ranks have of a product, and what happens to all of it first.
    void add_parts(Kind product, const Layer& layer, int from, int to) {
        const int64_t size = model.hidden, first = from * size, count = (to - from) * size;
        const bool later = adds_later(product, layer);
        if (model.exchange) {
            if (later) std::fill_n(&delta[first], count, 0.0f);
            model.exchange->add(set_of(product), (later ? delta : states).data(), first, count);
        }
        if (!later) return;
        for (float* row = &delta[first]; row < &delta[first] + count; row += size)
            if (const float* norm = norm_behind(product, layer)) normalise(row, size, norm, model.epsilon, row);
        for (int64_t i = first; i < first + count; ++i)
            states[i] += delta[i] * model.residual_multiplier;
    }

    // Adds a token's experts to its state, or keeps their sum.
    void add_experts(const Layer& layer, int token) {
        if (!model.exchange && !adds_later(DOWN, layer)) {
            float* state = &states[token * model.hidden];
            return experts.combine(layer, token, [&](int64_t i, Floats sum) {
                store(state + i, load(state + i) + sum * model.residual_multiplier);
            });
        }
        float* part = model.exchange ? model.exchange->part(set_of(DOWN), model.exchange->rank)
                                     : delta.data();
        experts.combine(layer, token,
                        [&](int64_t i, Floats sum) { store(part + token * model.hidden + i, sum); });
    }

    void score(const Operand& x, int from, int to) {
        const int64_t first = model.exchange ? model.exchange->first_output : 0;
        const int64_t outputs = std::min(model.lm_head.outputs, step.vocabulary - first);
        matmul(x, model.lm_head, from, to, [&](int row, int panel, const float* found) {
            const int64_t start = (int64_t)panel * WIDTH;
            const int64_t width = std::clamp<int64_t>(outputs - start, 0, WIDTH);
            float* out = step.logits + row * step.vocabulary + first + start;
            if (model.logits_scaling == 1.0f) return (void)std::copy(found, found + width, out);
            for (int64_t i = 0; i < width; ++i) out[i] = found[i] / model.logits_scaling;
        });
    }

    void copy_states(int tap, int from, int to) {
        const int64_t size = model.hidden, start = (int64_t)tap * step.tokens;
        std::copy(&states[from * size], &states[to * size], step.hidden + (start + from) * size);
    }

    void plan() {
        const int tokens = step.tokens;
        int placed = 0, attentions_in_all = 0;
        for (int i = 0; i < step.num_sequences; ++i) {
            placed += placements(step.sequences()[i]);
            attentions_in_all += attentions(step.sequences()[i]);
        }
        program.push_back({EMBED, 0, tokens});
        for (int index = 0; index < model.num_layers; ++index) {
            const Layer& layer = model.layers[index];
            int panels = 0;
            for (const Matrix& part : layer.qkv) panels += part.num_panels();
            add_product(QKV, index, panels);
            if (model.qk_norm_all_heads) program.push_back({NORMALISE, index, tokens});
            if (!alone) program.push_back({PLACE, index, placed});
            program.push_back({ATTEND, index, attentions_in_all});
            add_product(DENSE, index, layer.dense.num_panels());
            add_sum(DENSE, index);
            if (layer.gate_up.outputs) {
                add_product(GATE_UP, index, layer.gate_up.num_panels());
                add_product(DOWN, index, layer.down.num_panels());
            }
            if (layer.router.outputs) plan_experts(index, layer.router.num_panels());
            add_sum(DOWN, index);
            for (int tap = 0; tap < step.num_taps; ++tap)
                if (step.taps[tap] == index) program.push_back({TAP, tap, tokens});
        }
        if (step.num_rows) add_product(SCORE, 0, model.lm_head.num_panels());
        if (model.exchange) program.push_back({MEET, 0, 1});  // all logits are there
    }

    // How many panels the used experts have is known when they are chosen.
    void plan_experts(int layer, int panels) {
        add_product(ROUTE, layer, panels);
        program.push_back({CHOOSE, layer, 1});
        program.push_back({PREPARE_EXPERTS, layer, experts.inputs()});
        program.push_back({EXPERTS_GATE_UP, layer, 0});
        program.push_back({PREPARE_EXPERTS_DOWN, layer, experts.routing.rows()});
        program.push_back({EXPERTS_DOWN, layer, 0});
        program.push_back({COMBINE, layer, (int)step.tokens});
    }

    void add_sum(Kind product, int layer) {
        if (model.exchange) program.push_back({MEET, 0, 1});
        if (model.exchange || adds_later(product, model.layers[layer]))
            program.push_back({ADD, layer, (int)step.tokens, product});
    }

    void add_product(Kind product, int layer, int panels) {
        if (!few(product)) program.push_back({PREPARE, layer, rows(product), product});
        program.push_back({product, layer, panels});
    }

    int pieces(const Phase& phase) const {
        const Layer& layer = model.layers[phase.layer];
        return phase.kind == EXPERTS_GATE_UP ? experts.panels(layer)
               : phase.kind == EXPERTS_DOWN  ? experts.panels_down(layer)
                                             : phase.pieces;
    }
    Chunks cut(int phase) const { return {pieces(program[phase]), (int)step.threads}; }
    int phases() const override { return program.size(); }
    int chunks(int phase) const override { return cut(phase).count(); }

    void run(int phase, int chunk) override {
        const Chunks chunks = cut(phase);
        const int from = chunks.begin(chunk), to = chunks.begin(chunk + 1);
        const Layer& layer = model.layers[program[phase].layer];
        switch (program[phase].kind) {
            case EMBED:
                for (int token = from; token < to; ++token) begin(token);
                break;
            case PREPARE:
                for (int row = from; row < to; ++row)
                    prepare(program[phase].product, layer, row, inputs_before(program[phase].product, layer));
                break;
            case QKV: return project(inputs(phase), layer, from, to);
            case NORMALISE:
                for (int token = from; token < to; ++token) normalise_heads(layer, token);
                break;
            case PLACE: return place_some(program[phase].layer, from, to);
            case ATTEND: return attend_some(program[phase].layer, from, to);
            case DENSE: return add_product_to_states(phase, layer, layer.dense, from, to);
            case GATE_UP:
                return gate(inputs(phase), layer.gate_up, model, from, to, gated.data(),
                            model.intermediate);
            case DOWN:
                if (!layer.router.outputs) return add_product_to_states(phase, layer, layer.down, from, to);
                return write(inputs(phase), layer.down, from, to, experts.routing.shared.data(), model.hidden);
            case ROUTE: return experts.route(inputs(phase), layer.router, from, to);
            case CHOOSE: return experts.choose(layer);
            case PREPARE_EXPERTS:
                for (int row = from; row < to; ++row) experts.prepare(layer, row);
                break;
            case EXPERTS_GATE_UP: return experts.multiply(layer, from, to);
            case PREPARE_EXPERTS_DOWN:
                for (int row = from; row < to; ++row) experts.prepare_down(layer, row);
                break;
            case EXPERTS_DOWN: return experts.multiply_down(layer, from, to);
            case COMBINE:
                for (int token = from; token < to; ++token) add_experts(layer, token);
                break;
            case TAP: return copy_states(program[phase].layer, from, to);
            case SCORE: return score(inputs(phase), from, to);
            case MEET: return model.exchange->meet();
            case ADD: return add_parts(program[phase].product, layer, from, to);
        }
    }
};
