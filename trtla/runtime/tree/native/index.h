// Texts that drafts are taken from: for each place, the ones before that end in the same tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

constexpr int32_t SEPARATOR = -1;  // between two texts; no token
constexpr int LONGEST_MATCH = 32;

// The tokens before a place, the latest first.
struct Tail {
    int32_t tokens[LONGEST_MATCH];
    int size = 0;
};

struct Place {
    int32_t next;   // place of the token that continues the match
    int32_t match;  // tokens before it that are those of the tail; at most LONGEST_MATCH
};

// The latest place of every stretch of LENGTH tokens, and of each place the one before it.
class Places {
public:
    explicit Places(int length) : length_(length), slots_(64, -1) {}

    int32_t before(int32_t place) const { return before_[place]; }

    void append(const std::vector<int32_t>& tokens) {
        const int32_t place = tokens.size() - 1;
        before_.push_back(-1);
        if (!holds(tokens, place)) return;
        int32_t& slot = find(tokens, [&](int back) { return tokens[place - back]; });
        used_ += slot < 0;
        before_[place] = slot;
        slot = place;
        if (2 * used_ > slots_.size()) grow(tokens);
    }

    // The latest place that ends as the tail does; -1: there is none.
    int32_t latest(const std::vector<int32_t>& tokens, const Tail& tail) {
        if (tail.size < length_) return -1;
        return find(tokens, [&](int back) { return tail.tokens[back]; });
    }

private:
    bool holds(const std::vector<int32_t>& tokens, int32_t place) const {
        if (place + 1 < length_) return false;
        for (int back = 0; back < length_; ++back)
            if (tokens[place - back] == SEPARATOR) return false;
        return true;
    }

    template <class Key>
    int32_t& find(const std::vector<int32_t>& tokens, Key key) {
        uint64_t hash = 0;
        for (int back = 0; back < length_; ++back)
            hash = (hash + (uint32_t)key(back) + 1) * 0x9E3779B97F4A7C15;
        for (size_t slot = hash >> 32;; ++slot) {
            int32_t& place = slots_[slot & (slots_.size() - 1)];
            if (place < 0) return place;
            int back = 0;
            while (back < length_ && tokens[place - back] == key(back)) ++back;
            if (back == length_) return place;
        }
    }

    void grow(const std::vector<int32_t>& tokens) {
        std::vector<int32_t> old(2 * slots_.size(), -1);
        old.swap(slots_);
        for (const int32_t place : old)
            if (place >= 0) find(tokens, [&](int back) { return tokens[place - back]; }) = place;
    }

    int length_;
    std::vector<int32_t> slots_, before_;
    size_t used_ = 0;
};

class Index {
public:
    const std::vector<int32_t>& tokens() const { return tokens_; }

    void append(int32_t token) {
        tokens_.push_back(token);
        for (Places& places : lengths_) places.append(tokens_);
    }

    void clear() { *this = Index(); }

    // Where the tail stood before, with what it was followed by: longer stretches first, the
    // latest places of each.
    void find(const Tail& tail, std::vector<Place>& found) {
        for (Places& places : lengths_) {
            int32_t place = places.latest(tokens_, tail);
            for (int looked = 0; place >= 0 && looked < MOST_LOOKED; ++looked) {
                add(tail, place, found);
                place = places.before(place);
            }
        }
    }

    // What of a node's places goes on with a token: the places of its child.
    void follow(const std::vector<Place>& places, int32_t token, std::vector<Place>& found) const {
        const int32_t size = tokens_.size();
        for (const Place& place : places)
            if (tokens_[place.next] == token && place.next + 1 < size &&
                tokens_[place.next + 1] != SEPARATOR)
                found.push_back({place.next + 1, std::min(place.match + 1, LONGEST_MATCH)});
    }

private:
    static constexpr int MOST_LOOKED = 16;

    void add(const Tail& tail, int32_t place, std::vector<Place>& found) const {
        const int32_t next = place + 1;
        if (next >= (int32_t)tokens_.size() || tokens_[next] == SEPARATOR) return;
        for (const Place& known : found)
            if (known.next == next) return;
        int match = 0;
        while (match < tail.size && match <= place && tokens_[place - match] == tail.tokens[match])
            ++match;
        found.push_back({next, match});
    }

    std::vector<int32_t> tokens_;
    Places lengths_[3] = {Places(4), Places(2), Places(1)};
};

// Texts that every request drafts from: kept ones, at most so many tokens, and outputs, what the kept
// ones leave of that or a quarter of it. Of each kind the least recently used ones go.
class Texts {
public:
    explicit Texts(int64_t most) : most_(most) {}

    Index& index() { return index_; }
    int64_t version() const { return version_; }

    // One more text; of one that is too long, its end.
    void add(const int32_t* tokens, int64_t count, bool kept) {
        if (count == 0) return;
        const int64_t own = kept ? most_ : std::max(most_ - sizes_[1], most_ / 4);
        if (count > own) tokens += count - own, count = own;
        if (sizes_[kept] + count > own) {
            const int64_t room = own - own / 4 - count;
            drop(kept, kept && room < 0 ? own - count : room);
        }
        place(std::vector<int32_t>(tokens, tokens + count), ++now_, kept);
    }

    // A place of the index was of use.
    void touch(int32_t place) {
        auto text = std::upper_bound(texts_.begin(), texts_.end(), place,
                                     [](int32_t at, const Text& one) { return at < one.start; });
        if (text != texts_.begin()) (--text)->used = ++now_;
    }

private:
    struct Text {
        int32_t start, size;
        int64_t used;
        bool kept;
        int32_t left;  // tokens that stay, its last ones

        int64_t cost() const { return size + !kept; }  // outputs may be many and short
    };

    void place(const std::vector<int32_t>& tokens, int64_t used, bool kept) {
        index_.append(SEPARATOR);
        const int32_t start = index_.tokens().size(), size = tokens.size();
        texts_.push_back({start, size, used, kept, size});
        sizes_[kept] += texts_.back().cost();
        for (const int32_t token : tokens) index_.append(token);
    }

    // Begin anew with the most recently used texts of a kind, of so many tokens together, and the
    // end of the one that does not fit; the other kind stays.
    void drop(bool kept, int64_t room) {
        std::vector<Text> old;
        old.swap(texts_);
        const Index before = std::move(index_);
        index_ = Index();
        sizes_[0] = sizes_[1] = 0;
        ++version_;
        std::vector<Text*> latest;
        for (Text& one : old)
            if (one.kept == kept) latest.push_back(&one);
        std::sort(latest.begin(), latest.end(),
                  [](const Text* a, const Text* b) { return a->used > b->used; });
        for (Text* one : latest) {
            const int64_t fits = room - (one->cost() - one->size);
            one->left = std::max<int64_t>(0, std::min<int64_t>(one->size, fits));
            room -= one->cost();
        }
        for (const Text& one : old) {
            const auto end = before.tokens().begin() + one.start + one.size;
            if (one.left) place({end - one.left, end}, one.used, one.kept);
        }
    }

    int64_t most_, now_ = 0, version_ = 0, sizes_[2] = {0, 0};  // of outputs and of kept ones
    Index index_;
    std::vector<Text> texts_;  // in the order of the index
};
