"""In-flight batching in plain integers: which sequences run in the next forward, and with what.

First come, first served. Every running sequence takes part in every step; prompts fill what is left
of max_num_tokens, in chunks when they are longer; a finished sequence's place is taken at once.
Its full blocks may be kept, and a prompt that begins with their tokens starts behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trtla.runtime.blocks import TOKENS_PER_BLOCK, BlockPool
from trtla.runtime.limits import MAX_CHUNK
from trtla.runtime.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Tokens [start, start + length) of a sequence's prefill."""

    sequence: Sequence
    start: int
    length: int

    @property
    def is_last(self) -> bool:
        """True when the prompt ends with this chunk, so that its last row gives the first token.

        A text that was interrupted has its first token: it goes on with a step.
        """
        sequence = self.sequence
        return self.start + self.length == len(sequence.prompt) and not sequence.output_ids


@dataclass(frozen=True, slots=True)
class Plan:
    """The next forward: prompt chunks and sequences that generate."""

    chunks: list[PromptChunk]
    generation: list[Sequence]
    room: int = 0
    """Tokens that the drafts of all of these may feed together."""

    def __bool__(self) -> bool:
        return bool(self.chunks or self.generation)

    @property
    def sequences(self) -> list[Sequence]:
        """All that take part."""
        return [*(chunk.sequence for chunk in self.chunks), *self.generation]


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

    @property
    def stuck(self) -> Sequence | None:
        """The first in the queue where nothing runs: too few blocks are left for it, for ever."""
        return self._waiting[0] if self._waiting and not self._running else None

    def next(self) -> Plan:
        """Admit what fits and plan the next forward; empty when nothing can run.

        Every generating sequence feeds a token. What is left is for prompts, less what the drafts
        may need; where drafts would need all, a prompt has the same share as any other sequence.
        """
        self._admit()
        generation: list[Sequence] = []
        prompts: list[Sequence] = []
        for sequence in self._running:
            (generation if sequence.in_generation else prompts).append(sequence)
        left = self._max_num_tokens - len(generation)
        if not prompts:
            return Plan([], generation, left)
        share = -(-left * len(prompts) // len(self._running))
        drafts = sum(s.max_draft_len for s in generation)
        chunks = list(_chunks(prompts, max(left - drafts, share)))
        return Plan(chunks, generation, left - sum(chunk.length for chunk in chunks))

    def _admit(self) -> None:
        most = min(self._max_batch_size, self._max_num_tokens)  # each feeds a token at least
        while self._waiting and len(self._running) < most:
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
        return len(sequence.prompt) <= self._max_reused_len

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out and free its blocks, some of which may be kept."""
        if sequence not in self._running:
            self._waiting.remove(sequence)
            return
        self._running.remove(sequence)
        kept = sequence.cached_text[: self._max_reused_len] if self._reuses(sequence) else ()
        self._blocks.release(sequence.blocks, kept)
        sequence.blocks = ()


def _chunks(prompts: Iterable[Sequence], budget: int) -> Iterator[PromptChunk]:
    """Stretches of what has to be cached, in order, as far as the budget goes."""
    for sequence in prompts:
        start = sequence.num_cached
        length = min(len(sequence.prefill) - start, budget, MAX_CHUNK)
        if length <= 0:
            return
        budget -= length
        yield PromptChunk(sequence, start, length)
