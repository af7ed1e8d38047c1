// The candidate tree of one request: who proposes what below a node, and how likely it is.
#pragma once

#include "../../models/cpu/native/noise.h"
#include "chances.h"
#include "index.h"
#include "rows.h"

constexpr int MOST_PROPOSALS = 32;  // at a node
constexpr int COUNTED_DEPTHS = 32;
constexpr int CHAIN_MATCH = 16;     // what another drafter's token counts as, before it is judged

struct Counters {
    double proposed[SOURCES][COUNTED_DEPTHS] = {}, fed[SOURCES][COUNTED_DEPTHS] = {};
    double accepted[SOURCES][COUNTED_DEPTHS] = {}, expected[SOURCES][COUNTED_DEPTHS] = {};
    double gained[KINDS] = {};  // accepted tokens that a text alone held for likeliest
};

// What requests share.
struct Shared {
    Shared(int64_t vocab, int64_t most_tokens) : vocab(vocab), rows(vocab), others(most_tokens) {}

    const int64_t vocab;
    RowTables rows;
    Texts others;
    Chances chances;
};

// What the target held for likely after nodes of the draft that was fed.
struct Rows {
    const int32_t* places;
    int64_t count, last;  // last: the row that drew the last token; -1: there is none
    const int32_t* ids;   // READ for each row
    const float* logs;
};

struct Settings {
    int64_t greedy;
    double temperature;
    uint64_t seed;
    int64_t sources;  // bits of Kind, then of `FROM_ROWS` for rows
    int64_t unplaced;  // first tokens of the text that have no positions: an encoder read them
    int64_t by_noise;  // rank a sampled request's proposals with its noise
};

struct Proposal {
    int32_t token = 0;
    int kind = -1, length = 0, share = 0, order = -1, rank = 0;  // -1: no text, no row says so
    double score = 0.0;
    Evidence evidence;
    double chance = 0.0;  // right, given that the better ones are wrong
    int32_t child = -1;

    int source() const { return order < 0 ? kind : kind < 0 ? (int)FROM_ROWS : (int)FROM_BOTH; }
};

struct Node {
    int32_t token, parent, depth, place = -1;  // place: in the draft that is fed; -1: it is not
    int source = 0, correction = 0;
    double value;         // the chance that all tokens down to here are right
    double product;       // the same as the chances of its path say, before it is corrected
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
        if (uses(OWN)) own_.append(token);
    }
    void add_text(int kind, const int32_t* tokens, int64_t count) {
        Index& index = kind == EXPECTED ? expected_ : window_;
        index.append(SEPARATOR);
        for (int64_t place = 0; place < count; ++place) index.append(tokens[place]);
    }
    // Args: drafts of other drafters, each of which ends in a separator.
    void set_chains(const int32_t* tokens, int64_t count) { chains_.assign(tokens, tokens + count); }

    // Begin a step's tree: the root is the last token of the text.
    void start() {
        if (window_.tokens().size() > MOST_IN_WINDOW) window_.clear();  // no node has places of it
        used_ = 0;
        new_node(text_.back(), -1);
        started_ = true;
    }

    int32_t new_node(int32_t token, int32_t parent) {
        if (used_ == nodes_.size()) nodes_.emplace_back();
        Node& node = nodes_[used_];
        node.token = token;
        node.parent = parent;
        node.depth = parent < 0 ? 0 : nodes_[parent].depth + 1;
        node.place = -1;
        node.value = node.product = 1.0;
        node.expanded = false;
        node.proposals.clear();
        for (auto& places : node.texts) places.clear();
        return used_++;
    }

    // Args: the product of the chances down to the proposal.
    double corrected(double product, int source) const {
        return chances_.corrected(product, correction_class(product, source));
    }

    int32_t child(int32_t parent, int which, double product, double value) {
        const Proposal& proposal = nodes_[parent].proposals[which];
        const int32_t made = new_node(proposal.token, parent);
        nodes_[parent].proposals[which].child = made;
        Node& node = nodes_[made];
        node.source = nodes_[parent].proposals[which].source();
        node.correction = correction_class(product, node.source);
        node.product = product;
        node.value = value;
        return made;
    }

    // Find what is proposed below a node, the most likely first.
    void expand(int32_t at) {
        if (nodes_[at].expanded) return;
        nodes_[at].expanded = true;
        tail_of(at);
        const int64_t position = text_.size() - settings_.unplaced + nodes_[at].depth;
        noise_ = settings_.greedy ? 0 : noise_at(settings_.seed, position);
        if (uses(OWN)) propose_text(at, OWN, own_);
        if (uses(EXPECTED) && expected_.tokens().size()) propose_text(at, EXPECTED, expected_);
        if (uses(OTHERS)) propose_others(at);
        if (uses(WINDOW) && window_.tokens().size()) propose_text(at, WINDOW, window_);
        propose_chains(at);
        if (uses(FROM_ROWS)) propose_rows(at);
        order(nodes_[at]);
    }

    // The text has gone on by tokens of which the first were accepted nodes of the draft.
    void commit(const int32_t* tokens, int64_t count, int64_t accepted, const Rows& rows) {
        if (!started_) start();
        int32_t at = 0;
        for (int64_t place = 0; place < count && at >= 0; ++place)
            at = judge(at, tokens[place], place < accepted);
        correct(tokens, count);
        learn(rows);
        for (int64_t place = 0; place < count; ++place) append(tokens[place]);
        started_ = false;
    }

    void count_fed(int32_t at) {
        const Node& node = nodes_[at];
        count(&Counters::fed, node.source, node.depth, 1.0);
        count(&Counters::expected, node.source, node.depth, node.value);
    }
    void count_proposed(int32_t at) {
        count(&Counters::proposed, nodes_[at].source, nodes_[at].depth, 1.0);
    }

