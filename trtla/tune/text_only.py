"""What committed text alone would bring: n-grams of prompt and output, without the window.

It is replayed exactly from the text. No triple drafts like this, since every triple has a window;
it is the shape that measured triples are compared with, and that guesses between them follow.
"""

from __future__ import annotations

from collections.abc import Sequence

from trtla.data.prompt_sets import Ids
from trtla.runtime.draft import NO_DRAFT, Draft, Drafter, StepLimit
from trtla.runtime.drafters.pools import NgramPool
from trtla.runtime.drafters.prompt_lookup import PromptLookupDrafter
from trtla.runtime.drafters.shapes import DraftTree
from trtla.tune.replay import Steps, replay


class TextDrafter(Drafter):
    """The pool of (N, G) filled from prompt and output only."""

    def __init__(self, ngram: int, most: int, prompt: Sequence[int]) -> None:
        self._ngram, self._pool, self._recent = ngram, NgramPool(ngram, most), list(prompt)

    def propose(self, limit: StepLimit | None = None) -> Draft:
        """The pool's continuations of the input token."""
        branches = self._pool.lookup(self._recent[-1])
        if not branches:
            return NO_DRAFT
        tree = DraftTree()
        for branch in branches:
            tree.append(branch)
        return Draft(tuple(tree.tokens), tuple(tree.parents))

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        """Pool the n-grams that end in committed tokens."""
        self._recent += committed
        self._pool.insert_text(self._recent)
        del self._recent[: max(0, len(self._recent) - self._ngram + 1)]


def text_steps(ngram: int, most: int, prompt: Ids, output: Ids) -> Steps:
    """The steps of (N, G) on a text, without any window."""
    return _replayed(TextDrafter(ngram, most, prompt), output)


def prompt_lookup_steps(gamma: int, prompt: Ids, output: Ids, max_output_len: int) -> Steps:
    """The steps of the drafter prompt-lookup on a text: what a real run makes, exactly."""
    return _replayed(PromptLookupDrafter(gamma, prompt, max_output_len), output)


def _replayed(drafter: TextDrafter | PromptLookupDrafter, output: Ids) -> Steps:
    steps = replay(drafter, output, lambda place, draft: ())
    if steps is None:
        raise ValueError("a drafter of text asked for more than text")
    return steps
