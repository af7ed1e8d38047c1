// The candidate tree of one request: the proposals below each node, and how likely they are.
#pragma once

#include "../../models/cpu/native/noise.h"
#include "chances.h"
#include "index.h"
#include "rows.h"

constexpr int MOST_PROPOSALS = 32;  // at a node
constexpr int COUNTED_DEPTHS = 32;
constexpr int FORCED_MATCH = 1 << 30;  // above every match: a grammar allows nothing else
constexpr int MOST_USUAL = 15;  // match length that a mask's usual follower counts as, at most
constexpr int FEW_MATCH = 3;            // match length that a token counts as, where few are allowed
constexpr int MOST_ALLOWED = 4;     // tokens of a mask that are all proposed
constexpr int CHAIN_MATCH = 16;     // match length that another drafter's token counts as

struct Counters {
    double proposed[SOURCES][COUNTED_DEPTHS] = {}, fed[SOURCES][COUNTED_DEPTHS] = {};
    double accepted[SOURCES][COUNTED_DEPTHS] = {}, expected[SOURCES][COUNTED_DEPTHS] = {};
    double gained[AGREEMENT] = {};  // accepted tokens that only a text, or a head, ranked first
};

// The state that requests share.
struct Shared {
    Shared(int64_t vocab, int64_t most_tokens) : vocab(vocab), rows(vocab), texts(most_tokens) {}

    const int64_t vocab;
    RowTables rows;
    Texts texts;
    Chances chances;
};

// The target's most probable tokens after nodes of the draft that was fed.
struct Rows {
    const int32_t* places;
    int64_t count, last;  // last: the row that drew the last token; -1: none
    const int32_t* ids;   // READ for each row
    const float* logs;
};

// A trained head's most probable tokens behind the input token (row 0), or behind a token below
// the node of another row.
struct HeadRow {
    int32_t parent, token;  // token: ANY, if it is of all tokens there
    int32_t ids[READ];
    float logs[READ];
};
constexpr int32_t ANY = -1;

struct Settings {
    int64_t greedy;
    double temperature;
    uint64_t seed;
    int64_t sources;  // bits of Kind, then of RECYCLING
    int64_t unplaced;  // first tokens of the text without positions: those of an encoder
    int64_t by_noise;  // rank a sampled request's proposals with its noise
    int64_t top_k;     // filters of a sampled request; 0: none
    double top_p, min_p;
};

struct Proposal {
    int32_t token = 0;
    int kind = -1, length = 0, share = 0, order = -1, rank = 0;  // -1: no text, no row
    int tabled = -1;                                             // a head's token: rank in tables
    double score = 0.0;
    Evidence evidence;
    double chance = 0.0;  // of being right, given that the better ones are wrong
    int32_t child = -1;

    int source() const {
        return order < 0 ? kind : kind >= 0 ? AGREEMENT : of_head() ? HEAD : RECYCLING;
    }
    bool of_head() const { return order == OF_HEAD; }
    bool by_head_alone() const { return of_head() && kind < 0 && !rank && tabled; }
};

struct Node {
    int32_t token, parent, depth, place = -1;  // place: in the draft that is fed; -1: it is not
    int32_t head = -1;                         // the head's row behind it; -1: none
    int source = 0, correction = 0;
    double value;         // the chance that all tokens down to here are right
    double product;       // the product of its path's chances, before correction
    bool expanded = false;
    std::vector<Place> texts[KINDS];
    std::vector<Proposal> proposals;
};

class Sequence {
public:
    Sequence(Shared& shared, const Settings& settings)
        : shared_(shared), settings_(settings), chances_(shared.chances) {}

    std::vector<Node>& nodes() { return nodes_; }
    const Counters& counters() const { return counters_; }

    void append(int32_t token) {
        text_.push_back(token);
        if (uses(CONTEXT)) context_.append(token);
    }
    void add_text(int kind, const int32_t* tokens, int64_t count) {
        Index& index = kind == EXPECTED ? expected_ : window_;
        index.append(SEPARATOR);
        for (int64_t place = 0; place < count; ++place) index.append(tokens[place]);
    }
    // Args: drafts of other drafters, each of which ends in a separator.
    void set_chains(const int32_t* tokens, int64_t count) { chains_.assign(tokens, tokens + count); }

