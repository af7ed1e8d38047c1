"""How fast an answer came: counted chunk by chunk, so that it can be shown while it grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtla.llm.llm import Chunk


@dataclass(frozen=True, slots=True)
class Figures:
    """Counters of one answer, or of several added up; names as in docs/algorithm.md."""

    answers: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Prompt tokens whose keys and values were still in the cache."""
    tokens: int = 0
    steps: int = 0
    accepted: int = 0
    ttft_s: float = 0.0
    decode_s: float = 0.0
    """From the first token to the last."""
    decoded: int = 0
    """Tokens in that time."""

    @property
    def tokens_per_step(self) -> float:
        """1 + accepted / steps; 1.0 before the first step."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first, per second; the prompt's pass does not count."""
        return self.decoded / self.decode_s if self.decode_s else 0.0

    def __add__(self, other: Figures) -> Figures:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Figures(*(a + b for a, b in pairs))

    def describe(self) -> str:
        """Speed and compression, as every place shows them."""
        return f"{self.tokens_per_s:.0f} tokens/s, {self.tokens_per_step:.2f} tokens per step"


class Meter:
    """Counts one answer's chunks."""

    def __init__(self, prompt_tokens: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._prompt_tokens, self._clock = prompt_tokens, clock
        self._start = clock()
        self._first: float | None = None
        self._last = self._start
        self._tokens = self._steps = self._accepted = self._decoded = self._reused = 0

    def add(self, chunk: Chunk) -> Figures:
        """Take a chunk; the figures so far."""
        self._last = self._clock()
        if self._first is None:
            self._first = self._last
        elif chunk.token_ids:
            self._steps += 1
            self._decoded += len(chunk.token_ids)
        self._tokens += len(chunk.token_ids)
        self._accepted += chunk.accepted
        if chunk.completion is not None:
            self._reused = chunk.completion.stats.reused_tokens
        return self.figures

    @property
    def figures(self) -> Figures:
        """The figures so far."""
        first = self._last if self._first is None else self._first
        return Figures(
            answers=1,
            prompt_tokens=self._prompt_tokens,
            reused_tokens=self._reused,
            tokens=self._tokens,
            steps=self._steps,
            accepted=self._accepted,
            ttft_s=first - self._start,
            decode_s=self._last - first,
            decoded=self._decoded,
        )
