"""The number of prompt tokens that a step takes next to texts in generation.

A long prompt is cheapest to read in few large steps, but every other text stands still in each of
them. So a step next to texts may take a few times as long as one without prompts. The number of
prompt tokens follows from the seconds of earlier steps: it depends on machine, model and batch.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from functools import partial
from statistics import median_low
from typing import NamedTuple

from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.limits import MAX_CHUNK

SLOWEST = 4.0
"""Seconds of a step with prompts, relative to one without. A lower limit reads prompts in smaller
pieces, each of which reads all weights again: at 4 three quarters of such a step are the prompts'.
A higher one visibly stops texts while others begin: one of 20 tokens a second goes on with 5."""
FIRST_TOKENS = 64
"""Prompt tokens of a step before any was measured."""
LONGEST_S = 1.0
"""The longest step of prompts alone, if these can be cut so small."""
_FIRST_ALONE = 512
_LEAST_TOKENS = TOKENS_PER_BLOCK
_REMEMBERED = 5  # steps of a kind: two slow outliers do not change their median
_PLAIN_EVERY = 32  # steps with prompts, after which one without is measured again
_FIRST_PLAIN = 4  # the same, before one was measured in batches of that size


class _Read(NamedTuple):
    tokens: int
    each_s: float
    """Seconds that each of them added to the step."""


class PromptBudget:
    """Learns how long steps take, and limits the prompt tokens of later ones."""

    def __init__(self) -> None:
        self._plain: dict[int, deque[float]] = defaultdict(partial(deque, maxlen=_REMEMBERED))
        """Seconds of steps without prompts, by size of the batch."""
        self._since: Counter[int] = Counter()
        """Steps with prompts since the last step without."""
        self._reads: deque[_Read] = deque(maxlen=_REMEMBERED)

    def tokens(self, generating: int) -> int:
        """Return the most prompt tokens of the next step, next to `generating` texts.

        0 now and then if prompts never pause, so that a step without them is measured.
        """
        if not generating:
            return self._alone()
        size = _size(generating)
        if self._since[size] >= (_PLAIN_EVERY if size in self._plain else _FIRST_PLAIN):
            return 0
        if not self._plain or not self._reads:
            return FIRST_TOKENS
        plain = self._plain_s(generating)
        return max(_LEAST_TOKENS, median_low(_fitting(read, plain) for read in self._reads))

    def _alone(self) -> int:
        """Limit steps without texts too: requests that arrive meanwhile wait for the step's end."""
        if not self._reads:
            return _FIRST_ALONE
        each_s = median_low(read.each_s for read in self._reads)
        return max(_LEAST_TOKENS, min(MAX_CHUNK, int(LONGEST_S / max(each_s, 1e-9))))

    def stepped(self, prompt_tokens: int, generating: int, seconds: float) -> None:
        size = _size(generating)
        if not prompt_tokens:
            self._plain[size].append(seconds)
            self._since[size] = 0
            return
        self._since[size] += 1
        if prompt_tokens >= _LEAST_TOKENS and (self._plain or not generating):
            plain = self._plain_s(generating) if generating else 0.0
            self._reads.append(_Read(prompt_tokens, (seconds - plain) / prompt_tokens))

    def _plain_s(self, generating: int) -> float:
        wanted = _size(generating)
        return median_low(self._plain[min(self._plain, key=lambda size: abs(size - wanted))])


def _size(generating: int) -> int:
    """Return a class for batches of about the same power of 2; one that grows by one is in it."""
    return (3 * generating // 2).bit_length()


def _fitting(read: _Read, plain: float) -> int:
    """Return how many such tokens would have fitted, at most twice as many as there were: tokens
    that seem free in a small step need not be so in a large one."""
    room, most = (SLOWEST - 1.0) * plain, 2 * read.tokens
    return most if read.each_s * most <= room else int(room / read.each_s)
