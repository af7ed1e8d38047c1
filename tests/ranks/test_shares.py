"""Each rank's share of a step sees exactly the tokens that it would see in one process."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from trtla.runtime.draft import Draft, NoDrafter, depths
from trtla.runtime.ranks.steps import Shares, node_owners, share
from trtla.runtime.request import Request
from trtla.runtime.sequence import Feed, Sequence
from trtla.settings.lookahead import AUTOREGRESSIVE

BLOCK, BLOCKS = 4, 40


@st.composite
def trees(draw, most=24):
    return tuple(draw(st.integers(0, node)) for node in range(draw(st.integers(0, most))))


@examples(300)
@given(trees(), st.integers(1, 5))
def test_all_is_shared_out_and_ancestors_come_along(parents, ranks):
    parts = share(parents, ranks)
    assert len(parts) == ranks
    assert set().union(*parts) == set(range(len(parents) + 1))
    for part in parts:
        assert list(part) == sorted(set(part))
        assert part[0] == 0
        assert all(parents[node - 1] in part for node in part[1:])
    owners = node_owners(parents, ranks)
    assert all(node in parts[owner] for node, owner in enumerate(owners))
    largest = max(map(len, parts)) - 1
    assert max(depths(parents)) <= largest <= len(parents)


@examples(100)
@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 6))
def test_chains_side_by_side_are_shared_out_evenly(count, length, ranks):
    parents = tuple(0 if node % length == 0 else node for node in range(count * length))
    largest = max(map(len, share(parents, ranks)))
    assert largest == 1 + -(-count // ranks) * length


def test_columns_of_a_window_see_its_first_row():
    parents = (0, 1, 2, 1, 2, 3, 4, 5, 6)  # a first row of 3 cells, and a column below each
    assert share(parents, 2) == ((0, 1, 2, 3, 6, 9), (0, 1, 2, 4, 5, 7, 8))


def test_what_is_one_chain_is_one_rank_s():
    assert share((0, 1, 2), 3) == ((0, 1, 2, 3), (0,), (0,))


class Rank:
    """A rank whose cache holds, for every slot, the tokens that its row was computed from."""

    def __init__(self, rank, ranks):
        self.shares = Shares(rank, ranks, BLOCK * BLOCKS, order)
        self.rows = {}

    def run(self, feeds, moves, shared):
        """What this rank's wanted rows were computed from, feed by feed."""
        found = [(self.rows[source], target) for source, target in self.shares.moved(moves)]
        self.rows.update((target, row) for row, target in found)
        own = self.shares.taken(feeds, shared)
        seen = [self.feed(one) for one in own]
        for feed, paths in zip(own, seen, strict=True):
            slots = order(feed.sequence.blocks)[feed.sequence.num_cached :]
            self.rows.update(zip(slots, paths, strict=False))
        return [[paths[row] for row in feed.rows] for feed, paths in zip(own, seen, strict=True)]

    def feed(self, feed):
        """What each fed token is computed from: the cache, its ancestors, itself."""
        slots = order(feed.sequence.blocks)[: feed.sequence.num_cached]
        cached = [self.rows[slot] for slot in slots]
        text = cached[-1] if cached else ()
        assert cached == [text[: at + 1] for at in range(len(text))]
        paths = []
        for node, token in enumerate(feed.tokens):
            before = node - 1 if feed.draft is None else ([-1, *feed.draft.parents][node])
            paths.append((*paths[before], token) if node else (*text, token))
        assert feed.positions() == [len(path) - 1 for path in paths]
        return paths


def order(blocks):
    """A sequence's slots; like the cache's, a range where they follow each other."""
    slots = [block * BLOCK + place for block in blocks for place in range(BLOCK)]
    whole = range(slots[0], slots[0] + len(slots))
    return whole if list(whole) == slots else slots


