// A draw from one row of logits: of the tokens that the filters leave, the one whose log probability
// and Gumbel noise add up to most; -1 where the logits are no answer, as in choice.h.
//
// One look at the row finds the largest logit of each block of tokens. From those follow the tokens
// that top-k, top-p or min-p can leave, mostly a few hundred; without a filter every token is in the
// race, on all threads.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <vector>

#include "choice.h"
#include "noise.h"
#include "team.h"

typedef double Doubles __attribute__((vector_size(LANES * 4)));
typedef uint64_t Longs __attribute__((vector_size(LANES * 4)));
constexpr int HALF = LANES / 2;

constexpr struct Factorials {
    double inverse[14]{1.0};
    constexpr Factorials() {
        for (int n = 1; n < 14; ++n) inverse[n] = inverse[n - 1] / n;
    }
    constexpr double operator[](int n) const { return inverse[n]; }
} FACTORIALS;

// e^x within 2^-52 for x up to 0; 0 below -708.
inline Doubles exponential(Doubles x) {
    constexpr double SHIFT = 0x1.8p52;  // leaves whole numbers, in the lowest bits
    const Doubles inside = x > -708.0 ? x : Doubles{} - 708.0;
    const Doubles shifted = inside * 0x1.71547652b82fep0 + SHIFT;
    const Doubles power = shifted - SHIFT;
    const Doubles rest = inside - power * 0x1.62e42fefa39efp-1 - power * 0x1.abc9e3b39803fp-56;
    Doubles sum = Doubles{} + FACTORIALS[13];
    for (int degree = 12; degree >= 0; --degree) sum = sum * rest + FACTORIALS[degree];
    const Doubles result = sum * (Doubles)(((Longs)shifted + 1023) << 52);
    return x > -708.0 ? result : Doubles{};
}

// For LANES tokens from `first` on what their numbers lack of 1, to 31 bits, and never more.
inline Floats missing(uint64_t position, int64_t first) {
    Longs steps;
    for (int i = 0; i < HALF; ++i) steps[i] = i * TOKEN_STEP;
    const uint64_t start = position * POSITION_STEP + first * TOKEN_STEP;
    const Longs low = mixed(steps + start), high = mixed(steps + (start + HALF * TOKEN_STEP));
    return to_floats((Ints)(~upper_halves((Bits)low, (Bits)high) >> 1)) * 0x1p-31f;
}

// What a row's token is drawn by: the settings of these names, each as a double.
#define TRTLA_FILTERS(EACH) EACH(temperature) EACH(top_k) EACH(top_p) EACH(min_p)

struct Filters {
#define TRTLA_FIELD(name) double name;
    TRTLA_FILTERS(TRTLA_FIELD)
#undef TRTLA_FIELD
};

// The search for the token whose log probability and Gumbel noise add up to most.
struct Race {
    const float* logits;
    double top, temperature, floor;  // below the floor, log probabilities relative to the top lose
    uint64_t position;
    int64_t best;
    double most;
    float reach;

    Race(const float* logits, int64_t first, double temperature, double floor, uint64_t position)
        : logits(logits), top(logits[first]), temperature(temperature), floor(floor),
          position(position), best(first), most(gumbel(number(position, first))) {
        win(first, most);
    }

    void win(int64_t token, double own) {
        best = token, most = own;
        reach = 1.05f * std::exp((float)-most);  // rough weights are within 3 %
    }

    void enter(int64_t token) {
        const double relative = (logits[token] - top) / temperature;
        if (relative < floor) return;
        join(token, relative + gumbel(number(position, token)));
    }

    void join(int64_t token, double own) {
        if (own > most || (own == most && token < best)) win(token, own);
    }

    // Tokens [start, end) of logits from `least` on, without logarithms for those that cannot win, as
    // -log u >= 1 - u, and without noise for those that cannot win with any.
    void enter_all(int64_t start, int64_t end, float least) {
        // Finite, so that equal logits stay equal; smaller is safe, as it rules out fewer tokens.
        const float inverse = std::min<double>(1.0 / temperature, FLT_MAX);
        for (; start + LANES <= end; start += LANES) {
            const Floats some = load(logits + start);
            // Finite, as the inverse may be 0.
            const Floats relative = larger(some - (float)top, Floats{} - FLT_MAX);
            const Floats enough = rough_exponential(relative * inverse) * reach;
            const Ints open = (enough > 0x1p-53f) & (some >= least);
            if (!any(open)) continue;
            const Ints close = open & (missing(position, start) <= enough);
            if (!any(close)) continue;
            for (int i = 0; i < LANES; ++i)
                if (close[i]) enter(start + i);
        }
        for (; start < end; ++start)
            if (logits[start] >= least) enter(start);
    }
};