    // Adds a head's row until the text goes on; row 0 is behind the input token.
    void add_head_row(int32_t parent, int32_t token, const int32_t* ids, const float* logs) {
        heads_.push_back({parent, token, {}, {}});
        std::copy(ids, ids + READ, heads_.back().ids);
        std::copy(logs, logs + READ, heads_.back().logs);
    }

    // A node that a head could read: its chance, and that of the best proposal below it.
    struct Unread {
        double value, known;
    };

    // The chance of the best proposal behind the input token, before a head has added rows.
    double known() {
        start();
        return known_below(0);
    }

    // The value of the best node behind the input token; no other one's is higher.
    double best_value() {
        start();
        expand(0);
        if (nodes_[0].proposals.empty()) return 0.0;
        const Proposal& best = nodes_[0].proposals[0];
        return corrected(best.chance, best.source());
    }

    // Finds the most likely path along the head's rows, and the first node there without a row.
    //
    // Returns: the row above it; -1: there is none. `token` is the node's own.
    int32_t unread(int32_t& token, Unread& out) {
        if (unread_ < 0) start();
        unread_ = std::max(unread_, 0);
        Node& last = nodes_[unread_];
        last.head = head_of(last.parent, last.token);
        if (last.head >= 0) forget(last);
        while (nodes_[unread_].head >= 0) {
            const int32_t at = unread_;
            expand(at);
            if (nodes_[at].proposals.empty()) return -1;
            const Proposal& best = nodes_[at].proposals[0];
            const double product = nodes_[at].product * best.chance;
            unread_ = child(at, 0, product, corrected(product, best.source()));
        }
        if (!unread_) return -1;
        token = nodes_[unread_].token;
        out = {nodes_[unread_].value, known_below(unread_)};
        return nodes_[nodes_[unread_].parent].head;
    }

    // Has the next trees follow a grammar, until the text goes on.
    //
    // Args: forced tokens behind paths, each path and its tokens ending in a separator; paths that
    // end in a separator; the tokens that may follow each path, as bits; and for each path the
    // token that has mostly followed such a mask (-1: none), how often, and how often any has.
    void set_grammar(const int32_t* forced, int64_t count, const int32_t* paths, int64_t size,
                     const uint32_t* const* masks, const int32_t* usual) {
        forced_.assign(forced, forced + count);
        masks_.clear();
        for (int64_t at = 0; at < size; ++at) {
            const int32_t* follows = usual + 3 * masks_.size();
            Mask mask{{}, masks[masks_.size()], follows[0], follows[1], follows[2]};
            for (; paths[at] != SEPARATOR; ++at) mask.path.push_back(paths[at]);
            masks_.push_back(mask);
        }
    }

    // Takes nodes out of the draft that was planned; those behind them move up.
    void drop(const int32_t* places, int64_t count) {
        for (size_t node = 1; node < used_; ++node) {
            int32_t& place = nodes_[node].place;
            const int32_t* end = places + count;
            const int64_t before = std::count_if(places, end, [&](int32_t one) { return one < place; });
            if (place > 0) place = std::find(places, end, place) != end ? -1 : place - before;
        }
    }

    // Begin a step's tree: the root is the last token of the text.
    void start() {
        if (window_.tokens().size() > MOST_IN_WINDOW) window_.clear();  // no node has places of it
        used_ = 0;
        unread_ = -1;
        new_node(text_.back(), -1);
        started_ = true;
    }

    int32_t new_node(int32_t token, int32_t parent) {
        if (used_ == nodes_.size()) nodes_.emplace_back();
        Node& node = nodes_[used_];
        node.token = token;
        node.parent = parent;
        node.depth = parent < 0 ? 0 : nodes_[parent].depth + 1;
        node.head = head_of(parent, token);
        node.place = -1;
        node.value = node.product = 1.0;
        forget(node);
        return used_++;
    }

    // Args: the product of the chances down to the proposal.
    double corrected(double product, int source) const {
        return chances_.corrected(product, correction_class(product, source));
    }

    int32_t child(int32_t parent, int which, double product, double value) {
        const Proposal& proposal = nodes_[parent].proposals[which];
        const int32_t index = new_node(proposal.token, parent);
        nodes_[parent].proposals[which].child = index;
        Node& node = nodes_[index];
        node.source = nodes_[parent].proposals[which].source();
        node.correction = correction_class(product, node.source);
        node.product = product;
        node.value = value;
        return index;
    }