class Texts:
    """Rank 0's view: texts in flight, blocks of ended ones that begin others, moves to be told."""

    def __init__(self, data):
        self.data, self.live, self.kept, self.moves = data, [], [], []
        self.free = list(range(BLOCKS))

    def draw(self, least, most):
        return self.data.draw(st.integers(least, most))

    def begin(self):
        """A text of its own blocks behind those of an ended one, in no order."""
        shared, start = (), ()
        if self.kept and self.draw(0, 1):
            blocks, text = self.kept[self.draw(0, len(self.kept) - 1)]
            count = self.draw(1, len(blocks))
            shared, start = blocks[:count], text[: count * BLOCK]
        count = max(0, 8 - len(shared))
        if len(self.free) < count:
            return
        own = tuple(self.free.pop(self.draw(0, len(self.free) - 1)) for _ in range(count))
        prompt = (*start, *(self.draw(0, 9) for _ in range(self.draw(1, 5))))
        request = Request(0, prompt)
        blocks = (shared + own)[: max(8, len(shared) + 2)]
        if len(blocks) * BLOCK < len(prompt) + 8:
            self.free += own
            return
        self.live.append(Sequence(request, AUTOREGRESSIVE, NoDrafter(), [], len(start), blocks))

    def end(self, one):
        """Its blocks begin other texts where they are full, and are free where they are not."""
        self.live.remove(one)
        full = one.num_cached // BLOCK
        known = {block for blocks, _ in self.kept for block in blocks}
        self.free += [block for block in one.blocks[full:] if block not in known]
        if full:
            self.kept.append((one.blocks[:full], one.cached_text))

    def feed(self, one):
        """A stretch of its prompt, or a tree that fits its blocks; None: it is full."""
        left = len(one.prompt) - one.num_cached
        if not one.output_ids:
            length = self.draw(1, left)
            return Feed.prompt(one, length, length == left)
        room = len(one.blocks) * BLOCK - one.num_cached - 1
        if room < 1:
            return None
        parents = self.data.draw(trees(min(room, 9)))
        draft = Draft(tuple(self.draw(0, 9) for _ in parents), parents)
        return Feed.step(one, draft)

    def commit(self, feed):
        """Accept some path of the tree."""
        one = feed.sequence
        if feed.draft is None:
            one.num_cached += feed.length
            one.output_ids += [self.draw(0, 9)] if feed.rows else []
            return
        kept = feed.draft.path(self.draw(0, len(feed.draft.tokens)))
        slots, base = order(one.blocks), one.num_cached
        if kept and kept[-1] > len(kept):
            sources = (slots[base + node] for node in kept)
            self.moves += zip(sources, slots[base + 1 :], strict=False)
        one.output_ids += [feed.draft.tokens[node - 1] for node in kept] + [self.draw(0, 9)]
        one.num_cached += 1 + len(kept)


def wanted(feed):
    """What each wanted row is computed from where all is fed."""
    text = feed.sequence.cached_text
    if feed.draft is None:
        return [(*text, *feed.tokens[: row + 1]) for row in feed.rows]
    return [(*text, feed.tokens[0], *feed.draft.tokens_to(row)) for row in feed.rows]


@examples(150)
@given(st.data(), st.integers(1, 4))
def test_whatever_happens_to_texts_every_row_is_computed_once_and_from_the_right_tokens(
    data, count
):
    texts, ranks = Texts(data), [Rank(rank, count) for rank in range(count)]
    for _ in range(texts.draw(1, 14)):
        while len(texts.live) < 3 and texts.draw(0, 2):
            texts.begin()
        feeds = [feed for feed in map(texts.feed, texts.live) if feed is not None]
        feeds.sort(key=lambda feed: feed.draft is not None)
        if not feeds:
            continue
        moves, texts.moves = texts.moves, []
        shared = bool(texts.draw(0, 3))
        owners = iter(ranks[0].shares.owners(feeds, shared))
        said = [[iter(rows) for rows in rank.run(feeds, moves, shared)] for rank in ranks]
        for turn, feed in enumerate(feeds):
            for row in wanted(feed):
                assert next(said[next(owners)][turn]) == row
            assert all(next(one[turn], None) is None for one in said)
        for feed in feeds:
            texts.commit(feed)
        for one in [one for one in texts.live if not texts.draw(0, 3)]:
            texts.end(one)


def text(prompt, output, cached, blocks):
    return Sequence(Request(0, prompt), AUTOREGRESSIVE, NoDrafter(), output, cached, blocks)


def fork(one):
    """A step of two branches, the second of which is the second rank's."""
    return Feed.step(one, Draft((7, 8, 9, 9), (0, 1, 0, 3)))


def test_what_a_rank_lacks_is_fed_once_and_by_all_texts_that_share_it():
    rank = Rank(1, 2)
    first = text((1, 2), [3], 0, (0, 1, 4, 5))
    rank.run([Feed.prompt(first, 2, is_last=True)], [], shared=True)
    first.num_cached = 2
    rank.run([fork(first)], [], shared=True)  # 7 and 8 are accepted, which rank 0 fed
    first.num_cached, first.output_ids = 5, [3, 7, 8, 4]
    others = [text((1, 2, 3, 7, 5), [], 4, (0, block)) for block in (2, 3)]
    own = rank.shares.taken([Feed.prompt(one, 1, is_last=True) for one in others], shared=True)
    assert [one.tokens for one in own] == [(7, 5), (7, 5)]
    (own,) = rank.shares.taken([fork(first)], shared=True)
    assert own.tokens == (8, 4, 9, 9)
    assert own.draft.parents == (0, 1, 2)
    first.num_cached, first.output_ids = 6, [3, 7, 8, 4, 1]
    (own,) = rank.shares.taken([fork(first)], shared=True)
    assert own.tokens == (1, 9, 9)


def test_steps_that_are_not_shared_out_are_rank_0_s():
    feeds = [fork(text((1, 2), [3], 2, (0, 1)))]
    whole, other = (Rank(rank, 2).shares.taken(feeds, shared=False)[0] for rank in range(2))
    assert (whole.tokens, whole.rows) == ((3, 7, 8, 9, 9), feeds[0].rows)
    assert (other.tokens, other.rows) == ((3,), ())