class Draw : Job {
public:
    Draw(const float* logits, int64_t size, const Filters& filters, double noise)
        : logits_(logits), size_(size), filters_(filters), position_(noise * 0x1p53),
          largest_((size + BLOCK - 1) / BLOCK), pieces_((largest_.size() + PIECE - 1) / PIECE) {}

    int64_t token(int64_t threads) {
        // All threads or none: a team of another size would send some to sleep before each forward.
        Team::shared().run(*this, pieces_.size() > 1 ? threads : 1);
        if (!answers()) return -1;
        if (filters_.top_p < 1.0) {
            Race race = new_race();
            for (const int64_t token : nucleus(least_of_top_k())) race.enter(token);
            return race.best;
        }
        return whole() ? winner() : best_from(std::max(least_of_top_k(), least_of_min_p()));
    }

private:
    static constexpr int64_t BLOCK = 64, PIECE = 128;  // tokens of a block, blocks of a thread's work
    static constexpr int64_t FEW = 64;                 // blocks that first hold a nucleus

    struct Piece {
        float top;
        bool sound;  // below infinity, which NaN is not
        double weight, most;
        int64_t best;
    };

    // A second look at every token is for the sum of their weights, or for the race of all.
    int phases() const override { return needs_weights() || whole() ? 2 : 1; }
    int chunks(int) const override { return (int)pieces_.size(); }

    void run(int phase, int at) override {
        Piece& piece = pieces_[at];
        const int64_t first = at * PIECE, last = std::min<int64_t>(first + PIECE, largest_.size());
        if (phase == 0) return look(piece, first, last);
        if (!answers()) return;
        const int64_t start = first * BLOCK, end = std::min(last * BLOCK, size_);
        if (needs_weights()) {
            piece.weight = weight(start, end);
            return;
        }
        Race race = new_race();
        race.enter_all(start, end, -INFINITY);
        piece.most = race.most, piece.best = race.best;
    }

    void look(Piece& piece, int64_t first, int64_t last) {
        Ints sound = Ints{} - 1;
        piece.top = -INFINITY, piece.sound = true;
        for (int64_t block = first; block < last; ++block) {
            Floats tops = Floats{} - INFINITY;
            int64_t i = block * BLOCK;
            const int64_t end = std::min(i + BLOCK, size_);
            for (; i + LANES <= end; i += LANES) {
                const Floats some = load(logits_ + i);
                tops = larger(tops, some);
                sound &= some < INFINITY;
            }
            float top = largest(tops);
            for (; i < end; ++i) {
                top = std::max(top, logits_[i]);
                piece.sound &= logits_[i] < INFINITY;
            }
            largest_[block] = top;
            piece.top = std::max(piece.top, top);
        }
        for (int lane = 0; lane < LANES; ++lane) piece.sound &= sound[lane] != 0;
    }

    bool has_top_k() const { return filters_.top_k > 0 && filters_.top_k < size_; }
    bool needs_weights() const { return !has_top_k() && filters_.top_p < 1.0; }
    bool whole() const { return !has_top_k() && filters_.top_p >= 1.0 && filters_.min_p <= 0.0; }

    bool answers() const {
        bool sound = true;
        for (const Piece& piece : pieces_) sound &= piece.sound;
        return sound && top() > -INFINITY;
    }

    float top() const {
        float top = -INFINITY;
        for (const Piece& piece : pieces_) top = std::max(top, piece.top);
        return top;
    }

    Race new_race() const {
        const float top = this->top();
        const int64_t block = std::find(largest_.begin(), largest_.end(), top) - largest_.begin();
        const int64_t first = std::find(logits_ + block * BLOCK, logits_ + size_, top) - logits_;
        return Race(logits_, first, filters_.temperature, std::log(filters_.min_p), position_);
    }

