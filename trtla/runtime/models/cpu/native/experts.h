// A layer's experts: which of them each token of a step uses, and the rows that each one computes.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "matmul.h"

// How scores of experts become choices and shares.
struct Choice {
    bool sigmoid, of_chosen;  // chances by sigmoid, else softmax; shares are those of the chosen ones
    float scale;
    const float* correction;  // what is added to a chance where it is chosen; or null
};

constexpr float LEAST = 1e-20f;  // of chances that are divided by: corrections may choose none with more

// The rows of all experts together, an expert's own in the order of their tokens: each of a token's
// experts has one. Kept from step to step.
struct Routing {
    int tokens = 0, experts = 0, each = 0;  // `each`: experts of a token
    int outputs = 0;                        // of the router: a score of each expert, and perhaps a gate
    std::vector<float> scores, shares;      // [tokens][outputs], [tokens][each]
    std::vector<float> shared;              // [tokens][hidden], of the expert that all share
    Operand shared_inputs;                  // of its second product
    std::vector<int> chosen, places;        // [tokens][each]: experts, best first, and their rows
    std::vector<int> used, first;           // experts with rows, and the first row of each
    std::vector<int> token_of, slot_of;     // of rows: the token, and the place of its expert in `used`
    std::vector<Operand> inputs, between;   // of the used experts: of their first product and second
    std::vector<float> gated, parts;        // [rows][width], [rows][hidden]

    int rows() const { return tokens * each; }
    int slots() const { return used.size(); }
    int row_in_expert(int row) const { return row - first[slot_of[row]]; }
    int rows_of(int slot) const { return first[slot + 1] - first[slot]; }

    void fit(int new_tokens, int new_outputs, int gates, int new_each, int64_t width, int64_t hidden) {
        tokens = new_tokens, outputs = new_outputs, experts = outputs - gates, each = new_each;
        grow(scores, (size_t)tokens * outputs);
        grow(shared, tokens * hidden);
        for (auto* list : {&chosen, &places, &token_of, &slot_of}) grow(*list, rows());
        grow(shares, rows());
        grow(gated, rows() * width);
        grow(parts, rows() * hidden);
        grow(inputs, experts);
        grow(between, experts);
    }

    // Takes all tokens' scores.
    void choose(const Choice& choice) {
        for (int token = 0; token < tokens; ++token) {
            const float* score = &scores[(size_t)token * outputs];
            const float top = *std::max_element(score, score + experts);
            pick(choice.correction ? corrected(choice, score, top) : score, &chosen[token * each]);
            share(choice, score, top, token * each);
        }
        arrange();
    }

    // What the expert that all share counts for a token.
    float share_of_shared(int token) const {
        return outputs == experts ? 1.0f : sigmoid(scores[(size_t)token * outputs + experts]);
    }

private:
    template <class T>
    static void grow(std::vector<T>& numbers, size_t size) {
        if (numbers.size() < size) numbers.resize(size);
    }

    // The best experts, best first; of equal ones those of lower numbers.
    void pick(const float* score, int* best) const {
        for (int expert = 0; expert < experts; ++expert) {
            int place = std::min(expert, each);
            for (; place && score[best[place - 1]] < score[expert]; --place)
                if (place < each) best[place] = best[place - 1];
            if (place < each) best[place] = expert;
        }
    }

    static float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

    // An expert's chance, which softmax divides by those of all.
    static float chance(const Choice& choice, float score, float top) {
        return choice.sigmoid ? sigmoid(score) : std::exp(score - top);
    }
    float chances_of_all(const Choice& choice, const float* score, float top) const {
        float total = 0.0f;
        for (int expert = 0; expert < experts; ++expert) total += chance(choice, score[expert], top);
        return choice.sigmoid ? 1.0f : total;
    }

    const float* corrected(const Choice& choice, const float* score, float top) {
        const float all = chances_of_all(choice, score, top);
        ratings_.resize(experts);
        for (int expert = 0; expert < experts; ++expert)
            ratings_[expert] = chance(choice, score[expert], top) / all + choice.correction[expert];
        return ratings_.data();
    }

    // NaN where any score is, as that of an expert that is not chosen says nothing of the others, and where
    // the best is infinite: an exponential has no share of that.
    void share(const Choice& choice, const float* score, float top, int from) {
        float total = 0.0f;
        for (int place = from; place < from + each; ++place)
            total += shares[place] = chance(choice, score[chosen[place]], top);
        if (!choice.of_chosen) total = chances_of_all(choice, score, top);
        if (std::any_of(score, score + experts, [](float one) { return one != one; })) total = NAN;
        if (!choice.sigmoid && !std::isfinite(top)) total = NAN;
        for (int place = from; place < from + each; ++place)
            shares[place] *= choice.scale / std::max(total, LEAST);
    }

    void arrange() {
        std::vector<int>& next = counts_;  // of each expert: its rows, then its next row
        next.assign(experts, 0);
        for (int place = 0; place < rows(); ++place) ++next[chosen[place]];
        used.clear();
        first.assign(1, 0);
        for (int expert = 0; expert < experts; ++expert) {
            const int rows = next[expert], start = first.back();
            next[expert] = start;
            if (!rows) continue;
            std::fill_n(&slot_of[start], rows, (int)used.size());
            used.push_back(expert);
            first.push_back(start + rows);
        }
        for (int place = 0; place < rows(); ++place) {
            const int row = places[place] = next[chosen[place]]++;
            token_of[row] = place / each;
        }
    }

    std::vector<int> counts_;
    std::vector<float> ratings_;
};
