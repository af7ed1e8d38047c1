// What a step works on, as Python hands it over: weights, sizes, and one forward's input and output.
#pragma once

#include "attention.h"
#include "exchange.h"
#include "matmul.h"

struct Layer {
    const float* input_norm;
    Matrix qkv[3];  // one of all, or where their types differ those of q, k and v; else no outputs
    Matrix dense;
    const float* post_norm;
    // gate_up: LANES outputs of gate_proj, LANES of up_proj alternately. In a mixture they are those of
    // the expert that all tokens share, or without outputs.
    Matrix gate_up, down;
    const float *q_norm, *k_norm;               // of queries and keys; null: there is none
    const float *attention_norm, *mlp_norm;     // of what is added to the states; or null
    int64_t rotary;                             // which of a step's tables turns queries and keys
    int64_t window;        // tokens that attention sees of a text, the last ones
    Matrix router;         // float32, an output for each expert; without outputs the layer is dense
    const Matrix *experts_gate_up, *experts_down;  // of each expert, as gate_up and down
    const float* correction;  // of each expert: what is added to its chance where it is chosen; or null
    const float* sinks;    // of each head: a score beside those of tokens, without a value; or null
};

// GELU by its tanh form; CLAMPED: SiLU of a gate and a factor that have limits.
enum Activation : int64_t { SILU, GELU, CLAMPED };

struct Model {
    const Layer* layers;
    int64_t num_layers;
    Matrix embedding;  // a token is an output
    const float* norm;
    Matrix lm_head;
    int64_t hidden, intermediate, heads, kv_heads, head_size;
    float epsilon;
    CacheType cache_type;
    Exchange* exchange;  // of a rank of tensor parallelism, whose weights are its own; else null
    float attention_scale;  // of scores
    float embedding_multiplier, residual_multiplier, logits_scaling;
    Activation activation;
    // A head's, whose layer reads [normalised embedding; normalised state]; null: it is a model. A
    // head's rows are the last tokens of its sequences: the others only write keys and values.
    const float* embedding_norm;
    const float* residual_norm;  // of a head's states before they are its residual; or null
    int64_t experts_per_token, expert_intermediate;
    int64_t shares_of_chosen;  // whether a token's experts share 1, rather than what others leave
    int64_t qk_norm_all_heads;  // whether q_norm and k_norm are of all heads together
    float swiglu_alpha, swiglu_limit;  // of CLAMPED
    int64_t scores_are_sigmoids;  // an expert's chance is the sigmoid of its score, else the softmax
    float share_scale;     // of all shares of experts
    int64_t gates_shared;  // whether a router's last output decides what the shared expert counts
};

// Integers lie in one array: ids [tokens], rope_rows [tokens] (each token's row of cosine and sine),
// rows [num_rows] (tokens whose logits are wanted), sequences, and the parents of drafted tokens.
struct Step {
    int64_t tokens, num_rows, num_sequences;
    const int64_t* integers;
    const float *cosine[2], *sine[2];  // [...][head_size / 2]
    void* const* cache;  // keys and values of every layer's K/V heads, each rows of `Cached`
    float* logits;       // [num_rows][vocabulary]
    const int64_t* taps;  // layers whose output is wanted
    int64_t num_taps;
    float* hidden;  // [num_taps][tokens][hidden]
    int64_t threads, vocabulary;
    const float* states_in;  // [tokens][hidden], a head's

    const int64_t* ids() const { return integers; }
    const int64_t* rope_rows() const { return ids() + tokens; }
    const int64_t* rows() const { return rope_rows() + tokens; }
    const Sequence* sequences() const { return (const Sequence*)(rows() + num_rows); }
    const int64_t* parents() const { return (const int64_t*)(sequences() + num_sequences); }
};