    int64_t winner() const {
        Race race = new_race();
        for (const Piece& piece : pieces_) race.join(piece.best, piece.most);
        return race.best;
    }

    int64_t best_from(float least) const {
        Race race = new_race();
        for (size_t block = 0; block < largest_.size(); ++block)
            if (largest_[block] >= least)
                race.enter_all(block * BLOCK, std::min<int64_t>((block + 1) * BLOCK, size_), least);
        return race.best;
    }

    // The sum of e^((logit - top) / temperature) over tokens [start, end).
    double weight(int64_t start, int64_t end) const {
        typedef float HalfFloats __attribute__((vector_size(LANES * 2)));
        // Finite, so that equal logits stay equal.
        const double inverse = std::min(1.0 / filters_.temperature, DBL_MAX), top = this->top();
        Doubles sums[2]{};
        for (; start + LANES <= end; start += LANES)
            for (int part = 0; part < 2; ++part) {
                const auto some = load_as<HalfFloats>(logits_ + start + part * HALF);
                const Doubles relative = __builtin_convertvector(some, Doubles) - top;
                sums[part] += exponential(relative * inverse);
            }
        double sum = 0.0;
        for (int lane = 0; lane < HALF; ++lane) sum += sums[0][lane] + sums[1][lane];
        for (; start < end; ++start) sum += share(start, top);
        return sum;
    }

    double share(int64_t token, double top) const {
        return std::exp((logits_[token] - top) / filters_.temperature);
    }

    // A logit that at least `count` tokens reach, mostly few more; -infinity if that is not known.
    float reached_by(int64_t count) const {
        if (count > (int64_t)largest_.size()) return -INFINITY;
        std::vector<float> ordered(largest_);
        std::nth_element(ordered.begin(), ordered.begin() + count - 1, ordered.end(),
                         std::greater<float>());
        return ordered[count - 1];
    }

    // The tokens of logits from `least` on, by their ids.
    std::vector<int64_t> tokens_from(float least) const {
        std::vector<int64_t> tokens;
        for (size_t block = 0; block < largest_.size(); ++block) {
            if (largest_[block] < least) continue;
            const int64_t end = std::min<int64_t>((block + 1) * BLOCK, size_);
            for (int64_t token = block * BLOCK; token < end; ++token)
                if (logits_[token] >= least) tokens.push_back(token);
        }
        return tokens;
    }

    // The top_k-th largest logit: those equal to it stay as well.
    float least_of_top_k() const {
        if (!has_top_k()) return -INFINITY;
        const int64_t top_k = filters_.top_k;
        std::vector<float> ordered;
        for (const int64_t token : tokens_from(reached_by(top_k))) ordered.push_back(logits_[token]);
        std::nth_element(ordered.begin(), ordered.begin() + top_k - 1, ordered.end(),
                         std::greater<float>());
        return ordered[top_k - 1];
    }

    // A logit below which min-p leaves none: a little low, as `Race` knows exactly.
    float least_of_min_p() const {
        const double top = this->top(), down = filters_.temperature * std::log(filters_.min_p);
        return top + down - 1e-6 * (std::abs(top) + std::abs(down));
    }

    // The smallest set of most probable tokens, logits of at least `least`, whose share reaches top_p;
    // ordered by their logits, which a high temperature makes equally probable, then by their ids.
    std::vector<int64_t> nucleus(float least) const {
        const double top = this->top();
        double total = 0.0;
        if (needs_weights())
            for (const Piece& piece : pieces_) total += piece.weight;
        else
            for (const int64_t token : tokens_from(least)) total += share(token, top);
        for (int64_t count = FEW;; count *= 8) {
            const float from = std::max(least, reached_by(count));
            std::vector<int64_t> tokens = tokens_from(from);
            std::stable_sort(tokens.begin(), tokens.end(),
                             [&](int64_t a, int64_t b) { return logits_[a] > logits_[b]; });
            double before = 0.0;
            size_t kept = 0;
            while (kept < tokens.size() && before / total < filters_.top_p)
                before += share(tokens[kept++], top);
            tokens.resize(kept);
            if (from == least || before / total >= filters_.top_p) return tokens;
        }
    }

    const float* logits_;
    int64_t size_;
    const Filters& filters_;
    uint64_t position_;
    std::vector<float> largest_;
    std::vector<Piece> pieces_;
};
