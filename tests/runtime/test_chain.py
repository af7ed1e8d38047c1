"""Chains of drafters: whose tokens a tree holds, and what every drafter is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.mixed import VOCAB, mixed_executor, plain_texts
from tests.support.toys import cyclic_window, request, run, tokens_of
from trtla.runtime.draft import Draft, NoDrafter
from trtla.runtime.drafters.chain import ChainDrafter
from trtla.runtime.drafters.lookahead import LookaheadDrafter
from trtla.runtime.drafters.prompt_lookup import PromptLookupDrafter
from trtla.settings.drafting import DrafterSettings
from trtla.settings.lookahead import LookaheadConfig


class Says(NoDrafter):
    """Proposes what it is given, and notes what it is told."""

    def __init__(self, draft: Draft) -> None:
        self.draft, self.told, self.tops, self.closed = draft, [], [], False
        self.asked = []

    def propose(self):
        self.asked.append("draft")
        return self.draft

    def skip(self):
        self.asked.append("nothing")
        return Draft(top=self.draft.top)

    def ranked(self, tops):
        self.tops.append(tops)

    def observe(self, greedy, committed):
        self.told.append((list(greedy), list(committed)))

    def close(self):
        self.closed = True


def chain_of(*drafts: Draft, budget: int = 100) -> tuple[ChainDrafter, list[Says]]:
    drafters = [Says(draft) for draft in drafts]
    windowed = next((i for i, draft in enumerate(drafts) if draft.first_candidate > 1), None)
    return ChainDrafter(drafters, budget, windowed), drafters


def test_branches_that_begin_alike_are_fed_once() -> None:
    chain, _ = chain_of(Draft.chain([1, 2, 3]), Draft.chain([1, 2, 4]), Draft.chain([5]))
    draft = chain.propose()
    assert draft.tokens == (1, 2, 3, 4, 5)
    assert draft.parents == (0, 1, 2, 2, 0)
    assert list(draft.candidates) == [1, 2, 3, 4, 5]


def test_the_next_drafters_get_what_the_first_leaves_of_the_budget() -> None:
    chain, _ = chain_of(Draft.chain([1, 2]), Draft.chain([3, 4, 5]), Draft.chain([1, 6]), budget=4)
    assert chain.propose().tokens == (1, 2, 3, 4)
    alone, _ = chain_of(Draft(), Draft.chain([7, 8]), budget=4)
    assert alone.propose() == Draft.chain([7, 8])


def test_shared_tokens_cost_nothing_when_the_budget_is_spent() -> None:
    chain, _ = chain_of(Draft.chain([1, 2]), Draft((1, 9, 1), (0, 0, 0)), budget=2)
    assert chain.propose().tokens == (1, 2)


def test_the_window_stands_first_and_its_readings_go_to_lookahead_alone() -> None:
    window = Draft((50, 51, 1, 2), (0, 1, 0, 3), first_candidate=3, read=(1, 2))
    chain, (first, lookahead) = chain_of(Draft.chain([1, 7]), window, budget=5)
    draft = chain.propose()
    assert draft.tokens == (50, 51, 1, 7, 2)
    assert draft.parents == (0, 1, 0, 3, 3)
    assert (draft.first_candidate, draft.read) == (3, (1, 2))
    chain.observe([8, 9], [1, 2, 6])
    assert first.told == [([], [1, 2, 6])]
    assert lookahead.told == [([8, 9], [1, 2, 6])]


def test_the_window_is_fed_even_where_it_fills_the_budget() -> None:
    window = Draft((50, 51, 1), (0, 1, 0), first_candidate=3, read=(0, 2))
    chain, _ = chain_of(Draft.chain([7]), window, budget=3)
    draft = chain.propose()
    assert draft.tokens == (50, 51, 7)
    assert draft.read == (0, 2)


def test_every_drafter_sees_as_many_probable_tokens_as_it_asked_for() -> None:
    chain, (one, two, none) = chain_of(
        Draft.chain([1], top=1), Draft.chain([], top=3), Draft.chain([2])
    )
    assert chain.propose().top == 3
    chain.ranked([(1, 5, 6), (7, 8, 9)])
    assert one.tops == [[(1,), (7,)]]
    assert two.tops == [[(1, 5, 6), (7, 8, 9)]]
    assert none.tops == []


def test_the_prompt_pass_reads_nothing_and_the_end_reaches_all() -> None:
    chain, drafters = chain_of(Draft.chain([1]), Draft((4,), (0,), first_candidate=2, read=(1,)))
    chain.observe([], [3])
    chain.close()
    assert [drafter.told for drafter in drafters] == [[([], [3])]] * 2
    assert all(drafter.closed for drafter in drafters)


def test_lookahead_in_a_chain_learns_what_it_learns_alone() -> None:
    """The target repeats 1 2 3 4: what the window reads is the same in both."""
    triple, prompt = LookaheadConfig(3, 3, 2), [1, 2, 3, 4, 1]
    alone = LookaheadDrafter(triple, prompt, cyclic_window)
    inside = LookaheadDrafter(triple, prompt, cyclic_window)
    chain = ChainDrafter([PromptLookupDrafter(3, prompt), inside], 20, 1)
    after = {1: 2, 2: 3, 3: 4, 4: 1}
    committed = [2]
    for drafter in (alone, chain):
        drafter.observe([], committed)
    for _ in range(6):
        ours, theirs = chain.propose(), alone.propose()
        window = theirs.first_candidate - 1
        assert ours.tokens[:window] == theirs.tokens[:window]
        for drafter, draft in ((alone, theirs), (chain, ours)):
            said = [after[(*draft.tokens, committed[-1])[node - 1]] for node in draft.read]
            drafter.observe(said, [after[committed[-1]]])
        committed = [after[committed[-1]]]
        keys = range(1, 5)
        assert [inside.pool.lookup(key) for key in keys] == [alone.pool.lookup(k) for k in keys]


def test_who_comes_when_the_tree_is_full_is_asked_for_nothing() -> None:
    window = Draft((50, 51, 4), (0, 1, 0), first_candidate=3, read=(1, 2))
    chain, (first, spare, lookahead, last) = chain_of(
        Draft.chain([1, 2]), Draft.chain([3]), window, Draft.chain([], top=2), budget=4
    )
    assert chain.propose().tokens == (50, 51, 1, 2)  # the window takes its room before all others
    assert [one.asked for one in (first, lookahead)] == [["draft"]] * 2
    assert [one.asked for one in (spare, last)] == [["nothing"]] * 2
    chain.ranked([(7, 8, 9)])
    chain.observe([5, 6], [1, 7])
    assert last.tops == [[(7, 8)]]  # it still learns what it learns from
    assert spare.told == last.told == [([], [1, 7])]
    roomy, (_, spare) = chain_of(Draft.chain([1, 2]), Draft.chain([3]), budget=3)
    assert roomy.propose().tokens == (1, 2, 3)
    assert spare.asked == ["draft"]


@pytest.mark.parametrize("heat", [0.0, 0.8])
@pytest.mark.parametrize("first", ["prompt-lookup", "ngram"])
def test_a_draft_model_makes_no_forward_where_its_tokens_could_not_be_fed(first, heat) -> None:
    """The text says 1 2 3 4 again and again, then something else for a while, then that again."""

    def scores(text):
        strange = 30 <= len(text) < 42
        wanted = len(text) ** 2 % 7 if strange else 1 + len(text) % 4
        return [40.0 * (token == wanted) for token in range(VOCAB)]

    gamma, prompt = 3, [1 + place % 4 for place in range(1, 12)]
    chosen = DrafterSettings((first, "draft:toy"), gamma=gamma, top_k_filler=1)
    executor, _, group = mixed_executor(LookaheadConfig(1, 1, 0), scores=scores)
    told: list[int] = []
    note_rooms(executor, told, gamma)
    asked = request(prompt, 60, drafter=chosen, temperature=heat, seed=3)
    outputs = run(executor, [asked])[0]
    text = list(prompt)
    for _ in range(60):
        row = scores(text)
        text.append(row.index(max(row)))
    assert tokens_of(outputs) == text[len(prompt) :]
    steps = outputs[-1].stats.steps
    full = told.count(0)
    assert 5 < full < steps == len(told)
    assert group.totals.steps == sum(room > 0 for room in told)
    assert group.totals.forwards <= gamma * (steps - full)
    assert group.cache.pool.num_free == group.cache.pool.num_blocks


def note_rooms(executor, told: list[int], gamma: int) -> None:
    """Note in every step how much of the budget the first of a chain leaves."""
    make = executor._drafting.drafters

    def watched(triple, request):
        chain = make(triple, request)
        propose = chain.drafters[0].propose

        def noted():
            draft = propose()
            told.append(gamma - len(draft.tokens))
            return draft

        chain.drafters[0].propose = noted
        return chain

    executor._drafting.drafters = watched


@examples(40)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9), st.integers(1, 30)),
        min_size=1,
        max_size=4,
    ),
    st.permutations(["ngram", "draft:toy", "prompt-lookup", "lookahead"]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.9]),
)
def test_chains_in_any_order_say_what_plain_decoding_says(prompts, order, count, gamma, heat):
    """Draft models that are asked in some steps only, beside others in the same batch."""
    chosen = DrafterSettings(tuple(order[:count]), gamma=gamma, stop_if_unknown=False)
    alone = DrafterSettings(("draft:toy",), gamma=gamma)
    asked = [
        request(prompt, length, None, i, drafter=chosen if i % 2 else alone, temperature=heat)
        for i, (prompt, length) in enumerate(prompts, 1)
    ]
    executor, _, group = mixed_executor(LookaheadConfig(3, 3, 2), draft_salt=1)
    outputs = run(executor, asked)
    assert {key: tokens_of(value) for key, value in outputs.items()} == plain_texts(asked)
    assert group.cache.pool.num_free == group.cache.pool.num_blocks
