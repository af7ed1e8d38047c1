"""How many prompt tokens a step takes beside texts that are being written.

A long prompt is read in few large steps as cheaply as can be, and everybody else's text stands
still in each of them. So a step beside texts may take a few times what it takes without prompts.
How many prompt tokens that is comes from the seconds of the steps before: what a machine, a model
and a batch make of it cannot be known otherwise.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from functools import partial
from statistics import median_low
from typing import NamedTuple

from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.limits import MAX_CHUNK

SLOWEST = 4.0
"""Seconds of a step with prompts, by those of one without. With less, prompts are read in smaller
pieces, each of which reads all weights again: at 4 three quarters of such a step are the prompts'.
With more, a text visibly stops while others begin: one of 20 tokens a second goes on with 5."""
FIRST_TOKENS = 64
"""Prompt tokens of a step, before any was measured."""
LONGEST_S = 1.0
"""The longest step with nothing but prompts, where these can be cut so small."""
_FIRST_ALONE = 512
_LEAST_TOKENS = TOKENS_PER_BLOCK
_REMEMBERED = 5  # steps of a kind: two slow ones among them change nothing
_PLAIN_EVERY = 32  # steps with prompts, after which one without shows again what that takes
_FIRST_PLAIN = 4  # the same, where none was seen in batches of that size


class _Read(NamedTuple):
    tokens: int
    each_s: float
    """What each of them added to the step."""


class PromptBudget:
    """Learns what steps take, and limits the prompt tokens of those to come."""

    def __init__(self) -> None:
        self._plain: dict[int, deque[float]] = defaultdict(partial(deque, maxlen=_REMEMBERED))
        """Seconds of steps without prompts, by size of the batch."""
        self._since: Counter[int] = Counter()
        """Steps with prompts since the last one of these."""
        self._reads: deque[_Read] = deque(maxlen=_REMEMBERED)

    def tokens(self, generating: int) -> int:
        """Most prompt tokens of the next step, beside so many texts.

        0 now and then, where prompts never pause: a step without them is measured.
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
        """Beside no text: who comes meanwhile waits for the step's end."""
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
    """Batches of about the same power of 2 are alike; one that fills a place is among them."""
    return (3 * generating // 2).bit_length()


def _fitting(read: _Read, plain: float) -> int:
    """How many tokens as those would have had room; at most twice as many as they were: what looks
    free in a small step need not be so in a large one."""
    room, most = (SLOWEST - 1.0) * plain, 2 * read.tokens
    return most if read.each_s * most <= room else int(room / read.each_s)
