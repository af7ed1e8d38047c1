// The phases of a Llama forward. A phase has pieces that are independent of each other: panels of a
// product, heads of attention, tokens. Which thread takes a piece changes no result.
#pragma once

#include <atomic>
#include <cmath>
#include <utility>
#include <vector>

#include "attention.h"
#include "matmul.h"
#include "model.h"
#include "team.h"

constexpr int NORM_TWICE = 16384;  // elements up to which each thread normalises for itself

enum Kind { EMBED, NORMALISE, QKV, PLACE, ATTEND, DENSE, NORMALISE_AGAIN, GATE_UP, DOWN, TAP, LAST, SCORE };

struct Phase {
    Kind kind;
    int layer, pieces;
};

// Chunks of a phase are large at first and small at its end: threads end at about the same time.
struct Chunks {
    static constexpr int ROUNDS = 5;
    int pieces, threads;

    int count() const { return threads == 1 ? 1 : std::min(pieces, ROUNDS * threads); }
    // Where chunk `index` begins.
    int begin(int index) const {
        if (index >= count()) return pieces;
        if (count() == pieces || threads == 1) return index;
        const int round = index / threads, done = pieces - (pieces >> round);
        const int size = (round + 1 < ROUNDS ? pieces - (pieces >> (round + 1)) : pieces) - done;
        return done + (int64_t)size * (index % threads) / threads;
    }
};

// Room for a step's intermediate results, kept from step to step.
template <class X>
struct Buffers {
    std::vector<float> states, qkv;
    Inputs<X> attended, gated, shared, wanted;
};

inline uint64_t next_stamp() {
    static std::atomic<uint64_t> last{0};
    return ++last;
}

// Whether QUERIES take all queries of a K/V head: then one piece of work places and attends.
inline bool queries_are_one_piece(const Model& model, const Step& step) {
    const int group_size = model.heads / model.kv_heads;
    for (int i = 0; i < step.num_sequences; ++i)
        if (step.sequences()[i].count * group_size > QUERIES) return false;
    return true;
}

template <class X>
struct Forward final : Job {
    const Model& model;
    const Step& step;
    const bool few, alone;  // threads normalise for themselves; a head's queries are one piece
    const uint64_t stamp;   // of this forward alone
    std::vector<float>&states, &qkv;
    Inputs<X>&attended, &gated, &shared, &wanted;
    std::vector<std::vector<View>> seen;
    std::vector<Phase> program;

    Forward(const Model& model, const Step& step, Buffers<X>& buffers)
        : model(model), step(step), few(step.tokens * model.hidden <= NORM_TWICE),
          alone(queries_are_one_piece(model, step)), stamp(next_stamp()), states(buffers.states),
          qkv(buffers.qkv), attended(buffers.attended), gated(buffers.gated),
          shared(buffers.shared), wanted(buffers.wanted) {
        const size_t tokens = step.tokens, qkv_row = model.layers->qkv.num_panels() * WIDTH;
        if (states.size() < tokens * model.hidden) states.resize(tokens * model.hidden);
        if (qkv.size() < tokens * qkv_row) qkv.resize(tokens * qkv_row);
        attended.reset(tokens, model.heads * model.head_size);
        gated.reset(tokens, model.intermediate);
        shared.reset(tokens, model.hidden);
        wanted.reset(step.num_rows, model.hidden);
        for (int i = 0; i < step.num_sequences; ++i)
            seen.push_back(views(step.sequences()[i], step.parents()));
        plan();
    }

    int group_size() const { return model.heads / model.kv_heads; }

    void embed(int token) {
        float* out = &states[token * model.hidden];
        const int64_t id = step.ids()[token], from = id * model.hidden;
        if (model.embedding)
            for (int i = 0; i < model.hidden; ++i) out[i] = number(model.embedding, from + i);
        else
            for (int i = 0; i < model.hidden; ++i) out[i] = number(model.lm_head.panels, packed(id, i));
    }

    // Where a weight lies in the panels of lm_head.
    int64_t packed(int64_t output, int64_t input) const {
        const int64_t first = output / WIDTH * WIDTH * model.hidden, pair = PAIR<X>;
        return first + (input / pair * WIDTH + output % WIDTH) * pair + input % pair;
    }

    float number(const void* numbers, int64_t at) const {
        if (model.embedding_type == FLOAT32) return ((const float*)numbers)[at];
        uint16_t lanes[LANES] = {((const uint16_t*)numbers)[at]};
        if (model.embedding_type == FLOAT16) return load((const Float16*)lanes)[0];
        return load((const BFloat16*)lanes)[0];
    }

