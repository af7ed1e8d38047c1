"""The drafter for TensorRT-LLM's PyTorch backend, on a stand-in for what that one shows it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from tests.support.standin import Standin
from tests.support.trees import phrases
from trtla import TrtlaError
from trtla.extras.hosts.chains import ChainRequest, Chains, ChainSettings
from trtla.extras.hosts.tensorrt_llm import open_drafter, speculative_config

VOCAB, END = 50, 49
SETTINGS = ChainSettings(4, VOCAB)
RELEASES = pytest.mark.parametrize("standin", ["1.2.1", "1.3.0rc21"], indirect=True)


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
    texts = [phrases(seed) for seed in range(6)]
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
    backend, text = Backend(standin, max_input_len), phrases(5, 120)
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
    text = [*phrases(4, 40), END]
    for _ in range(3):
        request = backend.enqueue(text[:10], follow([*text, 1, 2, 3]), 200)
        while backend.loop.step():
            pass
        assert request.get_tokens(0) == text


def test_copies_on_several_ranks_draft_the_same(standin: Standin) -> None:
    """A copy begins with empty trees and with the settings of the original."""
    first = open_drafter(SETTINGS)
    first.chains.draft([ChainRequest(0, [1, 2] * 9, 4, 4)])
    ranks = [pickle.loads(pickle.dumps(first)) for _ in range(2)]  # noqa: S301
    assert [len(rank.chains) for rank in ranks] == [0, 0]
    assert all(rank.settings == SETTINGS and rank.requests.drafter is rank for rank in ranks)
    text = phrases(9, 300)
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


@pytest.mark.parametrize("standin", ["1.0.0", "1.1.0"], indirect=True)
def test_the_drafter_of_earlier_releases_takes_other_arguments(standin: Standin) -> None:
    with pytest.raises(TrtlaError, match="takes other arguments") as caught:
        open_drafter(ChainSettings(8, 100))
    assert "from 1.2 on" in str(caught.value.hint)
