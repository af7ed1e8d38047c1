// The Llama forward of one step on CPUs: all fed tokens of all sequences, one call, no allocation
// once buffers have grown. Threads share the outputs of every product and the heads of attention.
#include <omp.h>

#include <cmath>
#include <vector>

#include "attention.h"
#include "choice.h"
#include "matmul.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

struct Layer {
    const float* input_norm;
    Matrix qkv, dense;
    const float* post_norm;
    Matrix gate_up, down;  // gate_up: LANES outputs of gate_proj, LANES of up_proj in turns
};

struct Model {
    const Layer* layers;
    int64_t num_layers;
    const void* embedding;  // [vocabulary][hidden]
    Type embedding_type;
    const float* norm;
    Matrix lm_head;
    int64_t hidden, intermediate, heads, kv_heads, head_size;
    float epsilon;
    int32_t bfloat16;  // activations and cache are bfloat16, else float32
};

// Integers lie in one array: ids [tokens], turns [tokens] (each token's row of cosine and sine), rows
// [num_rows] (tokens whose logits are wanted), sequences, and the parents of drafted tokens.
struct Step {
    int64_t tokens, num_rows, num_sequences;
    const int64_t* integers;
    const float *cosine, *sine;  // [...][head_size / 2]
    void* const* cache;  // keys and values of every layer's K/V heads, each [slots][head_size]
    float* logits;       // [num_rows][vocabulary]
    int64_t threads;

    const int64_t* ids() const { return integers; }
    const int64_t* turns() const { return ids() + tokens; }
    const int64_t* rows() const { return turns() + tokens; }
    const Sequence* sequences() const { return (const Sequence*)(rows() + num_rows); }
    const int64_t* parents() const { return (const int64_t*)(sequences() + num_sequences); }
};

EXPORTED int64_t trtla_lanes() { return LANES; }
EXPORTED int64_t trtla_has_float16() { return HAS_FLOAT16; }
EXPORTED int64_t trtla_has_bfloat16_products() { return HAS_BFLOAT16_PRODUCTS; }

namespace {

constexpr int NORM_TWICE = 16384;  // elements up to which each thread normalises for itself

// A thread's share of `count` pieces of work.
struct Share {
    int from, to;
    Share(int count) {
        const int threads = omp_get_num_threads(), own = omp_get_thread_num();
        from = (int64_t)count * own / threads;
        to = (int64_t)count * (own + 1) / threads;
    }
};

template <class X>
struct Forward {
    const Model& model;
    const Step& step;
    std::vector<float>&states, &qkv;
    std::vector<std::vector<View>> seen;
    Inputs<X>&attended, &gated;

    int folds() const { return model.heads / model.kv_heads; }
    int q_size() const { return model.heads * model.head_size; }
    int qkv_size() const { return (model.heads + 2 * model.kv_heads) * model.head_size; }

    void embed(int token) {
        float* out = &states[token * model.hidden];
        const int64_t from = step.ids()[token] * model.hidden;
        for (int i = 0; i < model.hidden; ++i) out[i] = embedding(from + i);
    }

