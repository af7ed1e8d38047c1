"""Lookahead decoding: the window makes n-grams, the pool keeps them, a lookup proposes them.

Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding" (ICML 2024),
with TensorRT-LLM's warm-up and with n-grams from prompt and output in the pool.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from trtla.lookahead import LookaheadConfig
from trtla.runtime.draft import NO_DRAFT, Draft, Guess, StepLimit
from trtla.runtime.drafters.ngram_pool import NgramPool
from trtla.runtime.drafters.window import LookaheadWindow

_MOST_WAITING = 64  # committed tokens that wait for being pooled
WindowSeed = Callable[[Sequence[int], int], Sequence[int]]
"""(prompt, count) -> the tokens that fill the window at the start."""


def random_from_prompt(seed: int) -> WindowSeed:
    """Tokens drawn uniformly from the prompt, as in lade and TensorRT-LLM."""
    return lambda prompt, count: random.Random(seed).choices(prompt, k=count)


class LookaheadDrafter:
    """The drafter of one request.

    Args:
        config: the request's triple.
        prompt: prompt tokens, at least one.
        window_seed: fills the window at the start.
        pool_from_text: keep n-grams of prompt and output in the pool as well as the window's.
    """

    def __init__(
        self,
        config: LookaheadConfig,
        prompt: Sequence[int],
        window_seed: WindowSeed,
        *,
        pool_from_text: bool = True,
    ) -> None:
        self._ngram = config.ngram_size
        self._pool = NgramPool(config.ngram_size, config.verification_set_size)
        self._window = LookaheadWindow(
            config, window_seed(prompt, config.window_size + config.ngram_size - 3)
        )
        self._pool_from_text = pool_from_text
        self._only_window: set[tuple[int, ...]] = set()
        self.patient = False
        """Pool committed text only when it is looked up, or in stretches: cheaper a token."""
        self._recent = list(prompt[-(config.ngram_size - 1) :])
        if pool_from_text:
            self._pool.insert_text(prompt)

    @property
    def pool(self) -> NgramPool:
        """The n-grams seen so far."""
        return self._pool

    def propose(self, limit: StepLimit | None = None) -> Draft:
        """The window, then the pool's continuations of the input token as candidate branches."""
        if limit is None:
            return self._draft(True, self._pool.lookup(self._recent[-1]))
        branches = []
        if any(limit.guess_lengths):
            lengths = zip(self.guesses(), limit.guess_lengths, strict=False)
            branches = _distinct([guess.tokens[:length] for guess, length in lengths if length])
        if not branches and not limit.with_window:
            return NO_DRAFT
        return self._draft(limit.with_window, branches)

    def _draft(self, with_window: bool, branches: Sequence[tuple[int, ...]]) -> Draft:
        tokens = list(self._window.tokens()) if with_window else []
        parents = list(self._window.parents()) if with_window else []
        first_candidate = len(tokens) + 1
        for branch in branches:
            node = len(tokens) + 1
            parents += [0, *range(node, node + len(branch) - 1)]
            tokens += branch
        read = self._window.newest() if with_window else ()
        return Draft(tuple(tokens), tuple(parents), first_candidate, read)

    def guesses(self) -> list[Guess]:
        """The pool's continuations of the input token: longest context first, then youngest."""
        self._pool_text()
        key, found = self._recent[-1], self._pool.lookup(self._recent[-1])
        if not found:
            return []
        two, three = self._continued(1), self._continued(2)
        guesses = [
            Guess(
                value,
                3 if value[:-2] in three else 2 if value[:-1] in two else 1,
                (key, *value) in self._only_window,
            )
            for value in reversed(found)
        ]
        return sorted(guesses, key=lambda guess: -guess.context) if two else guesses

    def _continued(self, back: int) -> set[tuple[int, ...]]:
        """What followed the last `back` + 1 committed tokens, as far as n-grams reach."""
        text = tuple(self._recent[-1 - back :])
        if len(text) <= back or self._ngram - 1 <= back:
            return set()
        seen = self._pool.lookup(text[0])
        return {value[back:] for value in seen if value[:back] == text[1:]}

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        """Pool the window's n-grams, then those that end in a committed token."""
        if greedy:
            self._pool_text()
            for key, *value in self._window.advance(self._recent[-1], greedy):
                if self.patient and tuple(value) not in self._pool.lookup(key):
                    self._only_window.add((key, *value))
                self._pool.insert(key, tuple(value))
        self._recent += committed
        if not self.patient or len(self._recent) >= _MOST_WAITING:
            self._pool_text()

    def _pool_text(self) -> None:
        """Pool the n-grams of committed tokens that are not there yet."""
        size = self._ngram
        if len(self._recent) < size:
            return
        if self._pool_from_text:
            self._pool.insert_text(self._recent)
            if self._only_window:
                text = self._recent
                grams = (tuple(text[i : i + size]) for i in range(len(text) - size + 1))
                self._only_window.difference_update(grams)
        del self._recent[: 1 - size]


def _distinct(branches: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Without those that begin another one: they would be fed twice."""
    return [
        branch
        for index, branch in enumerate(branches)
        if not any(
            other[: len(branch)] == branch and (len(other) > len(branch) or place < index)
            for place, other in enumerate(branches)
        )
    ]


class NoDrafter:
    """Plain autoregressive decoding: nothing is proposed."""

    def propose(self, limit: StepLimit | None = None) -> Draft:
        """The input token alone."""
        return NO_DRAFT

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        """Nothing to learn."""


def lookahead_drafter(
    config: LookaheadConfig, prompt: Sequence[int], seed: int
) -> LookaheadDrafter | NoDrafter:
    """The drafter for a request's triple."""
    if config.is_autoregressive:
        return NoDrafter()
    return LookaheadDrafter(config, prompt, random_from_prompt(seed))
