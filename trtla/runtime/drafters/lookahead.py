"""Lookahead decoding: the window makes n-grams, the pool keeps them, a lookup proposes them.

Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding" (ICML 2024),
with TensorRT-LLM's warm-up, merged prefixes and acceptance from the window, and with n-grams from
prompt and output in the pool.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from trtla.runtime.draft import NO_DRAFT, Draft, Drafter, Guess, NoDrafter, StepLimit
from trtla.runtime.drafters.pools import NgramPool
from trtla.runtime.drafters.shapes import DraftTree, shallow_nodes
from trtla.runtime.drafters.window import LookaheadWindow
from trtla.runtime.request import DrafterFactory, Request
from trtla.settings.drafting import DraftOptions
from trtla.settings.lookahead import LookaheadConfig

_OPTIONS = DraftOptions()
WindowSeed = Callable[[Sequence[int], int], Sequence[int]]
"""(prompt, count) -> the tokens that fill the window at the start."""


def random_from_prompt(seed: int) -> WindowSeed:
    """Tokens drawn uniformly from the prompt, as in lade and TensorRT-LLM."""
    return lambda prompt, count: random.Random(seed).choices(prompt, k=count)


class LookaheadDrafter(Drafter):
    """The drafter of one request.

    Args:
        config: the request's triple.
        prompt: prompt tokens, at least one.
        window_seed: fills the window at the start.
        pool_from_text: keep n-grams of prompt and output in the pool as well as the window's.
        options: how it drafts.
    """

    adaptive = True

    def __init__(
        self,
        config: LookaheadConfig,
        prompt: Sequence[int],
        window_seed: WindowSeed,
        *,
        pool_from_text: bool = True,
        options: DraftOptions = _OPTIONS,
    ) -> None:
        self._ngram = config.ngram_size
        self._options = options
        self._pool = NgramPool(config.ngram_size, config.verification_set_size)
        self._window = LookaheadWindow(
            config, window_seed(prompt, config.window_size + config.ngram_size - 3)
        )
        self._pool_from_text = pool_from_text
        self._only_window: set[tuple[int, ...]] = set()
        self._recent = list(prompt)
        self._found: list[Guess] | None = None
        """This step's guesses, once they were asked for."""

    @property
    def window(self) -> LookaheadWindow:
        """The window as it stands: read it, do not change it."""
        return self._window

    @property
    def pool(self) -> NgramPool:
        """The n-grams seen so far."""
        self._pool_text()
        return self._pool

    def propose(self, limit: StepLimit | None = None) -> Draft:
        """The window, then the pool's continuations of the input token as candidate branches."""
        if limit is None:
            return self._draft(True, self.pool.lookup(self._recent[-1]))
        branches = []
        if any(limit.guess_lengths):
            lengths = zip(self.guesses(), limit.guess_lengths, strict=False)
            branches = [guess.tokens[:length] for guess, length in lengths if length]
        if not branches and not limit.with_window:
            return NO_DRAFT
        return self._draft(limit.with_window, branches)

    def _draft(self, with_window: bool, branches: Sequence[tuple[int, ...]]) -> Draft:
        tree, accepted, read = self._window_tree() if with_window else (DraftTree(), (), ())
        first_candidate = len(tree.tokens) + 1
        for branch in branches:
            if self._options.reference:
                tree.append(branch)
            else:
                tree.merge(branch)
        drawn = self._options.cells == "drawn"
        nodes = (tuple(tree.tokens), tuple(tree.parents))
        return Draft(*nodes, first_candidate, read, accepted, drawn)

    def _window_tree(self) -> tuple[DraftTree, tuple[int, ...], tuple[int, ...]]:
        """The window in a tree, those of its nodes that may be accepted, and those to read."""
        tokens, parents = self._window.tokens(), self._window.parents()
        read = self._window.newest()
        if self._options.reference:
            return DraftTree(tokens, parents), (), read
        tree = DraftTree()
        nodes = tree.merge_tree(tokens, parents)
        shallow = shallow_nodes(parents, self._ngram - 1)
        accepted = tuple(dict.fromkeys(nodes[node] for node in shallow))
        return tree, accepted, tuple(nodes[node] for node in read)

    def guesses(self) -> list[Guess]:
        """Continuations of the input token: longest context first, then youngest."""
        if self._found is None:
            self._found = self._look_up()
        return self._found

    def _look_up(self) -> list[Guess]:
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
        return sorted(guesses, key=_by_context) if two else guesses

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
                if self.lazy_pooling and tuple(value) not in self._pool.lookup(key):
                    self._only_window.add((key, *value))
                self._pool.insert(key, tuple(value))
        self._recent += committed
        self._found = None
        if not self.lazy_pooling:
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


def _by_context(guess: Guess) -> int:
    return -guess.context


def lookahead_drafter(
    config: LookaheadConfig, request: Request, options: DraftOptions = _OPTIONS
) -> LookaheadDrafter | NoDrafter:
    """The drafter for a request with this triple."""
    if config.is_autoregressive:
        return NoDrafter()
    window_seed = random_from_prompt(request.sampling.seed)
    return LookaheadDrafter(config, request.known_ids, window_seed, options=options)


class LookaheadDrafters(DrafterFactory):
    """Makes the drafters of an executor's requests."""

    def __init__(self, options: DraftOptions = _OPTIONS) -> None:
        self._options = options

    def __call__(self, lookahead: LookaheadConfig, request: Request) -> Drafter:
        """The drafter for a request with this triple."""
        return lookahead_drafter(lookahead, request, self._options)