    // Collect the proposals below a node, the most likely first.
    void expand(int32_t at) {
        if (nodes_[at].expanded) return;
        nodes_[at].expanded = true;
        tail_of(at);
        known_ = known_of(at);
        mask_ = known_ ? known_->bits : nullptr;
        allowed_ = count_allowed();
        const int64_t position = text_.size() - settings_.unplaced + nodes_[at].depth;
        noise_ = settings_.greedy ? 0 : noise_at(settings_.seed, position);
        if (uses(CONTEXT)) propose_text(at, CONTEXT, context_);
        if (uses(EXPECTED) && expected_.tokens().size()) propose_text(at, EXPECTED, expected_);
        if (uses(REQUESTS)) propose_requests(at);
        if (uses(WINDOW) && window_.tokens().size()) propose_text(at, WINDOW, window_);
        propose_chains(at, chains_, CHAIN, CHAIN_MATCH);
        if (uses(GRAMMAR)) propose_grammar(at);
        if (nodes_[at].head >= 0) propose_head(nodes_[at], heads_[nodes_[at].head]);
        tabled_ = false;
        if (uses(RECYCLING)) propose_rows(at);
        if (mask_) forbid(nodes_[at].proposals);
        order(nodes_[at]);
    }

    // Append tokens to the text, the first `accepted` of which were nodes of the draft.
    void commit(const int32_t* tokens, int64_t count, int64_t accepted, const Rows& rows) {
        if (!started_) start();
        for (size_t node = 1; node < used_; ++node) count_planned(nodes_[node]);
        int32_t at = 0;
        for (int64_t place = 0; place < count && at >= 0; ++place)
            at = judge(at, tokens[place], place < accepted);
        correct(tokens, count);
        learn(rows);
        for (int64_t place = 0; place < count; ++place) append(tokens[place]);
        forced_.clear();
        masks_.clear();
        heads_.clear();
        unread_ = -1;
        started_ = false;
    }

private:
    static constexpr size_t MOST_IN_WINDOW = 32768;
    static constexpr double OWN_RATE = 0.1, SHARED_RATE = 0.15;
    static constexpr double CORRECTING = 2.0;  // corrections learn faster: from every node

    double known_below(int32_t at) {
        expand(at);
        return nodes_[at].proposals.empty() ? 0.0 : nodes_[at].proposals[0].chance;
    }

    void forget(Node& node) {
        node.expanded = false;
        node.proposals.clear();
        for (auto& places : node.texts) places.clear();
    }

    struct Mask {
        std::vector<int32_t> path;
        const uint32_t* bits;
        int32_t usual, agreeing, all;
    };

    void count_planned(const Node& node) {
        count(&Counters::proposed, node.source, node.depth, 1.0);
        if (node.place <= 0) return;
        count(&Counters::fed, node.source, node.depth, 1.0);
        count(&Counters::expected, node.source, node.depth, node.value);
    }

    bool uses(int source) const { return settings_.sources >> source & 1; }
    // True if proposals are ranked with the noise that draws them.
    bool drawn() const { return !settings_.greedy && settings_.by_noise; }

    void learn(const Rows& rows) {
        std::vector<int32_t> nodes(used_, 0);
        for (size_t at = 1; at < used_; ++at)
            if (nodes_[at].place > 0 && nodes_[at].place < (int32_t)used_)
                nodes[nodes_[at].place] = at;
        for (int64_t row = 0; row < rows.count; ++row)
            learn_row(nodes[rows.places[row]], rows.ids + row * READ, rows.logs + row * READ);
        last_ids_.clear();
        last_logs_.clear();
        if (rows.last < 0) return;
        last_ids_.assign(rows.ids + rows.last * READ, rows.ids + (rows.last + 1) * READ);
        last_logs_.assign(rows.logs + rows.last * READ, rows.logs + (rows.last + 1) * READ);
    }

    void learn_row(int32_t at, const int32_t* ids, const float* logs) {
        const Node& node = nodes_[at];
        const int32_t before = at ? nodes_[node.parent].token
                               : text_.size() > 1 ? text_[text_.size() - 2] : -1;
        shared_.rows.learn(before, node.token, ids, logs);
    }

