"""SGLang's corpus with the candidate trees in front of it: rows, masks, memory and faults.

`Own` stands in for SGLang's class, of which test_sglang_classes.py runs the real one.
"""

from __future__ import annotations

import logging
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.support.trees import phrases
from trtla.extras.hosts import sglang as plugin
from trtla.extras.hosts.sglang import TreeCorpus

NODES, DEPTH = 8, 4096


class Own:
    """What is called of SGLang's corpus; it drafts nothing."""

    def __init__(self, **settings: Any) -> None:
        self.settings, self.draft_token_num = settings, settings["draft_token_num"]
        self.ended: list[str] = []
        self.longest = 0

    def batch_get(self, names: list[str], tails: list[list[int]], _: list[int]) -> tuple[Any, Any]:
        tokens = np.zeros((len(names), self.draft_token_num), np.int64)
        tokens[:, 0] = [tail[-1] for tail in tails]
        mask = np.eye(self.draft_token_num, dtype=np.int64)
        mask[:, 0] = 1
        return tokens.ravel(), np.tile(mask, (len(names), 1, 1)).ravel()

    def batch_put(self, tails: list[list[int]]) -> None:
        self.longest = max(self.longest, *map(len, tails))

    def erase_match_state(self, names: list[str]) -> None:
        self.ended += names

    def reset(self) -> None:
        self.ended.clear()


class Corpus(TreeCorpus, Own):
    pass


def corpus(**changes: Any) -> Corpus:
    settings = {"draft_token_num": NODES, "max_trie_depth": DEPTH, "external_sam_budget": 0}
    return Corpus(**{**settings, **changes})


def decode(ours: Any, texts: dict[str, list[int]], prompt: int, depth: int = DEPTH) -> int:
    """Decode a batch as SGLang's worker does, and return its steps; ended rows leave."""
    sizes, steps, before = dict.fromkeys(texts, prompt), 0, set[str]()
    while going := [name for name in texts if sizes[name] < len(texts[name])]:
        seen = [texts[name][: sizes[name]] for name in going]
        tails = [text[-depth:] for text in seen]
        tokens, mask = ours.batch_get(going, tails, [len(text) for text in seen])
        tokens, mask = tokens.reshape(-1, NODES), mask.reshape(-1, NODES, NODES)
        for row, name in enumerate(going):
            assert tokens[row, 0] == tails[row][-1]
            sizes[name] += 1 + _accepted(tokens[row], mask[row], texts[name][sizes[name] :])
        ours.batch_put(tails)
        ours.erase_match_state(sorted(before - set(going)))
        before, steps = set(going), steps + 1
    ours.erase_match_state(sorted(before))
    return steps


def _accepted(tokens: Any, mask: Any, rest: list[int]) -> int:
    """The length of the longest path that says what comes next; it ends before the last token."""
    assert (np.triu(mask, 1) == 0).all()
    assert (np.diag(mask) == 1).all()
    assert (mask[:, 0] == 1).all()
    lengths = [0]
    for node in range(1, NODES):
        path = [int(tokens[one]) for one in np.flatnonzero(mask[node])][1:]
        lengths.append(len(path) if path == rest[: len(path)] and len(path) < len(rest) else 0)
    return max(lengths)


def test_rows_are_followed_by_their_names_and_their_trees_accepted() -> None:
    ours, texts = corpus(), {str(seed): phrases(seed, 150) for seed in range(4)}
    assert decode(ours, texts, 40) < 80  # of 110
    assert not ours._texts
    assert ours._chains is not None
    assert len(ours._chains) == 0
    assert sorted(ours.ended) == sorted(texts)


def test_trees_have_branches_and_are_filled() -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2]
    tokens, mask = corpus().batch_get(["a"], [text], [len(text)])
    below = {int(token) for token, row in zip(tokens, mask.reshape(NODES, NODES), strict=True)
             if row.sum() == 2}  # fmt: skip
    assert {3, 4, 5} <= below
    assert tokens.dtype == mask.dtype == np.int64


