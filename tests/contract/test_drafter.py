"""The drafter for TensorRT-LLM's PyTorch backend, on a stand-in for what that one shows it."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.standin import Standin
from trtla import TrtlaError, UsageError
from trtla.runtime.draft import Draft
from trtla.trtllm.drafter import (
    ChainRequest,
    Chains,
    ChainSettings,
    _likeliest,
    open_drafter,
    speculative_config,
)

VOCAB, END = 50, 49
SETTINGS = ChainSettings(4, VOCAB)
RELEASES = pytest.mark.parametrize("standin", ["1.2.1", "1.3.0rc15"], indirect=True)


def script(seed: int, size: int = 60, words: int = 6) -> list[int]:
    dice = Random(seed)
    known = [[dice.randrange(END) for _ in range(5)] for _ in range(words)]
    text = [token for _ in range(size) for token in dice.choice(known)]
    return text[:size]


def follow(text: Sequence[int]) -> Callable[[Sequence[int]], int]:
    return lambda tokens: text[len(tokens)]


def chatter(tokens: Sequence[int]) -> int:
    """A target whose next token depends on the last three, the end token once in a while."""
    return sum(token * weight for token, weight in zip(tokens[-3:], (7, 3, 11), strict=False)) % 50


def plain(prompt: Sequence[int], target: Callable[[Sequence[int]], int], most: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + most and tokens[-1] != END:
        tokens.append(target(tokens))
    return tokens


class Backend:
    """The stand-in's executor with trtla's drafter."""

    def __init__(self, standin: Standin, max_input_len: int = 8192, **settings: Any) -> None:
        loop = standin.load("_torch.pyexecutor.py_executor")
        self._requests = standin.load("_torch.pyexecutor.llm_request")
        config = speculative_config(settings.pop("most", 4), VOCAB, **settings)
        self.loop = loop.PyExecutor(config, VOCAB, max_input_len)
        self._count = 0

    @property
    def chains(self) -> Chains:
        chains = self.loop.drafter.chains
        assert isinstance(chains, Chains)
        return chains

    def enqueue(
        self,
        prompt: Sequence[int],
        target: Callable[[Sequence[int]], int],
        most: int,
        **sampling: float,
    ) -> Any:
        self._count += 1
        config = self._requests.SamplingConfig(**sampling)
        request = self._requests.LlmRequest(self._count, prompt, most, END, config)
        self.loop.enqueue(request, target)
        return request

    def say(self, text: Sequence[int], prompt: int = 10, **sampling: float) -> int:
        """Let a request say a text; how many passes it took after its prompt."""
        before = self.loop.passes
        request = self.enqueue(text[:prompt], follow(text), len(text) - prompt, **sampling)
        while self.loop.step():
            pass
        assert request.get_tokens(0) == list(text)
        return int(self.loop.passes - before - 1)


@RELEASES
def test_every_text_is_the_targets_own_and_takes_fewer_passes(standin: Standin) -> None:
    backend, dice = Backend(standin), Random(1)
    prompts = [[dice.randrange(END) for _ in range(dice.randrange(1, 30))] for _ in range(12)]
    requests = [backend.enqueue(prompt, chatter, 80) for prompt in prompts]
    texts = [script(seed) for seed in range(6)]
    requests += [backend.enqueue(text[:20], follow(text), 40) for text in texts]
    while backend.loop.step():
        assert len(backend.chains) <= len(requests)
    expected = [plain(prompt, chatter, 80) for prompt in prompts] + texts
    assert [request.get_tokens(0) for request in requests] == expected
    assert backend.loop.passes < 80
    assert backend.loop.accepted > 0
    assert len(backend.chains) == 0


def test_a_text_that_repeats_takes_a_fraction_of_the_passes(standin: Standin) -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 20
    assert Backend(standin, most=8).say(text, prompt=24) < (len(text) - 24) / 4


def test_outputs_of_ended_requests_are_drafted_from(standin: Standin) -> None:
    dice = Random(3)
    text = [dice.randrange(END) for _ in range(90)]
    alone, shared = Backend(standin, other_tokens=0), Backend(standin)
    first, again = alone.say(text), alone.say(text)
    assert again > first - 5
    first, again = shared.say(text), shared.say(text)
    assert again < first / 2


def test_no_more_is_drafted_than_asked_or_than_is_left(standin: Standin) -> None:
    backend, text = Backend(standin, most=6), [1, 2, 3] * 30
    request = backend.enqueue(text[:60], follow(text), 5)
    assert backend.loop.step()
    assert backend.loop.step()
    assert backend.loop.drafted == 3  # one was said with the prompt, the pass says one itself
    assert not backend.loop.step()
    assert request.get_tokens(0) == text[:65]
    backend.loop.drafter.update_max_total_draft_tokens(2)
    backend.say(text, prompt=60)
    assert backend.loop.drafted <= 3 + 2 * backend.loop.passes


def test_a_request_without_speculation_reserves_no_room_and_gets_no_draft(standin: Standin) -> None:
    backend, text = Backend(standin), [1, 2, 3] * 10
    request = backend.enqueue(text[:15], follow(text), 15)
    request.py_disable_speculative_decoding = True
    while backend.loop.step():
        pass
    assert request.get_tokens(0) == text
    assert backend.loop.drafted == 0


@pytest.mark.parametrize(
    ("sampling", "greedy"),
    [
        ({}, True),
        ({"temperature": 0.0}, True),
        ({"temperature": 0.7, "top_k": 1}, True),
        ({"temperature": 0.7}, False),
        ({"top_p": 0.9}, False),
        ({"min_p": 0.1}, False),
    ],
)
def test_requests_that_sample_are_drafted_for_on_request(
    standin: Standin, sampling: dict[str, float], greedy: bool
) -> None:
    backend, asked = Backend(standin), Backend(standin, sampled=True)
    backend.say([1, 2, 3] * 10, **sampling)
    asked.say([1, 2, 3] * 10, **sampling)
    assert (backend.loop.drafted > 0) == greedy
    assert asked.loop.drafted > 0


@pytest.mark.parametrize("max_input_len", [8192, 25])
def test_an_evicted_request_goes_on_where_it_was(standin: Standin, max_input_len: int) -> None:
    backend, text = Backend(standin, max_input_len), script(5, 120)
    request = backend.enqueue(text[:20], follow(text), 100)
    other = backend.enqueue(text[5:30], follow(text[5:]), 60)
    for _ in range(8):
        backend.loop.step()
    before, drafted = len(request.get_tokens(0)), backend.loop.drafted
    backend.loop.evict(request)
    assert len(request.get_tokens(0)) == min(before, max_input_len)
    while backend.loop.step():
        pass
    assert request.get_tokens(0) == text
    assert other.get_tokens(0) == text[5:90]
    assert backend.loop.drafted > drafted
    assert len(backend.chains) == 0


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
    """TensorRT-LLM lengthens the list; a padding that comes true was no proposal of the tree."""
    chains, text = Chains(SETTINGS), [1, 2, 0, 9] * 4
    [chain] = chains.draft([ChainRequest(0, text, 8, 2)])
    assert chain == [1, 2]
    chain += [0, 9]
    assert chains._requests[0].chain == [1, 2]
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
    text, sizes = script(8, 400), []
    for least in (0.02, 0.3, 0.97):
        chains = Chains(ChainSettings(12, VOCAB, least))
        sizes.append(
            sum(len(chains.draft([ChainRequest(0, text[:at], 20, 12)])[0]) for at in range(20, 400))
        )
    assert sizes[0] > sizes[1] > sizes[2]


def test_a_chain_is_the_path_of_best_nodes() -> None:
    assert _likeliest(Draft((5, 6, 7, 8, 9), (0, 0, 2, 1, 4))) == [5, 8, 9]
    assert _likeliest(Draft()) == []


def test_ids_outside_the_vocabulary_are_never_drafted(standin: Standin) -> None:
    backend = Backend(standin)
    text = [1, 2, 3, 900_000, -3, 2**40, 1, 2, 3, 4, 5, 6] * 3
    request = backend.enqueue([*text, 1, 2], chatter, 30)
    while backend.loop.step():
        pass
    assert request.get_tokens(0) == plain([*text, 1, 2], chatter, 30)
    [chain] = Chains(SETTINGS).draft([ChainRequest(0, [*text, 1, 2], len(text), 4)])
    assert chain[:1] == [3]
    assert set(chain) < set(range(VOCAB))


def test_the_end_token_is_drafted_like_any_other_and_ends_the_text(standin: Standin) -> None:
    backend = Backend(standin)
    text = [*script(4, 40), END]
    for _ in range(3):
        request = backend.enqueue(text[:10], follow([*text, 1, 2, 3]), 200)
        while backend.loop.step():
            pass
        assert request.get_tokens(0) == text


@pytest.mark.deep(first=1)
@pytest.mark.parametrize("told", [True, False])
def test_memory_is_bounded_over_ten_thousand_requests(
    told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no resource manager says that a request is over."""
    monkeypatch.setattr("trtla.trtllm.drafter._IDLE", 100)
    dice, chains = Random(6), Chains(ChainSettings(4, VOCAB, other_tokens=5000))
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


