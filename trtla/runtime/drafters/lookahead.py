"""Lookahead decoding: the window makes n-grams, the pool keeps them, a lookup proposes them.

Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding" (ICML 2024),
with TensorRT-LLM's warm-up, merged prefixes and acceptance from the window, and with n-grams from
prompt and output in the pool.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from trtla.runtime.draft import Draft, Drafter, NoDrafter
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

    def __init__(
        self,
        config: LookaheadConfig,
        prompt: Sequence[int],
        window_seed: WindowSeed,
        *,
        pool_from_text: bool = True,
        options: DraftOptions = _OPTIONS,
    ) -> None:
        self._ngram, self._options = config.ngram_size, options
        self._pool = NgramPool(config.ngram_size, config.verification_set_size)
        self._window = new_window(config, prompt, window_seed)
        self._pool_from_text = pool_from_text
        self._recent = list(prompt)

    @property
    def window(self) -> LookaheadWindow:
        """The window as it stands: read it, do not change it."""
        return self._window

    @property
    def pool(self) -> NgramPool:
        """The n-grams seen so far."""
        self._pool_text()
        return self._pool

    def propose(self) -> Draft:
        """The window, then the pool's continuations of the input token as candidate branches."""
        tree, accepted, read = window_tree(self._window, self._ngram, self._options.reference)
        first_candidate = len(tree.tokens) + 1
        for branch in self.pool.lookup(self._recent[-1]):
            if self._options.reference:
                tree.append(branch)
            else:
                tree.merge(branch)
        drawn = self._options.cells == "drawn"
        nodes = (tuple(tree.tokens), tuple(tree.parents))
        return Draft(*nodes, first_candidate, read, accepted, drawn)

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        """Pool the window's n-grams, then those that end in a committed token."""
        if greedy:
            for key, *value in self._window.advance(self._recent[-1], greedy):
                self._pool.insert(key, tuple(value))
        self._recent += committed
        self._pool_text()

    def _pool_text(self) -> None:
        """Pool the n-grams of committed tokens that are not there yet."""
        size = self._ngram
        if len(self._recent) < size:
            return
        if self._pool_from_text:
            self._pool.insert_text(self._recent)
        del self._recent[: 1 - size]


def new_window(
    config: LookaheadConfig, prompt: Sequence[int], window_seed: WindowSeed
) -> LookaheadWindow:
    """The window of a request at its start."""
    count = config.window_size + config.ngram_size - 3
    return LookaheadWindow(config, window_seed(prompt, count))


def window_tree(
    window: LookaheadWindow, ngram: int, reference: bool = False
) -> tuple[DraftTree, tuple[int, ...], tuple[int, ...]]:
    """The window in a tree, those of its nodes that may be accepted, and those to read."""
    tokens, parents, read = window.tokens(), window.parents(), window.newest()
    if reference:
        return DraftTree(tokens, parents), (), read
    tree = DraftTree()
    nodes = tree.merge_tree(tokens, parents)
    shallow = shallow_nodes(parents, ngram - 1)
    accepted = tuple(dict.fromkeys(nodes[node] for node in shallow))
    return tree, accepted, tuple(nodes[node] for node in read)


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
