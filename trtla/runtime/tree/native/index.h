// Texts to draft from: for each position, the earlier ones that end in the same tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

constexpr int32_t SEPARATOR = -1;  // between two texts; no token
constexpr int LONGEST_MATCH = 32;

// The tokens before a position, the latest first.
struct Tail {
    int32_t tokens[LONGEST_MATCH];
    int size = 0;
};

struct Place {
    int32_t next;   // place of the token that continues the match
    int32_t match;  // tokens before it that are those of the tail; at most LONGEST_MATCH
};

// The latest position of every n-gram of LENGTH tokens, and for each position the one before it.
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

    // The latest position that ends as the tail does; -1: none.
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

    // Find earlier positions of the tail, to read what followed it: longer n-grams first, the
    // latest positions of each.
    void find(const Tail& tail, std::vector<Place>& matches) {
        for (Places& places : lengths_) {
            int32_t place = places.latest(tokens_, tail);
            for (int looked = 0; place >= 0 && looked < MOST_LOOKED; ++looked) {
                add(tail, place, matches);
                place = places.before(place);
            }
        }
    }

    // The places of a node that continue with a token: those of its child.
    void follow(const std::vector<Place>& places, int32_t token,
                std::vector<Place>& matches) const {
        const int32_t size = tokens_.size();
        for (const Place& place : places)
            if (tokens_[place.next] == token && place.next + 1 < size &&
                tokens_[place.next + 1] != SEPARATOR)
                matches.push_back({place.next + 1, std::min(place.match + 1, LONGEST_MATCH)});
    }

private:
    static constexpr int MOST_LOOKED = 16;

    void add(const Tail& tail, int32_t place, std::vector<Place>& matches) const {
        const int32_t next = place + 1;
        if (next >= (int32_t)tokens_.size() || tokens_[next] == SEPARATOR) return;
        for (const Place& known : matches)
            if (known.next == next) return;
        int match = 0;
        while (match < tail.size && match <= place && tokens_[place - match] == tail.tokens[match])
            ++match;
        matches.push_back({next, match});
    }

    std::vector<int32_t> tokens_;
    Places lengths_[3] = {Places(4), Places(2), Places(1)};
};

// Texts that every request drafts from: kept ones, up to a limit of tokens, and outputs, in the
// rest of it or at least a quarter. The least recently used ones of each kind are dropped.
class Texts {
public:
    explicit Texts(int64_t most) : most_(most) {}

    Index& index() { return index_; }
    int64_t version() const { return version_; }

    // Add a text, or the end of one that is too long.
    void add(const int32_t* tokens, int64_t count, bool kept) {
        if (count == 0) return;
        const int64_t limit = kept ? most_ : std::max(most_ - sizes_[1], most_ / 4);
        if (count > limit) tokens += count - limit, count = limit;
        if (sizes_[kept] + count > limit) {
            const int64_t room = limit - limit / 4 - count;
            drop(kept, kept && room < 0 ? limit - count : room);
        }
        place(std::vector<int32_t>(tokens, tokens + count), ++now_, kept);
    }

    // Mark the text that holds this place as used.
    void touch(int32_t place) {
        auto text = std::upper_bound(texts_.begin(), texts_.end(), place,
                                     [](int32_t at, const Text& text) { return at < text.start; });
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

    // Rebuild the index with the most recently used texts of a kind, up to `room` tokens, and the
    // end of the one that does not fit; the other kind stays.
    void drop(bool kept, int64_t room) {
        std::vector<Text> old;
        old.swap(texts_);
        const Index before = std::move(index_);
        index_ = Index();
        sizes_[0] = sizes_[1] = 0;
        ++version_;
        std::vector<Text*> latest;
        for (Text& text : old)
            if (text.kept == kept) latest.push_back(&text);
        std::sort(latest.begin(), latest.end(),
                  [](const Text* a, const Text* b) { return a->used > b->used; });
        for (Text* text : latest) {
            const int64_t fits = room - (text->cost() - text->size);
            text->left = std::max<int64_t>(0, std::min<int64_t>(text->size, fits));
            room -= text->cost();
        }
        for (const Text& text : old) {
            const auto end = before.tokens().begin() + text.start + text.size;
            if (text.left) place({end - text.left, end}, text.used, text.kept);
        }
    }

    int64_t most_, now_ = 0, version_ = 0, sizes_[2] = {0, 0};  // of outputs and of kept ones
    Index index_;
    std::vector<Text> texts_;  // in the order of the index
};
