// How likely proposals are: a logistic model of their evidence, which learns at every committed
// token from all that was proposed there, fed or not.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

enum Kind { CONTEXT, EXPECTED, REQUESTS, WINDOW, CHAIN, GRAMMAR, KINDS };  // texts that propose
enum Order { AFTER_TWO, AFTER_ONE, AFTER_ONE_TOO, NEXT_NEXT, OF_HEAD, ORDERS };  // rows that propose
// A text's kind, a row of the tables or of a trained head, or a text and a row that agree.
enum Source { RECYCLING = KINDS, HEAD, AGREEMENT, SOURCES };

constexpr double CERTAIN = 0.998;  // the highest chance
constexpr int DEPTHS = 4, LENGTHS = 8, SHARES = 4, NOISES = 5, RANKS = 5, SCORES = 8;
constexpr int TABLED = RANKS + 2;  // no table has a row, no row has the token, or its rank in one

inline int class_of(double value, const double* bounds, int count) {
    int index = 0;
    while (index < count && value >= bounds[index]) ++index;
    return index;
}

inline int depth_class(int depth) {
    static const double bounds[] = {2, 4, 8};
    return class_of(depth, bounds, 3);
}
inline int length_class(int match) {  // 0: no text continues here
    static const double bounds[] = {1, 2, 3, 4, 6, 9, 16};
    return class_of(match, bounds, 7);
}
inline int share_class(int agreeing, int all) {
    return all == 1 ? 0 : 10 * agreeing >= 7 * all ? 1 : 10 * agreeing >= 4 * all ? 2 : 3;
}
// The noise of a sampled request's token, as e to the minus Gumbel noise.
inline int noise_class(double smallness) {
    static const double bounds[] = {0.2, 0.6, 1.5};
    return 1 + class_of(smallness, bounds, 3);
}
inline int score_class(double score) {
    static const double bounds[] = {0.02, 0.06, 0.15, 0.3, 0.5, 0.7, 0.9};
    return class_of(score, bounds, 7);
}
inline int rank_class(int rank) { return std::min(rank, RANKS - 1); }

// The evidence for a token: its index in each group of the model's weights; -1: none.
enum Group {
    TEXT,         // length of the match x share of its places
    TEXT_KIND,    // kind of text x depth
    TEXT_NOISE,   // noise x length
    ROW,          // sampled x rank x score
    ROW_ORDER,    // order x depth
    AGREED,       // length x score, where text and row propose the same
    TEXT_ALONE,   // a row proposes other tokens: score of its best one x length
    ROW_ALONE,    // a text proposes other tokens: length of its match x score
    HEAD_ROW,     // of a head's token: sampled x rank x score
    HEAD_TABLED,  // what the tables say of it x score
    HEAD_AGREED,  // a text proposes it too: length x score
    HEAD_ALONE,   // a text proposes other tokens: length of its match x score
    BESIDE_HEAD,  // of a token that a head's row lacks: length, 0 without a text x its best score
    GROUPS
};
constexpr int GROUP_SIZES[GROUPS] = {LENGTHS * SHARES,  KINDS * DEPTHS,   NOISES * LENGTHS,
                                     2 * RANKS * SCORES, ORDERS * DEPTHS,  LENGTHS * SCORES,
                                     LENGTHS * SCORES,  LENGTHS * SCORES, 2 * RANKS * SCORES,
                                     TABLED * SCORES,   LENGTHS * SCORES, LENGTHS * SCORES,
                                     LENGTHS * SCORES};
constexpr int start_of(int group) { return group ? start_of(group - 1) + GROUP_SIZES[group - 1] : 0; }
constexpr int WEIGHTS = start_of(GROUPS);

struct Evidence {
    int16_t places[GROUPS];

    Evidence() { std::fill_n(places, GROUPS, -1); }
    void set(Group group, int place) { places[group] = start_of(group) + place; }
};

// Corrections of the values of nodes, by their proposers: steps of a path are not independent, and
// taking the maximum biases estimates upwards.
constexpr int VALUES = 9, CORRECTIONS = VALUES * SOURCES;

inline int correction_class(double value, int source) {
    static const double bounds[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7};
    return class_of(value, bounds, 8) * SOURCES + source;
}

