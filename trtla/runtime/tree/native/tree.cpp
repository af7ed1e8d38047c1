// The library's calls: candidate trees of all requests in a step, and the nodes worth feeding.
#include <queue>
#include <tuple>

#include "sequence.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

struct Plan {
    int64_t count;                // of sequences
    Sequence** sequences;
    const int64_t* most_nodes;    // of each sequence
    const int64_t* most_depth;
    int64_t most;                 // nodes in all
    int64_t knots;                // 0: feed all that fit
    const int64_t* knot_nodes;    // from 0 to `most`
    const double* knot_seconds;   // of a step with these nodes, linear between knots
    double rate;                  // average tokens a second
    double margin;                // gain required beyond a node's cost, as a share of its value
    double least;                 // chance below which nodes are ignored
    double lesson;                // later worth of a fed node's row in tokens, right or wrong
    int64_t* sizes;               // out: nodes of each sequence
    int32_t* tokens;              // out: those of the first sequence, of the second, ...
    int32_t* parents;             // in the sequence's draft, whose node 0 is the input token
    float* values;
    int32_t* sources;
};

namespace {

// A proposal at a node, and the chance that the better ones there are wrong.
struct Offer {
    double value, product, left;
    int64_t sequence;
    int32_t node, which;

    // Ties go to the first sequence, and there to the older node.
    bool operator<(const Offer& other) const {
        return value != other.value ? value < other.value
                                    : std::tie(other.sequence, other.node, other.which) <
                                          std::tie(sequence, node, which);
    }
};

struct Taken {
    int64_t sequence;
    int32_t node;
};

class Choice {
public:
    explicit Choice(const Plan& plan) : plan_(plan), sizes_(plan.count) {}

    void run() {
        for (int64_t index = 0; index < plan_.count; ++index) {
            plan_.sequences[index]->start();
            if (plan_.most_nodes[index] > 0) offer_first(index, 0);
        }
        while (!offers_.empty() && (int64_t)taken_.size() < plan_.most) take();
        cut();
        write();
    }

private:
    void offer_first(int64_t index, int32_t at) {
        Sequence& sequence = *plan_.sequences[index];
        if (sequence.nodes()[at].depth >= plan_.most_depth[index]) return;
        sequence.expand(at);
        offer(index, at, 0, 1.0, sequence.nodes()[at].value);
    }

    // Args: the chance that the better ones are wrong, and the value of the next better node.
    void offer(int64_t index, int32_t at, int32_t which, double left, double most) {
        const Node& node = plan_.sequences[index]->nodes()[at];
        if (which >= (int32_t)node.proposals.size()) return;
        const double product = node.product * node.proposals[which].chance * left;
        const int source = node.proposals[which].source();
        const double value = std::min(most, plan_.sequences[index]->corrected(product, source));
        if (value >= plan_.least) offers_.push({value, product, left, index, at, which});
    }

    void take() {
        const Offer best = offers_.top();
        offers_.pop();
        if (sizes_[best.sequence] >= plan_.most_nodes[best.sequence]) return;
        ++sizes_[best.sequence];
        Sequence& sequence = *plan_.sequences[best.sequence];
        const int32_t child = sequence.child(best.node, best.which, best.product, best.value);
        taken_.push_back({best.sequence, child});
        const double chance = sequence.nodes()[best.node].proposals[best.which].chance;
        offer(best.sequence, best.node, best.which + 1, best.left * (1.0 - chance), best.value);
        offer_first(best.sequence, child);
    }

    // Keep the prefix of the nodes, best first, that is worth the most.
    void cut() {
        if (!plan_.knots) return;
        double value = 0.0, best = 0.0;
        size_t kept = 0;
        int64_t knot = 1;
        for (size_t count = 1; count <= taken_.size(); ++count) {
            const Taken& last = taken_[count - 1];
            value += plan_.sequences[last.sequence]->nodes()[last.node].value + plan_.lesson;
            while (knot + 1 < plan_.knots && plan_.knot_nodes[knot] < (int64_t)count) ++knot;
            const double cost = plan_.rate * (seconds(count, knot) - plan_.knot_seconds[0]);
            const double worth = value * (1.0 - plan_.margin) - cost;
            if (worth > best) best = worth, kept = count;
        }
        taken_.resize(kept);
    }

    // Interpolate a step's seconds between the knot before `knot` and that one.
    double seconds(int64_t nodes, int64_t knot) const {
        if (plan_.knots == 1) return plan_.knot_seconds[0];
        const double left = plan_.knot_nodes[knot - 1], low = plan_.knot_seconds[knot - 1];
        const double right = plan_.knot_nodes[knot], high = plan_.knot_seconds[knot];
        return low + (high - low) * (nodes - left) / (right - left);
    }