    float embedding(int64_t at) const {
        if (model.embedding_type == FLOAT32) return ((const float*)model.embedding)[at];
        uint16_t lanes[LANES] = {((const uint16_t*)model.embedding)[at]};
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

    // Normalised states of all tokens: a thread's own when there are few, else shared.
    const Inputs<X>& normalised(const float* weight, Inputs<X>& own, Inputs<X>& shared) {
        const bool few = step.tokens * model.hidden <= NORM_TWICE;
        Inputs<X>& out = few ? own : shared;
        if (few) out.reset(step.tokens, model.hidden);
        const Share share(step.tokens);
        for (int token = few ? 0 : share.from; token < (few ? step.tokens : share.to); ++token)
            normalise(token, weight, out, token);
        if (!few) {
#pragma omp barrier
        }
        return out;
    }

    void project(const Inputs<X>& x, const Matrix& matrix) {
        const Share share(matrix.num_panels());
        const int stride = matrix.num_panels() * WIDTH;
        matmul(x, matrix, share.from, share.to, [&](int token, int panel, const float* products) {
            std::copy(products, products + WIDTH, &qkv[(size_t)token * stride + panel * WIDTH]);
        });
    }

    void rotate(float* head, int token) const {
        const int half = model.head_size / 2;
        const int64_t turn = step.turns()[token] * half;
        const float *cosine = step.cosine + turn, *sine = step.sine + turn;
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
        for (int fold = 0; fold < folds(); ++fold) {
            float* query = head(token, kv_head * folds() + fold);
            rotate(query, token);
            for (int i = 0; i < size; ++i) query[i] *= scale;
        }
    }

    // Attention of QUERIES queries of one K/V head, `first` on; a row has `folds` of them.
    void attend_from(int layer, const Sequence& sequence, const std::vector<View>& views,
                     int kv_head, int first, Scores& scores) {
        const int count = sequence.count * folds(), size = model.head_size;
        const int several = std::min(QUERIES, count - first);
        const float* queries[QUERIES];
        const View* seen[QUERIES];
        float* outs[QUERIES];
        int tokens[QUERIES], indices[QUERIES];
        scores.outs.resize(QUERIES * size);
        for (int q = 0; q < QUERIES; ++q) {
            const int query = first + std::min(q, several - 1), row = query / folds();
            tokens[q] = sequence.first + row;
            indices[q] = kv_head * folds() + query % folds();
            queries[q] = head(tokens[q], indices[q]);
            seen[q] = &views[row];
            outs[q] = &scores.outs[q * size];
        }
        attend(queries, seen, outs, several, cache(layer, kv_head), sequence.slots, size, scores);
        for (int q = 0; q < several; ++q)
            for (int i = 0; i < size; i += LANES)
                attended.put(tokens[q], indices[q] * size + i, load(outs[q] + i));
    }

    // All sequences and heads; threads take pieces in turns, since later rows see more.
    void attention(int layer, Scores& scores) {
        const int threads = omp_get_num_threads(), kv_heads = model.kv_heads;
        int turn = omp_get_thread_num();
        for (int i = 0; i < step.num_sequences; ++i) {
            const Sequence& sequence = step.sequences()[i];
            for (; turn < sequence.count * kv_heads; turn += threads)
                place(layer, sequence, turn / kv_heads, turn % kv_heads);
            turn -= sequence.count * kv_heads;
        }
#pragma omp barrier
        turn = omp_get_thread_num();
        for (int i = 0; i < step.num_sequences; ++i) {
            const Sequence& sequence = step.sequences()[i];
            const int pieces = (sequence.count * folds() + QUERIES - 1) / QUERIES;
            for (; turn < pieces * kv_heads; turn += threads)
                attend_from(layer, sequence, seen[i], turn / pieces, turn % pieces * QUERIES,
                            scores);
            turn -= pieces * kv_heads;
        }
    }

    void add_to_states(const Inputs<X>& x, const Matrix& matrix) {
        const Share share(matrix.num_panels());
        matmul(x, matrix, share.from, share.to, [&](int token, int panel, const float* products) {
            float* out = &states[token * model.hidden + panel * WIDTH];
            const int width = std::min<int>(WIDTH, model.hidden - panel * WIDTH);
            for (int i = 0; i < width; ++i) out[i] += products[i];
        });
    }

    void gate(const Inputs<X>& x, const Matrix& matrix) {
        const Share share(matrix.num_panels());
        matmul(x, matrix, share.from, share.to, [&](int token, int panel, const float* products) {
            const Floats gate = load(products), up = load(products + LANES);
            gated.put(token, panel * LANES, gate / (1.0f + exponential(-gate)) * up);
        });
    }

    void score(const Inputs<X>& x) {
        const Share share(model.lm_head.num_panels());
        const int64_t vocabulary = model.lm_head.outputs;
        matmul(x, model.lm_head, share.from, share.to, [&](int row, int panel, const float* found) {
            const int64_t start = (int64_t)panel * WIDTH;
            const int64_t width = std::min<int64_t>(WIDTH, vocabulary - start);
            std::copy(found, found + width, step.logits + row * vocabulary + start);
        });
    }

    void layer(int index, Inputs<X>& own, Inputs<X>& shared, Scores& scores) {
        const Layer& layer = model.layers[index];
        project(normalised(layer.input_norm, own, shared), layer.qkv);
#pragma omp barrier
        attention(index, scores);
#pragma omp barrier
        add_to_states(attended, layer.dense);
#pragma omp barrier
        gate(normalised(layer.post_norm, own, shared), layer.gate_up);
#pragma omp barrier
        add_to_states(gated, layer.down);
#pragma omp barrier
    }
};

template <class X>
void forward(const Model& model, const Step& step) {
    static thread_local std::vector<float> states, qkv;
    static thread_local Inputs<X> attended, gated, shared, wanted;
    Forward<X> run{model, step, states, qkv, {}, attended, gated};
    const size_t tokens = step.tokens;
    const size_t qkv_size = (run.qkv_size() + WIDTH - 1) / WIDTH * WIDTH;
    if (states.size() < tokens * model.hidden) states.resize(tokens * model.hidden);
    if (qkv.size() < tokens * qkv_size) qkv.resize(tokens * qkv_size);
    attended.reset(tokens, run.q_size());
    gated.reset(tokens, model.intermediate);
    shared.reset(tokens, model.hidden);
    wanted.reset(step.num_rows, model.hidden);
    for (int i = 0; i < step.num_sequences; ++i)
        run.seen.push_back(views(step.sequences()[i], step.parents()));
    Inputs<X>&together = shared, &last = wanted;
#pragma omp parallel num_threads(step.threads)
    {
        static thread_local Inputs<X> own;
        static thread_local Scores scores;
        const Share mine(tokens);
        for (int token = mine.from; token < mine.to; ++token) run.embed(token);
#pragma omp barrier
        for (int index = 0; index < model.num_layers; ++index)
            run.layer(index, own, together, scores);
        const Share rows(step.num_rows);
        for (int row = rows.from; row < rows.to; ++row)
            run.normalise(step.rows()[row], model.norm, last, row);
#pragma omp barrier
        run.score(last);
    }
}

}  // namespace

EXPORTED void trtla_forward(const Model* model, const Step* step) {
    if (model->bfloat16)
        forward<BFloat16>(*model, *step);
    else
        forward<float>(*model, *step);
}

EXPORTED int64_t trtla_most_probable(const float* logits, int64_t size) {
    return most_probable(logits, size);
}

EXPORTED int64_t trtla_draw(const float* logits, int64_t size, double temperature, int64_t top_k,
                            double top_p, double noise) {
    return draw(logits, size, temperature, top_k, top_p, noise);
}