    using Counted = double (Counters::*)[SOURCES][COUNTED_DEPTHS];
    void count(Counted which, int source, int depth, double amount) {
        (counters_.*which)[source][std::min(depth, COUNTED_DEPTHS) - 1] += amount;
    }

    void tail_of(int32_t at) {
        tail_.size = 0;
        int64_t left = text_.size();
        while (tail_.size < LONGEST_MATCH) {
            if (nodes_[at].depth) {
                tail_.tokens[tail_.size++] = nodes_[at].token;
                at = nodes_[at].parent;
            } else if (left) {
                tail_.tokens[tail_.size++] = text_[--left];
            } else {
                return;
            }
        }
    }

    Proposal& proposal(Node& node, int32_t token) {
        for (Proposal& known : node.proposals)
            if (known.token == token) return known;
        node.proposals.emplace_back();
        node.proposals.back().token = token;
        return node.proposals.back();
    }

    double smallness(int32_t token) const { return -std::log(number(noise_, token)); }

    void propose_requests(int32_t at) {
        if (version_ != shared_.texts.version())  // places of nodes above are of an older index
            for (size_t node = 0; node < used_; ++node) nodes_[node].texts[REQUESTS].clear();
        version_ = shared_.texts.version();
        propose_text(at, REQUESTS, shared_.texts.index());
        if (at) return;
        for (const Place& place : nodes_[at].texts[REQUESTS])
            if (place.match >= 4) shared_.texts.touch(place.next);
    }

    void propose_text(int32_t at, int kind, Index& index) {
        std::vector<Place>& places = nodes_[at].texts[kind];
        const int32_t parent = nodes_[at].parent;
        if (parent >= 0) index.follow(nodes_[parent].texts[kind], nodes_[at].token, places);
        if (places.empty()) index.find(tail_, places);
        Node& node = nodes_[at];
        for (const Place& place : places) {
            const int32_t token = index.tokens()[place.next];
            bool first = true;
            int agreeing = 0, all = 0, longest = place.match;
            for (const Place& other : places) {
                const bool alike = index.tokens()[other.next] == token;
                first &= &other >= &place || !alike;
                if (alike) longest = std::max(longest, other.match);
            }
            if (!first) continue;
            for (const Place& other : places)
                if (other.match >= longest) {
                    ++all;
                    agreeing += index.tokens()[other.next] == token;
                }
            offer_text(node, token, kind, longest, share_class(agreeing, all));
        }
    }

    // Where several texts propose the same token, the one with the longest match counts.
    void offer_text(Node& node, int32_t token, int kind, int match, int share) {
        Proposal& offer = proposal(node, token);
        if (offer.kind >= 0 && offer.length >= match) return;
        offer.kind = kind;
        offer.length = match;
        offer.share = share;
    }

    // Propose another drafter's tokens as a path; their length class stands for its confidence.
    // A node proposes the next token of each chain that its path goes along.
    void propose_chains(int32_t at, const std::vector<int32_t>& chains, int kind, int match) {
        for (size_t begin = 0; begin < chains.size();) {
            const int32_t* chain = chains.data() + begin;
            int32_t size = 0, node = at;
            while (chain[size] != SEPARATOR) ++size;
            begin += size + 1;
            if (nodes_[at].depth >= size) continue;
            while (nodes_[node].depth && nodes_[node].token == chain[nodes_[node].depth - 1])
                node = nodes_[node].parent;
            if (!nodes_[node].depth)
                offer_text(nodes_[at], chain[nodes_[at].depth], kind, match, 0);
        }
    }

    // The tokens that may follow a node; nullptr: not known.
    const Mask* known_of(int32_t at) const {
        for (const Mask& mask : masks_) {
            if ((int32_t)mask.path.size() != nodes_[at].depth) continue;
            int32_t node = at;
            while (nodes_[node].depth && mask.path[nodes_[node].depth - 1] == nodes_[node].token)
                node = nodes_[node].parent;
            if (!nodes_[node].depth) return &mask;
        }
        return nullptr;
    }

    bool allows(int32_t token) const { return !mask_ || (mask_[token / 32] >> token % 32 & 1); }