// The initial weights in log odds, near those that SmolLM2 reached on Spec-Bench. Corrections begin
// at 0.
inline void first_weights(double* out) {
    static const double length[LENGTHS] = {0.0, -1.1, -0.7, 0.0, 0.5, 1.1, 1.5, 2.5};
    static const double share[SHARES] = {0.0, 0.2, -0.9, -1.3};
    static const double kind[KINDS][DEPTHS] = {{0.9, 0.7, 0.3, 0.1},
                                               {0.9, 0.8, 0.8, 0.8},
                                               {-0.2, -0.2, 0.0, 0.2},
                                               {-0.8, -0.8, -0.8, -0.8},
                                               {0.0, 0.0, 0.0, 0.0},
                                               {1.0, 1.0, 1.0, 1.0}};
    static const double noise[NOISES] = {0.0, 0.2, -0.2, -0.3, -0.9};
    static const double score[SCORES] = {-3.2, -2.9, -2.2, -1.8, -1.4, -1.0, -0.8, -0.5};
    static const double order[ORDERS][DEPTHS] = {{0.0, 0.2, 0.6, 0.6},
                                                 {-0.1, -0.3, 0.0, 0.0},
                                                 {-0.5, -0.5, -0.5, -0.5},
                                                 {-1.0, -1.0, -1.0, -1.0},
                                                 {0.0, -0.1, -0.3, -0.5}};
    static const double agreed[SCORES] = {2.8, 2.1, 1.6, 1.3, 1.1, 1.0, 1.0, 0.9};  // as the next
    static const double text_alone[SCORES] = {0.0, -0.3, -0.5, -1.0, -1.2, -1.2, -1.3, -1.2};
    static const double row_alone[SCORES] = {0.0, -0.1, -0.2, -0.3, -0.4, -0.6, -0.9, -1.2};
    // The noise ranks first what a weak head takes for too likely.
    static constexpr double HEAD_OVERESTIMATE = 0.5;
    // Of heads: log odds of the middles of scores, a little closer to even.
    static const double head[SCORES] = {-3.8, -2.9, -2.1, -1.3, -0.5, 0.2, 1.0, 2.2};
    static const double tabled[TABLED] = {0.0, -0.7, 0.5, 0.0, -0.2, -0.3, -0.5};
    static const double head_agreed[SCORES] = {3.5, 2.7, 2.0, 1.4, 0.9, 0.7, 0.4, 0.0};
    static const double head_alone[SCORES] = {0.0, -0.1, -0.2, -0.3, -0.4, -0.5, -0.7, -0.9};
    static const double beside_head[SCORES] = {0.0, -0.4, -0.8, -1.2, -1.5, -1.8, -2.1, -2.5};
    double* group[GROUPS];
    for (int index = 0; index < GROUPS; ++index) group[index] = out + start_of(index);
    for (int i = SHARES; i < LENGTHS * SHARES; ++i)
        group[TEXT][i] = length[i / SHARES] + share[i % SHARES];
    std::copy_n(kind[0], KINDS * DEPTHS, group[TEXT_KIND]);
    for (int i = 0; i < NOISES * LENGTHS; ++i) group[TEXT_NOISE][i] = noise[i / LENGTHS];
    for (int i = 0; i < 2 * RANKS * SCORES; ++i) {
        const bool sampled = i >= RANKS * SCORES;
        group[ROW][i] = score[i % SCORES];
        group[HEAD_ROW][i] = head[i % SCORES] - sampled * HEAD_OVERESTIMATE;
    }
    for (int i = 0; i < TABLED * SCORES; ++i) group[HEAD_TABLED][i] = tabled[i / SCORES];
    std::copy_n(order[0], ORDERS * DEPTHS, group[ROW_ORDER]);
    for (int i = 0; i < LENGTHS * SCORES; ++i) {
        group[AGREED][i] = agreed[i % SCORES];
        group[TEXT_ALONE][i] = text_alone[i % SCORES];
        group[ROW_ALONE][i] = row_alone[i % SCORES];
        group[HEAD_AGREED][i] = head_agreed[i % SCORES];
        group[HEAD_ALONE][i] = head_alone[i % SCORES];
        group[BESIDE_HEAD][i] = beside_head[i % SCORES];
    }
}

// A request's own weights are added to those of all requests, which learn at the same time.
class Chances {
public:
    Chances() { first_weights(weights_); }
    explicit Chances(const Chances& shared) : shared_(&shared) {}

    double of(const Evidence& evidence) const {
        double odds = 0.0;
        for (const int place : evidence.places)
            if (place >= 0) odds += weight(place);
        return from(odds);
    }

    double corrected(double value, int correction) const {
        const double change = std::min(weight(WEIGHTS + correction), 700.0);  // no infinite odds
        const double odds = value / (1.0 - value) * std::exp(change);
        return odds / (1.0 + odds);
    }

    void learn(const Evidence& evidence, bool hit, double rate) {
        const double error = (double)hit - of(evidence);
        for (const int place : evidence.places)
            if (place >= 0) change(place, error, rate);
    }

    // Args: the outcome (0 or 1) less the value that was corrected.
    void correct(int correction, double error, double rate) {
        change(WEIGHTS + correction, error, rate);
    }

private:
    static double from(double odds) {
        return std::max(1e-4, std::min(CERTAIN, 1.0 / (1.0 + std::exp(-odds))));
    }

    double weight(int place) const {
        return shared_ ? shared_->weights_[place] + weights_[place] : weights_[place];
    }

    void change(int place, double error, double rate) {
        sums_[place] += error * error;
        weights_[place] += rate * error / std::sqrt(1.0 + sums_[place]);
    }

    const Chances* shared_ = nullptr;
    double weights_[WEIGHTS + CORRECTIONS] = {}, sums_[WEIGHTS + CORRECTIONS] = {};
};
