"""Exact traces of the reference semantics: texts, tokens per forward and fed tokens of toy models.

The window is seeded with the prompt repeated cyclically. Forwards include the prefill. Numbers
were worked out independently of this code, by simulators of the published implementations.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.toys import plain, request, ruled, run, tokens_of, traced_drafter
from tests.support.traces import (
    C4,
    CASES,
    DEEP_COMMITS,
    DEEP_GUESSES,
    FIB7,
    M17,
    M17_LATE,
    POS,
    T4_PROMPT,
)
from trtla.runtime.draft import Drafter


def trace(rule, prompt, triple, max_new, *, end_ids=(), pool_from_text=True):
    """(output, committed per forward, fed per forward)."""
    drafter = partial(traced_drafter, pool_from_text=pool_from_text)
    executor, model = ruled(rule, 64, triple, drafter=drafter)
    outputs = run(executor, [request(prompt, max_new, end_ids=end_ids)])[0]
    return tokens_of(outputs), outputs[-1].stats.step_lengths, model.fed


@pytest.mark.parametrize("name", CASES)
def test_trace(name):
    """Text, tokens of each forward or their number, fed tokens of each where they are known."""
    arguments, text, lengths, fed = CASES[name]
    output, got_lengths, got_fed = trace(*arguments)
    assert output == text
    assert lengths in (got_lengths, len(got_lengths))
    assert fed in (got_fed, None)


@pytest.mark.parametrize(
    ("prompt", "triple", "end_ids", "text", "lengths"),
    [
        (T4_PROMPT, (7, 7, 7), [2], [*M17_LATE[:12], 6, 2], [1] * 10 + [4]),
        (T4_PROMPT, (7, 7, 7), [7], [*M17_LATE[:12], 6, 2, 7], [1] * 10 + [5]),
        (T4_PROMPT, (7, 7, 7), [60, 2], [*M17_LATE[:12], 6, 2], [1] * 10 + [4]),
        ([1, 4, 13], (5, 4, 5), [14], [6, 2, 7, 5, 16, 15, 12, 3, 10, 14], [1] * 10),
    ],
    ids=["T4a", "T4b", "T4b-several-ids", "T6"],
)
def test_end_ids_inside_an_accepted_ngram_and_after_warm_up(prompt, triple, end_ids, text, lengths):
    assert trace(M17, prompt, triple, 48, end_ids=end_ids)[:2] == (text, lengths)


def test_t13_position_dependent_text_accepts_nothing():
    output, lengths, fed = trace(POS, [1, 2, 3, 4], (4, 3, 4), 30)
    assert output == plain(POS, [1, 2, 3, 4], 30)
    assert lengths == [1] * 30
    window = [5, *[8] * 7]  # one warm-up step of 1 + 4 tokens, then 1 + 7
    guesses = [(count - own) // 2 for count, own in zip(fed[1:], window, strict=False)]
    assert guesses == [1, 0, 0, 2, 3, 2, 0, 4]


@pytest.mark.parametrize(
    ("rule", "prompt", "triple", "count", "forwards"),
    [
        (M17, [1, 4, 13], (5, 4, 5), 40, 21),
        (C4, [0, 1], (2, 2, 1), 12, 8),
        (M17, T4_PROMPT, (7, 7, 7), 48, 18),
        (C4, [0, 1, 2, 3, 0, 1], (3, 3, 3), 10, 6),
    ],
    ids=["T1", "T2", "T4", "T7"],
)
def test_pool_from_the_window_alone(rule, prompt, triple, count, forwards):
    output, lengths, _ = trace(rule, prompt, triple, count, pool_from_text=False)
    assert output == plain(rule, prompt, count)
    assert len(lengths) == forwards


def test_deep_trace_of_window_pool_and_guesses():
    guesses: dict[int, list[tuple[int, ...]]] = {}
    forward = 1

    class Recording(Drafter):
        def __init__(self, inner):
            self.inner = inner

        def propose(self):
            nonlocal forward
            forward += 1
            draft = self.inner.propose()
            tokens = [draft.tokens[node - 1] for node in draft.candidates]
            if tokens:
                guesses[forward] = [tuple(tokens[i : i + 3]) for i in range(0, len(tokens), 3)]
            return draft

        def observe(self, greedy, committed):
            self.inner.observe(greedy, committed)

    executor, _ = ruled(FIB7, 64, (3, 4, 2), drafter=lambda *a: Recording(traced_drafter(*a)))
    outputs = run(executor, [request([1, 1, 2], 12)])[0]
    assert tokens_of(outputs) == DEEP_COMMITS
    assert outputs[-1].stats.step_lengths == [1] * 12
    assert guesses == DEEP_GUESSES