    int64_t count_allowed() const {
        int64_t found = 0;
        for (int64_t word = 0; mask_ && word < (shared_.vocab + 31) / 32; ++word)
            found += __builtin_popcount(mask_[word]);
        return found;
    }

    void forbid(std::vector<Proposal>& proposals) const {
        proposals.erase(std::remove_if(proposals.begin(), proposals.end(),
                                       [&](const Proposal& one) { return !allows(one.token); }),
                        proposals.end());
    }

    // What is forced here, what mostly follows where the same is allowed, or one of few tokens.
    void propose_grammar(int32_t at) {
        propose_chains(at, forced_, GRAMMAR, FORCED_MATCH);
        if (known_ && known_->usual >= 0)
            offer_text(nodes_[at], known_->usual, GRAMMAR,
                       std::clamp(known_->agreeing, FEW_MATCH + 1, MOST_USUAL),
                       share_class(known_->agreeing, known_->all));
        if (!mask_ || allowed_ > MOST_ALLOWED) return;
        const int match = allowed_ == 1 ? FORCED_MATCH : FEW_MATCH;
        for (int64_t token = 0; token < shared_.vocab; ++token)
            if (!mask_[token / 32]) token |= 31;
            else if (allows(token))
                offer_text(nodes_[at], token, GRAMMAR, match, share_class(1, allowed_));
    }

    // The head's row behind a token below a node, -1 for the input token; -1: there is none.
    int32_t head_of(int32_t parent, int32_t token) const {
        if (parent < 0) return heads_.empty() ? -1 : 0;
        const int32_t above = nodes_[parent].head;
        for (int32_t row = 1; above >= 0 && row < (int32_t)heads_.size(); ++row)
            if (heads_[row].parent == above &&
                (heads_[row].token == token || heads_[row].token == ANY))
                return row;
        return -1;
    }

    void propose_head(Node& node, const HeadRow& row) {
        double logs[READ];
        int count = 0;
        for (; count < READ && row.ids[count] >= 0; ++count) logs[count] = row.logs[count];
        offer_row(node, row.ids, logs, count, OF_HEAD);
    }

    void propose_rows(int32_t at) {
        const int32_t token = tail_.tokens[0], before = tail_.size > 1 ? tail_.tokens[1] : -1;
        const Row* two = before < 0 ? nullptr : shared_.rows.after(before, token);
        if (two) propose_row(nodes_[at], *two, AFTER_TWO);
        const Row* row = shared_.rows.after(token);
        if (row) propose_row(nodes_[at], *row, two ? AFTER_ONE_TOO : AFTER_ONE);
        if (!at) propose_next_next(nodes_[at]);
    }

    void propose_row(Node& node, const Row& row, int order) {
        double logs[READ];
        int count = 0;
        for (; count < READ && row.tokens[count] >= 0; ++count) logs[count] = row.log(count);
        offer_row(node, row.tokens, logs, count, order);
    }

    // Propose the other tokens of the row that drew the input token: they may come next.
    void propose_next_next(Node& node) {
        double logs[READ];
        int32_t ids[READ];
        int count = 0;
        for (size_t rank = 0; rank < last_ids_.size(); ++rank)
            if (last_ids_[rank] >= 0 && last_ids_[rank] != node.token) {
                ids[count] = last_ids_[rank];
                logs[count++] = last_logs_[rank];
            }
        offer_row(node, ids, logs, count, NEXT_NEXT);
    }

    // Propose a row's tokens in the order of their chances, with this position's noise if drawn.
    void offer_row(Node& node, const int32_t* ids, const double* logs, int count, int order) {
        tabled_ |= order != OF_HEAD && order != NEXT_NEXT;
        double rest = 1.0, scores[READ], kept[READ];
        int32_t own[READ];
        int size = 0;
        for (int rank = 0; rank < count; ++rank) {
            rest -= std::exp(logs[rank]);
            if (!allows(ids[rank])) continue;
            own[size] = ids[rank];
            kept[size++] = logs[rank];
        }
        if (mask_) rest *= (double)allowed_ / shared_.vocab;
        if (size) offer_ranked(node, own, kept, size, rest, scores, order);
    }