    void normalise(int token, const float* weight, Inputs<X>& out, int place) const {
        const float* from = &states[token * model.hidden];
        Floats squares{};
        for (int i = 0; i < model.hidden; i += LANES) squares += load(from + i) * load(from + i);
        const float scale = 1.0f / std::sqrt(sum(squares) / model.hidden + model.epsilon);
        for (int i = 0; i < model.hidden; i += LANES)
            out.put(place, i, load(from + i) * scale * load(weight + i));
    }

    // Normalised states for a phase: a thread's own where tokens are few, else those of the phase
    // before, which all threads share.
    const Inputs<X>& normalised(int phase, const float* weight) {
        if (!few) return shared;
        static thread_local Inputs<X> own;
        static thread_local std::pair<uint64_t, int> made;
        if (made == std::pair{stamp, phase}) return own;
        own.reset(step.tokens, model.hidden);
        for (int token = 0; token < step.tokens; ++token) normalise(token, weight, own, token);
        made = {stamp, phase};
        return own;
    }

    void project(const Inputs<X>& x, const Matrix& matrix, int from, int to) {
        const int stride = matrix.num_panels() * WIDTH;
        matmul(x, matrix, from, to, [&](int token, int panel, const float* products) {
            std::copy(products, products + WIDTH, &qkv[(size_t)token * stride + panel * WIDTH]);
        });
    }

    void rotate(float* head, int token) const {
        const int half = model.head_size / 2;
        const int64_t rope = step.rope_rows()[token] * half;
        const float *cosine = step.cosine + rope, *sine = step.sine + rope;
        for (int i = 0; i < half; ++i) {
            const float first = head[i], second = head[i + half];
            head[i] = first * cosine[i] - second * sine[i];
            head[i + half] = second * cosine[i] + first * sine[i];
        }
    }

    float* head(int token, int index) const {
        const size_t row = model.layers->qkv.num_panels() * WIDTH;
        return &qkv[token * row + index * model.head_size];
    }

    HeadCache<X> cache(int layer, int kv_head) const {
        void* const* at = step.cache + 2 * (layer * model.kv_heads + kv_head);
        return {{(X*)at[0], model.head_size}, {(X*)at[1], model.head_size}};
    }

    // Rotates a token's queries and key of one K/V head, and stores key and value.
    void place(int layer, const Sequence& sequence, int row, int kv_head) const {
        const int token = sequence.first + row, size = model.head_size;
        const HeadCache<X> to = cache(layer, kv_head);
        const int64_t slot = sequence.slots[sequence.cached + row];
        float* key = head(token, model.heads + kv_head);
        const float* value = head(token, model.heads + model.kv_heads + kv_head);
        rotate(key, token);
        for (int i = 0; i < size; i += LANES) {
            store(to.keys.at(slot) + i, load(key + i));
            store(to.values.at(slot) + i, load(value + i));
        }
        const float scale = 1.0f / std::sqrt((float)size);
        for (int fold = 0; fold < group_size(); ++fold) {
            float* query = head(token, kv_head * group_size() + fold);
            rotate(query, token);
            for (int i = 0; i < size; ++i) query[i] *= scale;
        }
    }

