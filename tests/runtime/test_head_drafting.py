"""A trained head as a source of rows: what it is fed, what it finds, and that no text changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.toy_heads import ToyHead, ToyMedusa, shifted
from tests.support.toys import ToyModel, hash_scores, request, run, tokens_of, toy_executor
from trtla.errors import UsageError
from trtla.results.doubts import HeadDoubts
from trtla.runtime.auto.steps import StepCosts
from trtla.runtime.costs import CostTable
from trtla.runtime.draft import NoDrafter
from trtla.runtime.drafters import eagle
from trtla.runtime.drafters.eagle import EagleDrafters
from trtla.runtime.drafters.factory import Drafters
from trtla.runtime.drafters.medusa import MedusaDrafters
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.executor import TorchExecutor
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.executor import ExecutorOptions
from trtla.settings.lookahead import LookaheadConfig

VOCAB = 16
TRIPLE = LookaheadConfig(7, 7, 7)
SCORES = hash_scores(VOCAB, spread=6.0)
FLAT = CostTable.of([(1, 1.0), (64, 1.05)])
"""Costs of a machine on which drafts are nearly free."""
WITH_HEAD = DrafterSettings(("head:H",))
HEAD_ALONE = DraftOptions(sources=("head",))


def executor(row, **how):
    """An executor over a toy with a head, and that head."""
    head = ToyHead(row)
    blocks = how.setdefault("blocks", 64)
    return opened(EagleDrafters(head, head.new_cache(blocks), (0,)), **how), head


def opened(
    heads, *, scores=SCORES, blocks=64, most_tokens=4096, options=HEAD_ALONE, reused=0, batch=8
):
    model = ToyModel(scores)
    model.taps = (0,)
    limits = ExecutorLimits(
        batch, 160, 160, most_tokens, VOCAB, TRIPLE, drafter=WITH_HEAD, heads=("H",)
    )
    drafters = Drafters(limits, options, {}, {"H": heads})
    parts = (model, model.new_cache(blocks), limits, drafters, StepCosts(FLAT), reused)
    return TorchExecutor(*parts, options=ExecutorOptions(draft_options=options))


def asked(index=0, length=30, prompt=(3, 1, 4), **sampling):
    return request(prompt, length, request_id=index, adaptive=True, **sampling)


def counting(length):
    return tuple(place % VOCAB for place in range(1, 1 + length))


def plain_texts(requests, scores=SCORES):
    """The same requests decoded without drafts."""
    plain, _ = toy_executor(scores, VOCAB, LookaheadConfig(1, 1, 0), drafter=lambda *_: NoDrafter())
    outputs = run(plain, [replace(one, adaptive=False) for one in requests])
    return [tokens_of(outputs[one.request_id]) for one in requests]


SAMPLED = [{}, {"temperature": 0.8, "seed": 5}, {"temperature": 0.8, "top_p": 0.6, "seed": 7}]


@pytest.mark.parametrize("how", SAMPLED)
def test_what_a_head_that_knows_the_target_reads_ahead_is_always_right(how):
    """The noise that draws the target's tokens ranks the head's as well, after the same filters."""
    decoding, head = executor(SCORES)
    one = asked(length=80, **how)
    outputs = run(decoding, [one])[0]
    text = [*one.input_ids, *tokens_of(outputs)]
    assert text[3:] == plain_texts([one])[0]
    guessed = [(place, token) for place, token in head.guessed if place < len(text)]
    assert len(guessed) > 60
    assert all(text[place] == token for place, token in guessed)
    assert sum(outputs[-1].stats.sources["head"].accepted) >= 60


@pytest.mark.parametrize("row", [shifted(SCORES, 5), lambda text: [0.0] * VOCAB])
@pytest.mark.parametrize("how", SAMPLED)
def test_a_head_that_is_wrong_changes_no_text_and_retires(row, how):
    decoding, _ = executor(row)
    requests = [asked(index, 120, (3, index), **how) for index in range(4)]
    outputs = run(decoding, requests)
    assert [tokens_of(outputs[one.request_id]) for one in requests] == plain_texts(requests)


@pytest.mark.parametrize("most_tokens", [4096, 5])
def test_requests_of_all_kinds_have_their_texts(most_tokens):
    """Chunked prompts, batches, ends inside a draft: `ToyHead` checks every pair that it is fed."""
    decoding, _ = executor(SCORES, most_tokens=most_tokens)
    requests = [
        asked(
            index,
            5 + 3 * index,
            tuple(place % VOCAB for place in range(1, 2 + 4 * index)),
            **SAMPLED[index % 3],
        )
        for index in range(12)
    ]
    ends = plain_texts(requests)
    requests = [
        replace(one, end_ids=frozenset(ends[index][4:5])) if index % 2 else one
        for index, one in enumerate(requests)
    ]
    outputs = run(decoding, requests)
    assert [tokens_of(outputs[one.request_id]) for one in requests] == plain_texts(requests)


@pytest.mark.parametrize(("row", "share"), [(SCORES, 1.0), (shifted(SCORES, 5), 0.0)])
def test_what_a_head_did_is_counted_and_one_that_is_never_right_is_told_once(row, share):
    """A head that has retired is reported too: its trials are enough."""
    decoding, head = executor(row)
    before = decoding.stats()
    run(decoding, [asked(length=150), asked(1, 150)])
    found = decoding.stats().heads_since(before)
    assert (found.forwards, found.pairs) == (len(head.read), sum(map(sum, head.read)))
    assert (found.hits / found.drafts, found.drafts >= 16) == (share, True)
    assert found.seconds > 0.0
    doubts = HeadDoubts()
    said = doubts.new(decoding.stats().heads)
    about = "the head H is right 0 % of the time: it may be another model's"
    assert said == ([] if share else [about])
    assert doubts.watches(["H"]) == bool(share)
    assert doubts.new(decoding.stats().heads) == []


def test_each_pair_is_read_once():
    decoding, head = executor(SCORES)
    one = asked(length=40, prompt=counting(14))
    outputs = run(decoding, [one])[0]
    last = outputs[-1].new_tokens
    known = 14 + 40 - len(last)  # pairs of the last step's tokens are never needed
    assert sum(real for real, _ in head.read) == known - 1


def test_a_head_begins_behind_kept_blocks():
    """The states of reused tokens never come: the head sees what follows them."""
    decoding, _ = executor(SCORES, reused=160)
    prompt = tuple(1 + place % 7 for place in range(70))
    first, second = asked(0, 20, prompt), asked(1, 20, (*prompt, 9, 9))
    wanted = plain_texts([first, second])
    assert [tokens_of(run(decoding, [one])[one.request_id]) for one in (first, second)] == wanted


def test_a_long_text_is_seen_through_a_window(monkeypatch):
    monkeypatch.setattr(eagle, "WINDOW", 20)
    monkeypatch.setattr(eagle, "_CHUNK", 8)
    seen = []

    def row(text):
        seen.append(len(text) - 1)
        return SCORES(text)

    decoding, _ = executor(row, most_tokens=30)
    one = asked(length=60, prompt=counting(70))
    assert tokens_of(run(decoding, [one])[0]) == plain_texts([one])[0]
    assert max(seen) <= 20 + eagle.MOST_LEVELS
    assert seen.count(20) > 5


@pytest.mark.parametrize("ended", [True, False])
def test_a_request_that_leaves_takes_its_pairs_along(ended):
    """Its blocks go to other requests, whose pairs are their own from the first one on."""
    decoding, _ = executor(SCORES, blocks=16, batch=2)
    requests = [asked(index, 40, (index + 1, 2)) for index in range(5)]
    for one in requests:
        decoding.submit(one)
    outputs = {one.request_id: [] for one in requests}
    for count in range(1000):
        if not (step := decoding.poll()):
            break
        if count == 3 and not ended:
            decoding.cancel(0)
        for output in step:
            outputs[output.request_id] += output.new_tokens
    wanted = plain_texts(requests)
    assert [outputs[index] for index in range(1, 5)] == wanted[1:]
    assert wanted[0][: len(outputs[0])] == outputs[0]
    assert (outputs[0] == wanted[0]) is ended


def test_a_head_drafts_beside_a_triple_and_beside_other_drafters():
    names = ("head:H", "prompt-lookup")
    for options in (DraftOptions(), HEAD_ALONE):
        decoding, _ = executor(SCORES, options=options)
        one = asked(length=40)
        requests = [
            replace(one, drafter=DrafterSettings(names)),
            replace(one, request_id=1, adaptive=False, lookahead=LookaheadConfig(3, 3, 3)),
            replace(one, request_id=2, adaptive=False, lookahead=LookaheadConfig(1, 1, 0)),
        ]
        outputs = run(decoding, requests)
        assert {tuple(tokens_of(one)) for one in outputs.values()} == {
            *map(tuple, plain_texts([one]))
        }
        assert all(one[-1].stats.sources["head"].fed for one in outputs.values())


def test_a_head_that_is_no_source_of_auto_is_not_read():
    decoding, head = executor(SCORES, options=DraftOptions(sources=("context",)))
    one = asked()
    assert tokens_of(run(decoding, [one])[0]) == plain_texts([one])[0]
    assert head.read == []


@pytest.mark.parametrize("gamma", [1, 4])
def test_a_head_reads_no_deeper_than_the_draft_may_be(gamma):
    """The blocks of the text hold its last token and the longest draft, and no slot behind."""
    decoding, head = executor(SCORES)
    drafter = DrafterSettings(("head:H",), gamma=gamma)
    one, alone = asked(length=29 - gamma), LookaheadConfig(1, 1, 0)
    outputs = run(decoding, [replace(one, drafter=drafter, lookahead=alone, adaptive=False)])[0]
    assert tokens_of(outputs) == plain_texts([one])[0]
    assert bool(head.guessed) == (gamma > 1)


def test_a_request_may_go_without_and_cannot_name_another_head():
    decoding, head = executor(SCORES)
    one = asked(drafter=DrafterSettings(("lookahead",)))
    assert tokens_of(run(decoding, [one])[0]) == plain_texts([one])[0]
    assert head.read == []
    with pytest.raises(UsageError, match="head other, which is not loaded") as caught:
        decoding.submit(asked(drafter=DrafterSettings(("head:other",))))
    assert caught.value.hint == "open the model with --drafter head:other"


@pytest.mark.parametrize("how", SAMPLED)
def test_medusa_heads_give_a_row_for_each_depth(how):
    def at(place):
        return SCORES([place % 5, place % 3, 1])

    def scores(text):
        return at(len(text))

    decoding = opened(MedusaDrafters(ToyMedusa(at, 4), 0), scores=scores)
    requests = [asked(index, 60, (index, 1), **how) for index in range(3)]
    outputs = run(decoding, requests)
    assert [tokens_of(outputs[one.request_id]) for one in requests] == plain_texts(requests, scores)
    for one in outputs.values():
        counts = one[-1].stats.sources["head"]
        assert len(counts.accepted) == 4
        assert sum(counts.accepted) > 40