    // Args: the probability of all other tokens together.
    void offer_ranked(Node& node, const int32_t* ids, const double* logs, int count, double rest,
                      double* scores, int order) {
        int ranked[READ];
        scored(ids, logs, count, rest, scores, order != NEXT_NEXT && !settings_.greedy);
        for (int rank = 0; rank < count; ++rank) {  // without noise they are in order already
            int place = rank;
            for (; place && scores[ranked[place - 1]] < scores[rank]; --place)
                ranked[place] = ranked[place - 1];
            ranked[place] = rank;
        }
        for (int rank = 0; rank < count; ++rank) {
            Proposal& offer = proposal(node, ids[ranked[rank]]);
            if (offer.of_head() && offer.tabled < 0 && order != NEXT_NEXT) offer.tabled = rank;
            if (offer.order >= 0) continue;  // proposed by a longer context already
            offer.order = order;
            offer.rank = rank;
            offer.score = scores[ranked[rank]];
        }
    }

    // Compute each token's share if the row is right: its probability, weighted by the noise.
    void scored(const int32_t* ids, const double* logs, int count, double rest, double* scores,
                bool filters) const {
        const double heat = settings_.greedy ? 1.0 : std::max(settings_.temperature, 0.05);
        double total = 0.0;
        for (int rank = 0; rank < count; ++rank) {
            scores[rank] = heat == 1.0 ? std::exp(logs[rank]) : std::exp(logs[rank] / heat);
            total += scores[rank];
        }
        // Assume that each token outside the row is a tenth as likely as the last one in it.
        double outside = 0.0;
        const double least = std::exp(logs[count - 1]) / 10.0;
        if (rest > 0.0 && least > 0.0)
            outside = std::min(rest / least, (double)shared_.vocab) *
                      std::exp(std::log(least) / heat);
        const int kept = filters ? filtered(scores, count, total + outside) : count;
        if (kept < count) outside = 0.0;
        std::fill(scores + kept, scores + count, 0.0);
        total = outside;
        for (int rank = 0; rank < kept; ++rank) {
            if (drawn()) scores[rank] /= smallness(ids[rank]);
            total += scores[rank];
        }
        total = std::max(total, 1e-300);  // 0 where what is left of a row is impossible
        for (int rank = 0; rank < kept; ++rank) scores[rank] /= total;
    }

    // Returns the number of a row's tokens, best first, that the request's filters leave.
    int filtered(const double* weights, int count, double total) const {
        int kept = settings_.top_k ? (int)std::min<int64_t>(settings_.top_k, count) : count;
        double above = 0.0;
        for (int rank = 0; rank < kept; ++rank) {
            const bool outside = above >= settings_.top_p * total;
            if (rank && (outside || weights[rank] < settings_.min_p * weights[0])) kept = rank;
            above += weights[rank];
        }
        return kept;
    }

    void order(Node& node) {
        int longest = 0;
        double best = -1.0, head = -1.0;
        for (const Proposal& offer : node.proposals) {
            if (offer.kind >= 0) longest = std::max(longest, offer.length);
            double& score = offer.of_head() ? head : best;
            if (offer.order >= 0 && offer.rank == 0 && score < 0.0) score = offer.score;
        }
        for (Proposal& offer : node.proposals) {
            weigh(offer, node.depth + 1, longest, best);
            weigh_head(offer, longest, head);
            offer.chance = chances_.of(offer.evidence);
        }
        std::stable_sort(
            node.proposals.begin(), node.proposals.end(),
            [](const Proposal& a, const Proposal& b) { return a.chance > b.chance; });
        if (mask_ && allowed_ && (int64_t)node.proposals.size() == allowed_) {
            node.proposals.back().evidence = Evidence();  // nothing to learn
            node.proposals.back().chance = CERTAIN;
        }
        if (node.proposals.size() > MOST_PROPOSALS) node.proposals.resize(MOST_PROPOSALS);
    }

