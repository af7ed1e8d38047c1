"""vLLM's proposer: rows without names in a batch that moves, and what is done about faults.

`Batch` stands in for vLLM's rows and its comparison; `scripts/test_plugins.sh` runs its server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.trees import phrases
from trtla.extras.hosts import vllm as plugin
from trtla.extras.hosts.chains import Chains
from trtla.extras.hosts.vllm import TreeProposer

VOCAB, ROOM, MOST = 50, 160, 5


@pytest.fixture(autouse=True)
def known_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "version", lambda _: "0.32.0")


def config(**changes: Any) -> Any:
    """What the proposer reads of vLLM's configuration."""
    model = SimpleNamespace(max_model_len=ROOM, get_vocab_size=lambda: VOCAB)
    speculative = SimpleNamespace(num_speculative_tokens=MOST)
    parts = {"model_config": model, "speculative_config": speculative, "additional_config": {}}
    return SimpleNamespace(**{**parts, **changes})


class Batch:
    """vLLM's arrays: an ended row's place is taken by the last one, and none has a name.

    Args:
        chunk: tokens of a prompt that a step reads.
    """

    def __init__(self, proposer: TreeProposer, rows: int, chunk: int = ROOM) -> None:
        self.proposer, self.chunk = proposer, chunk
        self.sizes = np.zeros(rows, np.int32)
        self.tokens = np.full((rows, ROOM), 3, np.int32)
        self.targets: list[list[int]] = []
        self.read: list[int] = []
        self.drafts: list[list[int]] = []
        self.steps = self.samples = self.drafted = 0

    def add(self, target: list[int], known: int) -> None:
        row = len(self.targets)
        self.tokens[row, :known], self.sizes[row] = target[:known], known
        self.targets.append(target)
        self.read.append(0)
        self.drafts.append([])

    def remove(self, row: int) -> tuple[list[int], int]:
        """Take a row out, as at its end or when it is preempted: its text and its size."""
        last = len(self.targets) - 1
        known = self.targets[row], int(self.sizes[row])
        for values in (self.targets, self.read, self.drafts):
            values[row] = values[last]  # type: ignore[index]
            values.pop()
        self.tokens[row], self.sizes[row] = self.tokens[last], self.sizes[last]
        return known

    def step(self) -> None:
        sampled = [self._sample(row) for row in range(len(self.targets))]
        self.drafts = self.proposer.propose(sampled, self.sizes, self.tokens, slot_mappings=None)
        assert len(self.drafts) == len(sampled)
        self.steps, self.drafted = self.steps + 1, self.drafted + sum(map(len, self.drafts))
        for row in reversed(range(len(self.targets))):
            if self.sizes[row] == len(self.targets[row]):
                self.remove(row)

    def _sample(self, row: int) -> list[int]:
        target, size = self.targets[row], int(self.sizes[row])
        self.read[row] += self.chunk
        if self.read[row] < size:
            return []
        self.samples += 1
        right = 0
        for token in self.drafts[row]:
            assert 0 <= token < VOCAB
            if size + right + 1 == len(target) or token != target[size + right]:
                break
            right += 1
        new = target[size : size + right + 1]
        self.tokens[row, size : size + len(new)], self.sizes[row] = new, size + len(new)
        return new


def known(proposer: TreeProposer) -> Any:
    chains = proposer._chains
    assert isinstance(chains, Chains)
    return chains._requests


@pytest.mark.parametrize("chunk", [ROOM, 7])
def test_rows_move_go_and_come_back_and_keep_their_trees(chunk: int) -> None:
    proposer, dice = TreeProposer(config()), Random(1)
    batch = Batch(proposer, rows=6, chunk=chunk)
    waiting = [(phrases(seed, dice.randrange(60, 120)), 20) for seed in range(20)]
    said, away = sum(len(text) - 20 for text, _ in waiting), list[tuple[list[int], int]]()
    while waiting or away or batch.targets:
        while waiting and len(batch.targets) < 5:
            batch.add(*waiting.pop())
        batch.step()
        if away:
            batch.add(*away.pop())
        elif len(batch.targets) > 1 and dice.random() < 0.3:
            away.append(batch.remove(dice.randrange(len(batch.targets) - 1)))
    assert batch.samples < said * 0.6
    assert proposer._chains is not None
    assert proposer._chains._named == -20  # one tree for each text, and none anew