def test_copies_on_several_ranks_draft_the_same(standin: Standin) -> None:
    """A copy begins with empty trees and with the settings of the original."""
    first = open_drafter(SETTINGS)
    first.chains.draft([ChainRequest(0, [1, 2] * 9, 4, 4)])
    ranks = [pickle.loads(pickle.dumps(first)) for _ in range(2)]  # noqa: S301
    assert [len(rank.chains) for rank in ranks] == [0, 0]
    assert all(rank.settings == SETTINGS and rank.requests.drafter is rank for rank in ranks)
    text = script(9, 300)
    for at in range(10, 300, 3):
        asked = [ChainRequest(at // 60, text[:at], 10, 4)]
        assert ranks[0].chains.draft(asked) == ranks[1].chains.draft(asked)


def test_without_a_release_that_takes_drafters_the_error_says_so() -> None:
    with pytest.raises(TrtlaError, match="TensorRT-LLM is not installed"):
        speculative_config(4, VOCAB)


@pytest.mark.parametrize("standin", ["0.21.0"], indirect=True)
def test_an_old_release_takes_no_drafter(standin: Standin) -> None:
    with pytest.raises(TrtlaError, match=r"TensorRT-LLM 0\.21\.0 takes no drafter"):
        speculative_config(4, VOCAB)


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


@pytest.mark.parametrize("standin", ["1.0.0", "1.1.0"], indirect=True)
def test_the_drafter_of_earlier_releases_takes_other_arguments(standin: Standin) -> None:
    with pytest.raises(TrtlaError, match="takes other arguments") as caught:
        open_drafter(ChainSettings(8, 100))
    assert "from 1.2 on" in str(caught.value.hint)
