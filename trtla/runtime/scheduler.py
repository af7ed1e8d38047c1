"""In-flight batching in plain integers: which sequences run in the next forward, and with what.

First come, first served. Every running sequence takes part in every step; prompts fill what is left
of max_num_tokens, in chunks when they are longer; a finished sequence's place is taken at once.
Its full blocks may be kept, and a prompt that begins with their tokens starts behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from trtla.runtime.kv_cache import TOKENS_PER_BLOCK, BlockPool
from trtla.runtime.sequence import Sequence

MAX_CHUNK = 2048
"""Longest stretch of one prompt in one forward; bounds the size of its attention mask."""


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Prompt tokens [start, start + length) of a sequence."""

    sequence: Sequence
    start: int
    length: int

    @property
    def is_last(self) -> bool:
        """True when the prompt ends with this chunk, so that its last row gives the first token."""
        return self.start + self.length == len(self.sequence.prompt)


@dataclass(frozen=True, slots=True)
class Plan:
    """The next forward: prompt chunks and sequences that generate."""

    chunks: list[PromptChunk]
    generation: list[Sequence]

    def __bool__(self) -> bool:
        return bool(self.chunks or self.generation)

    def tear(self) -> None:
        """The forward or what follows it was interrupted: trust no cache of these sequences."""
        for sequence in (*self.generation, *(chunk.sequence for chunk in self.chunks)):
            sequence.torn = True


class Scheduler:
    """The queue, the running sequences and their blocks.

    Args:
        max_batch_size: most sequences in flight.
        max_num_tokens: most tokens of a forward.
        blocks: those of the cache.
        max_reused_len: longest prompt that starts behind kept blocks, and longest stretch of a text
            that is kept; 0: neither is done.
    """

    def __init__(
        self, max_batch_size: int, max_num_tokens: int, blocks: BlockPool, max_reused_len: int = 0
    ) -> None:
        self._max_batch_size = max_batch_size
        self._max_num_tokens = max_num_tokens
        self._max_reused_len = max_reused_len
        self._blocks = blocks
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def num_running(self) -> int:
        """Sequences in flight."""
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self._waiting.append(sequence)

    def next(self) -> Plan:
        """Admit what fits and plan the next forward; empty when nothing is left."""
        self._admit()
        generation = [s for s in self._running if s.in_generation]
        budget = self._max_num_tokens - sum(1 + s.max_draft_len for s in generation)
        return Plan(list(self._chunks(budget)), generation)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_batch_size:
            sequence = self._waiting[0]
            shared = self._shared(sequence)
            blocks = self._blocks.allocate(sequence.max_cached, shared)
            if blocks is None:
                return
            self._running.append(self._waiting.popleft())
            sequence.blocks = blocks
            sequence.num_cached = len(shared) * TOKENS_PER_BLOCK
            sequence.stats.reused_tokens = sequence.num_cached

    def _shared(self, sequence: Sequence) -> tuple[int, ...]:
        """Kept blocks that it starts behind; its last prompt token is always fed, for logits."""
        return self._blocks.find(sequence.prompt[:-1]) if self._reuses(sequence) else ()

    def _reuses(self, sequence: Sequence) -> bool:
        return not sequence.torn and len(sequence.prompt) <= self._max_reused_len

    def _chunks(self, budget: int) -> Iterator[PromptChunk]:
        for sequence in self._running:
            if sequence.in_generation or budget <= 0:
                continue
            start = sequence.num_cached
            length = min(len(sequence.prompt) - start, budget, MAX_CHUNK)
            budget -= length
            yield PromptChunk(sequence, start, length)

    def finish(self, sequence: Sequence) -> None:
        """Take a running sequence out and free its blocks, some of which may be kept."""
        self._running.remove(sequence)
        kept = sequence.cached_text[: self._max_reused_len] if self._reuses(sequence) else ()
        self._blocks.release(sequence.blocks, kept)
        sequence.blocks = ()

    def remove(self, request_id: int) -> Sequence | None:
        """Take a sequence out wherever it is, or None when it is unknown."""
        for sequence in self._running:
            if sequence.request.request_id == request_id:
                self.finish(sequence)
                return sequence
        for sequence in self._waiting:
            if sequence.request.request_id == request_id:
                self._waiting.remove(sequence)
                return sequence
        return None