    // Args: the longest match of any text here, and the best score of a row; -1: none.
    void weigh(Proposal& offer, int depth, int longest, double best) const {
        const int deep = depth_class(depth), length = length_class(offer.length);
        Evidence& evidence = offer.evidence;
        evidence = Evidence();
        if (offer.kind >= 0) {
            evidence.set(TEXT, length * SHARES + offer.share);
            evidence.set(TEXT_KIND, offer.kind * DEPTHS + deep);
            if (drawn())
                evidence.set(TEXT_NOISE, noise_class(smallness(offer.token)) * LENGTHS + length);
            if (offer.order < 0 && best >= 0.0)
                evidence.set(TEXT_ALONE, length * SCORES + score_class(best));
        }
        if (offer.order >= 0) evidence.set(ROW_ORDER, offer.order * DEPTHS + deep);
        if (offer.order >= 0 && !offer.of_head()) {
            const int score = score_class(offer.score);
            evidence.set(ROW, (drawn() * RANKS + rank_class(offer.rank)) * SCORES + score);
            if (offer.kind >= 0) evidence.set(AGREED, length * SCORES + score);
            else if (longest) evidence.set(ROW_ALONE, length_class(longest) * SCORES + score);
        }
    }

    // Args: the longest match of any text here, and the best score of the head's row; -1: none.
    void weigh_head(Proposal& offer, int longest, double best) const {
        if (best < 0.0) return;
        Evidence& evidence = offer.evidence;
        const int length = length_class(offer.length);
        if (!offer.of_head())
            return evidence.set(BESIDE_HEAD, length * SCORES + score_class(best));
        const int score = score_class(offer.score);
        const int tabled = !tabled_ ? 0 : offer.tabled < 0 ? 1 : 2 + rank_class(offer.tabled);
        evidence.set(HEAD_ROW, (drawn() * RANKS + rank_class(offer.rank)) * SCORES + score);
        evidence.set(HEAD_TABLED, tabled * SCORES + score);
        if (offer.kind >= 0) evidence.set(HEAD_AGREED, length * SCORES + score);
        else if (longest) evidence.set(HEAD_ALONE, length_class(longest) * SCORES + score);
    }

    // Learn how often the nodes were right, fed or not.
    void correct(const int32_t* tokens, int64_t count) {
        enum : char { WRONG, RIGHT, UNKNOWN };
        std::vector<char> outcomes(used_, RIGHT);
        for (size_t at = 1; at < used_; ++at) {
            const Node& node = nodes_[at];
            char& outcome = outcomes[at] = outcomes[node.parent];
            if (outcome == RIGHT)
                outcome = node.depth > count ? UNKNOWN : char(tokens[node.depth - 1] == node.token);
            if (outcome == UNKNOWN) continue;
            const double error = (double)outcome - node.value;
            chances_.correct(node.correction, error, CORRECTING * OWN_RATE);
            shared_.chances.correct(node.correction, error, CORRECTING * SHARED_RATE);
        }
    }

    // Learn from the token that follows a node; returns the child of that token, or -1.
    int32_t judge(int32_t at, int32_t token, bool accepted) {
        expand(at);
        Node& node = nodes_[at];
        for (Proposal& offer : node.proposals) {
            const bool hit = offer.token == token;
            chances_.learn(offer.evidence, hit, OWN_RATE);
            shared_.chances.learn(offer.evidence, hit, SHARED_RATE);
            if (!hit) continue;
            if (!accepted) return -1;
            count(&Counters::accepted, nodes_[offer.child].source, node.depth + 1, 1.0);
            if (offer.kind >= 0 && (offer.order < 0 || offer.rank))
                counters_.gained[offer.kind] += 1.0;
            if (offer.by_head_alone()) counters_.gained[HEAD] += 1.0;
            return offer.child;
        }
        return -1;
    }

    Shared& shared_;
    Settings settings_;
    std::vector<int32_t> text_, chains_, forced_, last_ids_;
    std::vector<Mask> masks_;
    std::vector<HeadRow> heads_;
    int32_t unread_ = -1;             // the last node that `unread` came to; -1: begin anew
    bool tabled_ = false;             // a table has a row of the node whose proposals are collected
    const Mask* known_ = nullptr;     // of the node whose proposals are collected
    const uint32_t* mask_ = nullptr;  // its bits
    int64_t allowed_ = 0;             // tokens that it allows
    std::vector<float> last_logs_;
    Index context_, expected_, window_;
    std::vector<Node> nodes_;
    size_t used_ = 0;
    bool started_ = false;
    Chances chances_;
    Counters counters_;
    Tail tail_;
    uint64_t noise_ = 0;
    int64_t version_ = 0;  // of the shared texts
};