private:
    static constexpr size_t MOST_IN_WINDOW = 32768;
    static constexpr double OWN_RATE = 0.1, SHARED_RATE = 0.15;
    static constexpr double CORRECTING = 2.0;  // corrections learn faster: from every node

    bool uses(int source) const { return settings_.sources >> source & 1; }
    // Whether proposals are ranked with the noise that draws them.
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

    void propose_others(int32_t at) {
        if (version_ != shared_.others.version())  // places of nodes above are of an older index
            for (size_t node = 0; node < used_; ++node) nodes_[node].texts[OTHERS].clear();
        version_ = shared_.others.version();
        propose_text(at, OTHERS, shared_.others.index());
        if (at) return;
        for (const Place& place : nodes_[at].texts[OTHERS])
            if (place.match >= 4) shared_.others.touch(place.next);
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
            int own = 0, all = 0, longest = place.match;
            for (const Place& other : places) {
                const bool alike = index.tokens()[other.next] == token;
                first &= &other >= &place || !alike;
                if (alike) longest = std::max(longest, other.match);
            }
            if (!first) continue;
            for (const Place& other : places)
                if (other.match >= longest) {
                    ++all;
                    own += index.tokens()[other.next] == token;
                }
            offer_text(node, token, kind, longest, share_class(own, all));
        }
    }

    // Of texts that propose the same the one with the longest match counts.
    void offer_text(Node& node, int32_t token, int kind, int match, int share) {
        Proposal& own = proposal(node, token);
        if (own.kind >= 0 && own.length >= match) return;
        own.kind = kind;
        own.length = match;
        own.share = share;
    }

    // Another drafter's tokens, one below the other; its length class says how sure that one is.
    // A node proposes the next token of each chain that its path goes along.
    void propose_chains(int32_t at) {
        for (size_t begin = 0; begin < chains_.size();) {
            const int32_t* chain = chains_.data() + begin;
            int32_t size = 0, node = at;
            while (chain[size] != SEPARATOR) ++size;
            begin += size + 1;
            if (nodes_[at].depth >= size) continue;
            while (nodes_[node].depth && nodes_[node].token == chain[nodes_[node].depth - 1])
                node = nodes_[node].parent;
            if (!nodes_[node].depth)
                offer_text(nodes_[at], chain[nodes_[at].depth], CHAIN, CHAIN_MATCH, 0);
        }
    }

    void propose_rows(int32_t at) {
        const int32_t token = tail_.tokens[0], before = tail_.size > 1 ? tail_.tokens[1] : -1;
        const Row* two = before < 0 ? nullptr : shared_.rows.after(before, token);
        if (two) propose_row(nodes_[at], *two, AFTER_TWO);
        const Row* one = shared_.rows.after(token);
        if (one) propose_row(nodes_[at], *one, two ? AFTER_ONE_TOO : AFTER_ONE);
        if (!at) propose_next_next(nodes_[at]);
    }

    void propose_row(Node& node, const Row& row, int order) {
        double logs[READ];
        int count = 0;
        for (; count < READ && row.tokens[count] >= 0; ++count) logs[count] = row.log(count);
        offer_row(node, row.tokens, logs, count, order);
    }

    // What the row that gave the input token held for likely may come one place later.
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

    // A row's tokens in the order of their chances: with the noise of this place, where it draws.
    void offer_row(Node& node, const int32_t* ids, const double* logs, int count, int order) {
        if (!count) return;
        double scores[READ];
        int ranked[READ];
        scored(ids, logs, count, scores);
        for (int rank = 0; rank < count; ++rank) {  // without noise they are in order already
            int place = rank;
            for (; place && scores[ranked[place - 1]] < scores[rank]; --place)
                ranked[place] = ranked[place - 1];
            ranked[place] = rank;
        }
        for (int rank = 0; rank < count; ++rank) {
            Proposal& own = proposal(node, ids[ranked[rank]]);
            if (own.order >= 0) continue;  // a longer context has said so
            own.order = order;
            own.rank = rank;
            own.score = scores[ranked[rank]];
        }
    }

    // Each token's share where the row is right: its probability, or what the noise makes of it.
    void scored(const int32_t* ids, const double* logs, int count, double* scores) const {
        const double heat = settings_.greedy ? 1.0 : std::max(settings_.temperature, 0.05);
        double rest = 1.0, total = 0.0;
        for (int rank = 0; rank < count; ++rank) {
            const double share = std::exp(logs[rank]);
            rest -= share;
            scores[rank] = heat == 1.0 ? share : std::exp(logs[rank] / heat);
            if (drawn()) scores[rank] /= smallness(ids[rank]);
            total += scores[rank];
        }
        // Tokens that are not kept: as if each were a tenth as likely as the last one kept.
        const double least = std::exp(logs[count - 1]) / 10.0;
        if (rest > 0.0 && least > 0.0)
            total += std::min(rest / least, (double)shared_.vocab) *
                     std::exp(std::log(least) / heat);
        total = std::max(total, 1e-300);  // 0 where what is left of a row is impossible
        for (int rank = 0; rank < count; ++rank) scores[rank] /= total;
    }

    void order(Node& node) {
        int longest = 0;
        double best = -1.0;
        for (const Proposal& one : node.proposals) {
            if (one.kind >= 0) longest = std::max(longest, one.length);
            if (one.order >= 0 && one.rank == 0 && best < 0.0) best = one.score;
        }
        for (Proposal& one : node.proposals) {
            weigh(one, node.depth + 1, longest, best);
            one.chance = chances_.of(one.evidence);
        }
        std::stable_sort(
            node.proposals.begin(), node.proposals.end(),
            [](const Proposal& a, const Proposal& b) { return a.chance > b.chance; });
        if (node.proposals.size() > MOST_PROPOSALS) node.proposals.resize(MOST_PROPOSALS);
    }

    // Args: the longest match of any text here, and the best score of a row; -1: there is none.
    void weigh(Proposal& one, int depth, int longest, double best) const {
        const int deep = depth_class(depth), length = length_class(one.length);
        Evidence& evidence = one.evidence;
        evidence = Evidence();
        if (one.kind >= 0) {
            evidence.set(TEXT, length * SHARES + one.share);
            evidence.set(TEXT_KIND, one.kind * DEPTHS + deep);
            if (drawn())
                evidence.set(TEXT_NOISE, noise_class(smallness(one.token)) * LENGTHS + length);
            if (one.order < 0 && best >= 0.0)
                evidence.set(TEXT_ALONE, length * SCORES + score_class(best));
        }
        if (one.order >= 0) {
            const int score = score_class(one.score);
            evidence.set(ROW, (drawn() * RANKS + rank_class(one.rank)) * SCORES + score);
            evidence.set(ROW_ORDER, one.order * DEPTHS + deep);
            if (one.kind >= 0) evidence.set(AGREED, length * SCORES + score);
            else if (longest) evidence.set(ROW_ALONE, length_class(longest) * SCORES + score);
        }
    }

    // Learn how often nodes were right that were looked at, fed or not.
    void correct(const int32_t* tokens, int64_t count) {
        enum : char { WRONG, RIGHT, UNKNOWN };
        std::vector<char> found(used_, RIGHT);
        for (size_t at = 1; at < used_; ++at) {
            const Node& node = nodes_[at];
            char& own = found[at] = found[node.parent];
            if (own == RIGHT)
                own = node.depth > count ? UNKNOWN : char(tokens[node.depth - 1] == node.token);
            if (own == UNKNOWN) continue;
            const double error = (double)own - node.value;
            chances_.correct(node.correction, error, CORRECTING * OWN_RATE);
            shared_.chances.correct(node.correction, error, CORRECTING * SHARED_RATE);
        }
    }

    // Learn from a node's proposals what the text says after it; the child of that token, or -1.
    int32_t judge(int32_t at, int32_t token, bool accepted) {
        expand(at);
        Node& node = nodes_[at];
        for (Proposal& one : node.proposals) {
            const bool hit = one.token == token;
            chances_.learn(one.evidence, hit, OWN_RATE);
            shared_.chances.learn(one.evidence, hit, SHARED_RATE);
            if (!hit) continue;
            if (!accepted) return -1;
            count(&Counters::accepted, nodes_[one.child].source, node.depth + 1, 1.0);
            if (one.kind >= 0 && (one.order < 0 || one.rank)) counters_.gained[one.kind] += 1.0;
            return one.child;
        }
        return -1;
    }

    Shared& shared_;
    Settings settings_;
    std::vector<int32_t> text_, chains_, last_ids_;
    std::vector<float> last_logs_;
    Index own_, expected_, window_;
    std::vector<Node> nodes_;
    size_t used_ = 0;
    bool started_ = false;
    Chances chances_;
    Counters counters_;
    Tail tail_;
    uint64_t noise_ = 0;
    int64_t version_ = 0;  // of the others' texts
};