    void write() {
        int64_t place = 0;
        for (int64_t index = 0; index < plan_.count; ++index) {
            Sequence& sequence = *plan_.sequences[index];
            std::vector<Node>& nodes = sequence.nodes();
            nodes[0].place = 0;
            int32_t size = 0;
            for (const Taken& taken : taken_) {
                if (taken.sequence != index) continue;
                Node& node = nodes[taken.node];
                node.place = ++size;
                plan_.tokens[place] = node.token;
                plan_.parents[place] = nodes[node.parent].place;
                plan_.values[place] = node.value;
                plan_.sources[place++] = node.source;
            }
            plan_.sizes[index] = size;
        }
    }

    const Plan& plan_;
    std::priority_queue<Offer> offers_;
    std::vector<Taken> taken_;
    std::vector<int64_t> sizes_;
};

}  // namespace

EXPORTED Shared* tree_shared(int64_t vocab, int64_t most_tokens) {
    return new Shared(vocab, most_tokens);
}
EXPORTED void tree_free_shared(Shared* shared) { delete shared; }

EXPORTED void tree_add_shared_text(Shared* shared, const int32_t* tokens, int64_t count,
                                   int64_t kept) {
    shared->texts.add(tokens, count, kept);
}
// Point `tokens` at the shared texts, a separator before each, and return their size.
EXPORTED int64_t tree_shared_texts(Shared* shared, const int32_t** tokens) {
    *tokens = shared->texts.index().tokens().data();
    return shared->texts.index().tokens().size();
}

EXPORTED Sequence* tree_sequence(Shared* shared, const Settings* settings, const int32_t* text,
                                 int64_t count) {
    Sequence* sequence = new Sequence(*shared, *settings);
    for (int64_t place = 0; place < count; ++place) sequence->append(text[place]);
    return sequence;
}
EXPORTED void tree_free_sequence(Sequence* sequence) { delete sequence; }

EXPORTED void tree_add_text(Sequence* sequence, int64_t kind, const int32_t* tokens,
                            int64_t count) {
    sequence->add_text(kind, tokens, count);
}
EXPORTED void tree_set_chains(Sequence* sequence, const int32_t* tokens, int64_t count) {
    sequence->set_chains(tokens, count);
}

// `parent`: the row above, -1 of the first; `token`: the token below it, -1 if the row is of all.
EXPORTED void tree_add_head_row(Sequence* sequence, int64_t parent, int64_t token,
                                const int32_t* ids, const float* logs) {
    sequence->add_head_row(parent, token, ids, logs);
}
// Return the row above the likeliest node without one, with its token; -1: there is none. `chances`:
// that of the node, and of the best proposal below it.
EXPORTED int64_t tree_unread(Sequence* sequence, int32_t* token, Sequence::Unread* chances) {
    return sequence->unread(*token, *chances);
}
// Return the chance of the best proposal behind the input token, before a head has added rows.
EXPORTED double tree_known(Sequence* sequence) { return sequence->known(); }

EXPORTED double tree_best_value(Sequence* sequence) { return sequence->best_value(); }

EXPORTED void tree_set_grammar(Sequence* sequence, const int32_t* forced, int64_t count,
                               const int32_t* paths, int64_t size, const uint32_t* const* masks,
                               const int32_t* usual) {
    sequence->set_grammar(forced, count, paths, size, masks, usual);
}
EXPORTED void tree_drop(Sequence* sequence, const int32_t* places, int64_t count) {
    sequence->drop(places, count);
}

EXPORTED void tree_plan(const Plan* plan) { Choice(*plan).run(); }

// `places`: nodes of the draft that the rows follow; `last`: the row that drew the last token.
EXPORTED void tree_commit(Sequence* sequence, const int32_t* tokens, int64_t count,
                          int64_t accepted, const int32_t* places, int64_t rows, int64_t last,
                          const int32_t* ids, const float* logs) {
    sequence->commit(tokens, count, accepted, {places, rows, last, ids, logs});
}

EXPORTED void tree_learn_pairs(Shared* shared, const int32_t* pairs, int64_t rows,
                               const int32_t* ids, const float* logs) {
    for (int64_t row = 0; row < rows; ++row)
        shared->rows.learn(pairs[2 * row], pairs[2 * row + 1], ids + row * READ, logs + row * READ);
}

EXPORTED const Counters* tree_sequence_counters(const Sequence* sequence) {
    return &sequence->counters();
}
