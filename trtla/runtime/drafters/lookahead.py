"""Lookahead decoding: the window makes n-grams, the pool keeps them, a lookup proposes them.

Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding" (ICML 2024),
with TensorRT-LLM's warm-up and with n-grams from prompt and output in the pool.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from trtla.lookahead import LookaheadConfig
from trtla.runtime.draft import NO_DRAFT, Draft
from trtla.runtime.drafters.ngram_pool import NgramPool
from trtla.runtime.drafters.window import LookaheadWindow

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
        self._recent = list(prompt[-(config.ngram_size - 1) :])
        if pool_from_text:
            self._pool.insert_text(prompt)

    @property
    def pool(self) -> NgramPool:
        """The n-grams seen so far."""
        return self._pool

    def propose(self) -> Draft:
        """The window, then the pool's continuations of the input token as candidate branches."""
        tokens, parents = list(self._window.tokens()), list(self._window.parents())
        first_candidate = len(tokens) + 1
        for candidate in self._pool.lookup(self._recent[-1]):
            node = len(tokens) + 1
            parents += [0, *range(node, node + len(candidate) - 1)]
            tokens += candidate
        return Draft(tuple(tokens), tuple(parents), first_candidate, self._window.newest())

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        """Pool the window's n-grams, then those that end in a committed token."""
        if greedy:
            for key, *value in self._window.advance(self._recent[-1], greedy):
                self._pool.insert(key, tuple(value))
        text = [*self._recent, *committed]
        if self._pool_from_text:
            self._pool.insert_text(text)
        self._recent = text[-(self._ngram - 1) :]


class NoDrafter:
    """Plain autoregressive decoding: nothing is proposed."""

    def propose(self) -> Draft:
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
