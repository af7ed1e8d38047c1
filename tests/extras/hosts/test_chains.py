"""Chains for hosts that verify one a request: what is drafted, learnt, recognised and forgotten."""

from __future__ import annotations

import gc
import threading
from array import array
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.trees import phrases
from trtla.errors import UsageError
from trtla.extras.hosts.chains import ChainRequest, Chains, ChainSettings
from trtla.extras.hosts.trees import best_path
from trtla.runtime.draft import Draft

VOCAB, END = 50, 49
SETTINGS = ChainSettings(4, VOCAB)


def test_a_known_text_that_goes_on_keeps_its_tree_and_another_one_begins_anew() -> None:
    chains, text = Chains(SETTINGS), [1, 2, 3, 4] * 5
    ask = ChainRequest(7, text, 8, 4)
    assert chains.draft([ask]) == [[1, 2, 3, 4]]
    known = chains._requests[7]
    longer = [*text, 1, 2, 30]
    chains.draft([replace(ask, tokens=longer)])
    assert chains._requests[7] is known
    assert chains.draft([replace(ask, tokens=text)]) == [[1, 2, 3, 4]]  # shorter than it was
    assert chains._requests[7] is not known
    assert chains.draft([replace(ask, tokens=[9, 8] * 10)]) == [[9, 8, 9, 8]]
    assert len(chains) == 1


def test_tokens_that_no_chain_had_become_part_of_the_text() -> None:
    chains = Chains(SETTINGS)
    assert chains.draft([ChainRequest(0, [1, 2] * 4, 8, 4)]) == [[1, 2, 1, 2]]
    [chain] = chains.draft([ChainRequest(0, [1, 2] * 4 + [1, 7, 8, 9, 7, 8, 9, 7], 8, 4)])
    assert chain == [8, 9, 7, 8]


def test_what_is_done_to_a_draft_stays_outside() -> None:
    """Some hosts lengthen the list; a padding that comes true was no proposal of the tree."""
    chains, text = Chains(SETTINGS), [1, 2, 0, 9] * 4
    [chain] = chains.draft([ChainRequest(0, text, 8, 2)])
    assert chain == [1, 2]
    chain += [0, 9]
    assert chains._requests[0].draft.tokens == (1, 2)
    assert chains.draft([ChainRequest(0, [*text, 1, 2, 0, 9], 8, 2)]) == [[1, 2]]


def test_accepted_tokens_are_learnt_from_at_their_depth() -> None:
    chains, text = Chains(SETTINGS), [1, 2, 3, 4, 5] * 30
    for at in range(20, 100, 5):
        chains.draft([ChainRequest(0, text[:at], 20, 4)])
    assert chains._requests[0].tree.counts()["context"].accepted == (15, 15, 15, 15)


def test_chains_get_shorter_where_they_are_wrong_and_longer_where_they_are_right() -> None:
    """Learnt at every token, whether anything was drafted or not: here nothing may be."""
    dice, sizes = Random(2), {}
    for right in (True, False):
        chains = Chains(ChainSettings(16, VOCAB))
        text = [dice.randrange(5) for _ in range(40)]
        for _ in range(150):
            text = [*text, text[-40] if right else dice.randrange(5)]
            chains.draft([ChainRequest(0, text, 40, 0)])
        [chain] = chains.draft([ChainRequest(0, text, 40, 16)])
        sizes[right] = len(chain)
    assert sizes[True] == 16
    assert sizes[False] < 8


def test_a_chain_ends_below_the_least_chance() -> None:
    text, sizes = phrases(8, 400), []
    for least in (0.02, 0.3, 0.97):
        chains = Chains(ChainSettings(12, VOCAB, least))
        sizes.append(
            sum(len(chains.draft([ChainRequest(0, text[:at], 20, 12)])[0]) for at in range(20, 400))
        )
    assert sizes[0] > sizes[1] > sizes[2]


def test_a_chain_is_the_path_of_best_nodes() -> None:
    assert best_path(Draft((5, 6, 7, 8, 9), (0, 0, 2, 1, 4))) == [1, 4, 5]
    assert best_path(Draft()) == []


@pytest.mark.deep(first=1)
@pytest.mark.parametrize("told", [True, False])
def test_memory_is_bounded_over_ten_thousand_requests(told: bool) -> None:
    """Also where no resource manager says that a request is over."""
    dice, chains = Random(6), Chains(ChainSettings(4, VOCAB, other_tokens=5000, idle=100))
    before = 0
    for first in range(0, 10_000, 20):
        texts = [[dice.randrange(END) for _ in range(30)] for _ in range(20)]
        for size in (22, 30):
            asked = [ChainRequest(first + n, text[:size], 15, 4) for n, text in enumerate(texts)]
            chains.draft(asked)
        for n, text in enumerate(texts):
            if told:
                chains.end(first + n, text)
        if first == 7000:
            before = resident_bytes()
    assert len(chains) <= (0 if told else 20 * 100 // 2 + 20)
    held = [len(text) for text in chains._shared.texts()]
    assert 1000 < sum(held) <= 5000
    assert resident_bytes() - before < 8e6


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_calls_from_several_threads_do_not_meet() -> None:
    chains, text, wrong = Chains(SETTINGS), [1, 2, 3, 4] * 10, list[object]()

    def work(first: int) -> None:
        for request in range(first, first + 100):
            if chains.draft([ChainRequest(request, text, 8, 4)]) != [[1, 2, 3, 4]]:
                wrong.append(request)
            chains.end(request, [*text, 1])

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(chains) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_draft_len": 0},
        {"vocab_size": True},
        {"other_tokens": -1},
        {"least_chance": 0.0},
        {"least_chance": 1.0},
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        ChainSettings(**{"max_draft_len": 4, "vocab_size": VOCAB, **wrong})


def test_requests_without_a_number_are_recognised_by_their_tokens() -> None:
    """Their order is another one in each pass, and one of them is left out."""
    chains, texts, dice = Chains(SETTINGS), [phrases(seed, 100) for seed in range(4)], Random(1)
    for at in range(20, 101, 4):
        some = range(4) if at in (20, 100) else dice.sample(range(4), 3)
        chains.draft([ChainRequest(None, texts[one][:at], 20, 4) for one in some])
        assert len(chains) == 4
    outputs = sorted(list(known.output) for known in chains._requests.values())
    assert outputs == sorted(text[20:] for text in texts)


def test_equal_texts_are_two_requests_and_a_shorter_one_is_a_new_one() -> None:
    chains, text = Chains(SETTINGS), phrases(3, 80)
    for at in (30, 40):
        chains.draft([ChainRequest(None, text[:at], 20, 4)] * 2)
        assert len(chains) == 2
    chains.draft([ChainRequest(None, [*text[:40], 7], 20, 4), ChainRequest(None, text[:39], 20, 4)])
    assert len(chains) == 3


def test_anything_that_slices_is_a_text() -> None:
    chains, text = Chains(SETTINGS), phrases(3, 80)
    views = Chains(SETTINGS)
    for at in (30, 41, 80):
        chain = chains.draft([ChainRequest(0, text[:at], 20, 4)])
        view = memoryview(array("i", text))[:at]
        assert views.draft([ChainRequest(0, view, 20, 4)]) == chain
    assert views._requests[0].output == chains._requests[0].output
