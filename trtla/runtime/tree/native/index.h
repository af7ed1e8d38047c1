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

    int length() const { return length_; }
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