def test_breadth_1_keeps_to_chains() -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2]
    tokens, mask = corpus(max_bfs_breadth=1).batch_get(["a"], [text], [len(text)])
    drafted = int(np.count_nonzero(tokens))
    assert drafted > 3
    assert (mask.reshape(NODES, NODES)[:drafted, :drafted] == np.tri(drafted)).all()


def test_ends_of_texts_are_joined() -> None:
    dice = Random(1)
    half = [dice.randrange(500) for _ in range(60)]
    ours = corpus()
    assert decode(ours, {"a": half + half}, 20, depth=16) < 60  # of 100, and its end alone is seen


def test_ended_outputs_are_drafted_from_and_a_flush_forgets_them() -> None:
    dice, ours = Random(2), corpus()
    text = [dice.randrange(500) for _ in range(100)]
    steps = [decode(ours, {name: text}, 12) for name in "abc"]
    ours.reset()
    assert steps[0] > 80
    assert steps[2] < 40
    assert decode(ours, {"d": text}, 12) == steps[0]


def test_rows_that_come_back_shorter_or_as_others_begin_anew() -> None:
    ours, text = corpus(), [1, 2, 3, 4] * 6
    for seen, after in ((text, 1), (text[:10], 3), ([9, 8] * 20, 9), ([7] * 500, 7)):
        tokens, _ = ours.batch_get(["a"], [seen], [len(seen)])
        assert list(tokens[:2]) == [seen[-1], after]
    ours.batch_get(["a"], [[5, 6] * 4], [4000])  # a gap: most of it was never seen
    assert list(ours._texts["a"].tokens) == [5, 6] * 4
    assert ours._chains is not None
    assert len(ours._texts) == len(ours._chains) == 1


def test_nothing_grows_over_ten_thousand_requests() -> None:
    dice, ours, before = Random(3), corpus(), list[str]()
    assert ours._chains is not None
    for batch in range(100):
        names = [f"{batch}-{row}" for row in range(100)]
        tails = [[dice.randrange(50) for _ in range(24)] for _ in names]
        ours.batch_get(names, tails, [24] * 100)
        ours.batch_get(names, [[*tail, 1] for tail in tails], [25] * 100)
        ours.erase_match_state(before)
        assert len(ours._texts) == len(ours._chains) == 100
        before = names


def test_own_trie_is_spared_long_texts() -> None:
    ours = corpus()
    decode(ours, {"a": phrases(1, 300)}, 200)
    assert ours.longest == ours.settings["max_trie_depth"] == 18


def test_a_fault_is_logged_once_and_own_drafts_go_on(caplog: pytest.LogCaptureFixture) -> None:
    ours, text = corpus(), [1, 2, 3] * 20
    ours.batch_get(["a"], [text], [len(text)])
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            tokens, _ = ours.batch_get(["a"], [[None, 4]], [70])  # type: ignore[list-item]
            assert list(tokens) == [4] + [0] * (NODES - 1)
            ours.erase_match_state(["a"])
    ours.reset()
    assert len(caplog.records) == 1
    assert "trtla drafts no more" in caplog.text
    assert "known to work: 0.5.23" in caplog.text


def test_external_corpora_stay_with_own_corpus(caplog: pytest.LogCaptureFixture) -> None:
    assert decode(corpus(external_sam_budget=3), {"a": [1, 2] * 20}, 20) == 20
    assert "external corpora are drafted from by SGLang's own corpus alone" in caplog.text


@pytest.mark.parametrize(("named", "says"), [("", False), ("other, trtla", True)])
def test_another_release_is_left_alone_with_a_sentence(
    named: str, says: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugin, "version", lambda _: "0.5.24")
    monkeypatch.setenv("SGLANG_PLUGINS", named)
    plugin.register()
    assert ("SGLang is 0.5.24; trtla drafts in 0.5.23 alone" in caplog.text) is says