    // Attention of QUERIES queries of one K/V head, `first` on; a row has `group_size` of them.
    void attend_from(int layer, const Sequence& sequence, const std::vector<View>& views,
                     int kv_head, int first, Scores& scores) {
        const int count = sequence.count * group_size(), size = model.head_size;
        const int several = std::min(QUERIES, count - first);
        const float* queries[QUERIES];
        const View* seen[QUERIES];
        float* outs[QUERIES];
        int tokens[QUERIES], indices[QUERIES];
        scores.outs.resize(QUERIES * size);
        for (int q = 0; q < QUERIES; ++q) {
            const int query = first + std::min(q, several - 1), row = query / group_size();
            tokens[q] = sequence.first + row;
            indices[q] = kv_head * group_size() + query % group_size();
            queries[q] = head(tokens[q], indices[q]);
            seen[q] = &views[row];
            outs[q] = &scores.outs[q * size];
        }
        attend(queries, seen, outs, several, cache(layer, kv_head), sequence.slots, size, scores);
        for (int q = 0; q < several; ++q)
            for (int i = 0; i < size; i += LANES)
                attended.put(tokens[q], indices[q] * size + i, load(outs[q] + i));
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
        return (sequence.count * group_size() + QUERIES - 1) / QUERIES * model.kv_heads;
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

    void add_to_states(const Inputs<X>& x, const Matrix& matrix, int from, int to) {
        matmul(x, matrix, from, to, [&](int token, int panel, const float* products) {
            float* out = &states[token * model.hidden + panel * WIDTH];
            const int width = std::min<int>(WIDTH, model.hidden - panel * WIDTH);
            for (int i = 0; i < width; ++i) out[i] += products[i];
        });
    }

    void gate(const Inputs<X>& x, const Matrix& matrix, int from, int to) {
        matmul(x, matrix, from, to, [&](int token, int panel, const float* products) {
            const Floats gate = load(products), up = load(products + LANES);
            gated.put(token, panel * LANES, gate / (1.0f + exponential(-gate)) * up);
        });
    }

    // The wanted rows, normalised: a thread's own where they are few, else those of the phase before.
    const Inputs<X>& last(int phase) {
        if (!few) return wanted;
        static thread_local Inputs<X> own;
        static thread_local std::pair<uint64_t, int> made;
        if (made == std::pair{stamp, phase}) return own;
        own.reset(step.num_rows, model.hidden);
        for (int row = 0; row < step.num_rows; ++row)
            normalise(step.rows()[row], model.norm, own, row);
        made = {stamp, phase};
        return own;
    }

    void score(const Inputs<X>& x, int from, int to) {
        const int64_t vocabulary = model.lm_head.outputs;
        matmul(x, model.lm_head, from, to, [&](int row, int panel, const float* found) {
            const int64_t start = (int64_t)panel * WIDTH;
            const int64_t width = std::min<int64_t>(WIDTH, vocabulary - start);
            std::copy(found, found + width, step.logits + row * vocabulary + start);
        });
    }

    void copy_states(int tap, int from, int to) {
        const int64_t size = model.hidden, start = (int64_t)tap * step.tokens;
        std::copy(&states[from * size], &states[to * size], step.hidden + (start + from) * size);
    }

    void plan() {
        const int tokens = step.tokens;
        int placed = 0, attended = 0;
        for (int i = 0; i < step.num_sequences; ++i) {
            placed += placements(step.sequences()[i]);
            attended += attentions(step.sequences()[i]);
        }
        program.push_back({EMBED, 0, tokens});
        for (int index = 0; index < model.num_layers; ++index) {
            const Layer& layer = model.layers[index];
            if (!few) program.push_back({NORMALISE, index, tokens});
            program.push_back({QKV, index, layer.qkv.num_panels()});
            if (!alone) program.push_back({PLACE, index, placed});
            program.push_back({ATTEND, index, attended});
            program.push_back({DENSE, index, layer.dense.num_panels()});
            if (!few) program.push_back({NORMALISE_AGAIN, index, tokens});
            program.push_back({GATE_UP, index, layer.gate_up.num_panels()});
            program.push_back({DOWN, index, layer.down.num_panels()});
            for (int tap = 0; tap < step.num_taps; ++tap)
                if (step.taps[tap] == index) program.push_back({TAP, tap, tokens});
        }
        if (!step.num_rows) return;
        if (!few) program.push_back({LAST, 0, (int)step.num_rows});
        program.push_back({SCORE, 0, model.lm_head.num_panels()});
    }

    Chunks cut(int phase) const { return {program[phase].pieces, (int)step.threads}; }
    int phases() const override { return program.size(); }
    int chunks(int phase) const override { return cut(phase).count(); }

    void run(int phase, int chunk) override {
        const Chunks chunks = cut(phase);
        const int from = chunks.begin(chunk), to = chunks.begin(chunk + 1);
        const Layer& layer = model.layers[program[phase].layer];
        switch (program[phase].kind) {
            case EMBED:
                for (int token = from; token < to; ++token) embed(token);
                break;
            case NORMALISE:
                for (int t = from; t < to; ++t) normalise(t, layer.input_norm, shared, t);
                break;
            case QKV: return project(normalised(phase, layer.input_norm), layer.qkv, from, to);
            case PLACE: return place_some(program[phase].layer, from, to);
            case ATTEND: return attend_some(program[phase].layer, from, to);
            case DENSE: return add_to_states(attended, layer.dense, from, to);
            case NORMALISE_AGAIN:
                for (int t = from; t < to; ++t) normalise(t, layer.post_norm, shared, t);
                break;
            case GATE_UP: return gate(normalised(phase, layer.post_norm), layer.gate_up, from, to);
            case DOWN: return add_to_states(gated, layer.down, from, to);
            case TAP: return copy_states(program[phase].layer, from, to);
            case LAST:
                for (int r = from; r < to; ++r) normalise(step.rows()[r], model.norm, wanted, r);
                break;
            case SCORE: return score(last(phase), from, to);
        }
    }
};