def test_ended_rows_are_forgotten_and_their_outputs_drafted_from() -> None:
    proposer, dice = TreeProposer(config()), Random(2)
    text = [dice.randrange(VOCAB) for _ in range(100)]
    steps = []
    for other in range(3):
        batch = Batch(proposer, rows=2)
        batch.add(text, 12)
        while batch.targets:
            batch.step()
        steps.append(batch.steps)
        batch.add(phrases(other, 60), 20)
        while batch.targets:
            batch.step()
        assert len(known(proposer)) <= 2
    assert steps[0] > 80
    assert steps[2] < 40


def test_nothing_grows_over_ten_thousand_requests() -> None:
    proposer, dice = (
        TreeProposer(config(additional_config={"trtla": {"other_tokens": 3000}})),
        Random(3),
    )
    batch = Batch(proposer, rows=200)
    for _ in range(50):
        for _ in range(200):
            batch.add([dice.randrange(VOCAB) for _ in range(24)], 20)
        while batch.targets:
            batch.step()
        assert len(known(proposer)) <= 400
    assert batch.proposer._chains is not None
    assert 1000 < sum(map(len, batch.proposer._chains._shared.texts())) <= 3000


def test_drafts_fit_in_the_room_that_is_left() -> None:
    proposer, text = TreeProposer(config()), np.array([[1, 2, 3, 4] * (ROOM // 4)], np.int32)
    for left, size in {8: 5, 4: 3, 2: 1, 1: 0, 0: 0}.items():
        [draft] = proposer.propose([[4]], np.array([ROOM - left], np.int32), text)
        assert len(draft) == size


def test_ids_beyond_the_vocabulary_are_read_over() -> None:
    batch = Batch(TreeProposer(config()), rows=1)
    batch.add([1, 2, 3, 99, 2**31 - 1, -1] * 20, 40)
    while batch.targets:
        batch.step()
    assert batch.drafted > 20


def _wrong_sizes(proposer: TreeProposer) -> None:
    proposer.propose([[1]], None, None)


def _wrong_arguments(proposer: TreeProposer) -> None:
    proposer.propose([[1]], np.zeros(1, np.int32), np.zeros(1, np.float32))


def _later_interface(proposer: TreeProposer) -> None:
    assert proposer.propose(MOST, [[1], [2]], batch=None) == [[], []]


@pytest.mark.parametrize("fault", [_wrong_sizes, _wrong_arguments, _later_interface])
def test_a_fault_is_logged_once_and_ends_drafting(
    fault: Callable[[TreeProposer], None], caplog: pytest.LogCaptureFixture
) -> None:
    proposer = TreeProposer(config())
    batch = Batch(proposer, rows=1)
    batch.add([1, 2, 3] * 20, 20)
    batch.step()
    assert batch.drafts != [[]]
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            fault(proposer)
    while batch.targets:
        batch.step()
        assert batch.drafts in ([[]], [])
    assert len(caplog.records) == 1
    assert "trtla drafts no more" in caplog.text
    assert "known to work: 0.32" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model_config": None}, "NoneType"),
        ({"additional_config": {"trtla": {"least_chance": 2}}}, "least_chance is 2; use a number"),
        ({"additional_config": {"trtla": {"chance": 2}}}, "chance"),
    ],
)
def test_a_configuration_that_does_not_fit_starts_without_drafts(
    wrong: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = TreeProposer(config(**wrong))
    assert message in caplog.text
    proposer.load_model(None)
    assert proposer.propose([[1], []], None, None) == [[], []]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("version", "says"), [("0.32.1", False), ("0.33.0", True)])
def test_another_version_is_named_at_start(
    version: str, says: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugin, "version", lambda _: version)
    TreeProposer(config())
    assert ("vLLM is 0.33.0; trtla is known to work with 0.32" in caplog.text) is says
