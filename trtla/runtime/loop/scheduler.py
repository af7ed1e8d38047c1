"""In-flight batching in plain integers: the sequences of the next forward, and their tokens.

First come, first served. Every running sequence takes part in every step. Prompts fill the rest of
max_num_tokens, in chunks if they are longer, or of the prompt budget if steps are bounded. The slot
of a finished sequence is reused at once. Full blocks may be kept, and a prompt that begins with
their tokens starts behind them; it waits for blocks that a running prompt is about to fill.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from itertools import islice, takewhile

from trtla.runtime.blocks import TOKENS_PER_BLOCK, BlockPool
from trtla.runtime.limits import MAX_CHUNK
from trtla.runtime.loop.prompt_budget import PromptBudget
from trtla.runtime.sequence import Feed, Sequence

_LOOKED_AT = 64  # of the queue, where the first ones wait for blocks of running prompts


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The next forward: stretches of prompts, and sequences that generate."""

    prompts: list[Feed]
    generation: list[Sequence]
    room: int = 0
    """Tokens that the drafts of all of these may feed together."""

    def __bool__(self) -> bool:
        return bool(self.prompts or self.generation)

    @property
    def prompt_tokens(self) -> int:
        return sum([feed.length for feed in self.prompts]) if self.prompts else 0


class Scheduler:
    """The queue, the running sequences and their blocks.

    Args:
        max_reused_len: longest prompt that starts behind kept blocks, and longest stretch of a text
            that is kept, from the moment its prompt is read; 0: neither.
        bounded: limit the prompt tokens next to running texts, so that these do not stall.
    """

    def __init__(
        self,
        max_batch_size: int,
        max_num_tokens: int,
        blocks: BlockPool,
        max_reused_len: int = 0,
        *,
        bounded: bool = False,
    ) -> None:
        self._max_batch_size = max_batch_size
        self._max_num_tokens = max_num_tokens
        self._max_reused_len = max_reused_len
        self._blocks = blocks
        self._budget = PromptBudget() if bounded else None
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    @property
    def stuck(self) -> Sequence | None:
        """The first in the queue if nothing runs: too few blocks will ever be free for it."""
        return self._waiting[0] if self._waiting and not self._running else None

    def next(self) -> StepPlan:
        """Admit sequences that fit and plan the next forward; empty if nothing can run.

        Every generating sequence feeds a token. The rest is for prompts, less what the drafts may
        need; if drafts would need all, a prompt has the same share as any other sequence.
        """
        if self._waiting:
            self._admit()
        generation: list[Sequence] = []
        prompts: list[Sequence] = []
        for sequence in self._running:
            (generation if sequence.in_generation else prompts).append(sequence)
        left = self._max_num_tokens - len(generation)
        if not prompts:
            return StepPlan([], generation, left)
        share = -(-left * len(prompts) // len(self._running))
        budget = max(left - sum(s.max_draft_len for s in generation), share)
        if self._budget:
            budget = min(budget, self._budget.tokens(len(generation)))
        fed = list(_feeds(prompts, budget))
        return StepPlan(fed, generation, left - sum(feed.length for feed in fed))

    def _admit(self) -> None:
        """Start waiting sequences in order, past those that wait for a running prompt's blocks.

        None starves: it waits for running prompts alone, and is considered first in each step.
        """
        most = min(self._max_batch_size, self._max_num_tokens)  # each feeds a token at least
        if len(self._running) == most:
            return
        for sequence in tuple(islice(self._waiting, _LOOKED_AT)):
            shared = self._shared(sequence)
            if self._awaits_blocks(sequence, len(shared)):
                continue
            blocks = self._blocks.allocate(sequence.max_cached, shared)
            if blocks is None:
                return
            self._waiting.remove(sequence)
            self._running.append(sequence)
            sequence.blocks = blocks
            sequence.num_cached = len(shared) * TOKENS_PER_BLOCK
            sequence.stats.reused_tokens = sequence.num_cached
            if len(self._running) == most:
                return

    def _awaits_blocks(self, sequence: Sequence, num_shared: int) -> bool:
        """Return True if a running prompt will soon fill more blocks for it than it shares now."""
        if not self._reuses(sequence):
            return False
        for other in self._running:
            if self._shares(other, sequence) and other.num_cached < len(other.prompt):
                alike = _blocks_alike(sequence.prompt[:-1], other.prompt)
                if alike > num_shared and alike * TOKENS_PER_BLOCK > other.num_cached:
                    return True
        return False

    def _shared(self, sequence: Sequence) -> tuple[int, ...]:
        """Find kept blocks to start behind; its last prompt token is always fed, for logits."""
        if not self._reuses(sequence):
            return ()
        return self._blocks.find(sequence.prompt[:-1], sequence.request.space)

    def _shares(self, sequence: Sequence, other: Sequence) -> bool:
        return self._reuses(sequence) and sequence.request.space == other.request.space

    def _reuses(self, sequence: Sequence) -> bool:
        private = sequence.request.private
        return not private and len(sequence.prompt) <= self._max_reused_len

    def _read_by_others(self, sequence: Sequence) -> tuple[int, ...]:
        return sequence.cached_text[: self._max_reused_len] if self._reuses(sequence) else ()

    def stepped(self, feeds: Tokens[Feed], seconds: float) -> None:
        """Record the feeds and seconds of a committed step; others may read the blocks that its
        prompts have filled."""
        prompts = [feed for feed in feeds if feed.draft is None]
        if self._budget is not None:
            fed = sum(feed.length for feed in prompts)
            self._budget.stepped(fed, len(feeds) - len(prompts), seconds)
        for feed in prompts:
            sequence = feed.sequence
            if sequence.blocks:  # else it has ended meanwhile
                space = sequence.request.space
                self._blocks.keep(sequence.blocks, self._read_by_others(sequence), space)

    def finish(self, sequence: Sequence) -> None:
        """Remove a sequence and free its blocks, some of which may be kept."""
        if sequence not in self._running:
            self._waiting.remove(sequence)
            return
        self._running.remove(sequence)
        space = sequence.request.space
        self._blocks.release(sequence.blocks, self._read_by_others(sequence), space)
        sequence.blocks = ()


def _blocks_alike(text: Tokens[int], other: Tokens[int]) -> int:
    ends = range(TOKENS_PER_BLOCK, min(len(text), len(other)) + 1, TOKENS_PER_BLOCK)
    pieces = (slice(end - TOKENS_PER_BLOCK, end) for end in ends)
    return sum(1 for _ in takewhile(lambda piece: text[piece] == other[piece], pieces))


def _feeds(prompts: Tokens[Sequence], budget: int) -> Iterator[Feed]:
    """Cut the uncached tokens into stretches, `budget` tokens together.

    The oldest prompt gets half of them, so that short ones cannot hold it up indefinitely. The
    others follow by tokens left, the fewest first, and the oldest one gets the rest.
    """
    left = [min(len(sequence.prefill) - sequence.num_cached, MAX_CHUNK) for sequence in prompts]
    lengths = [0] * len(prompts)
    order = sorted(range(1, len(prompts)), key=left.__getitem__)
    for index, most in (0, -(-budget // 2)), *((index, budget) for index in order), (0, budget):
        length = min(left[index] - lengths[index], most, budget)
        lengths[index] += length
        budget -= length
    for sequence, length in zip(prompts, lengths, strict=True):
        if length:
            # An interrupted text has its first token already: it continues with a step.
            ends = sequence.num_cached + length == len(sequence.prompt) and not sequence.output_ids
            yield Feed.prompt(sequence, length, ends)
