"""Forwards of generation steps as CUDA graphs: one captured for every bucket, then replayed.

Which feeds share a graph, when one is captured and what happens where that fails is decided here;
the capture itself can be replaced, so the bookkeeping runs without a GPU.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models.batch import Batch, Forwarded
from trtla.runtime.models.cuda.inputs import Room, StepInputs
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.sequence import Feed

Forward = Callable[[Batch, KVCache], Forwarded]
"""Writes the fed tokens' keys and values, computes logits [batch.rows, vocab]."""
Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Runs or records a forward; gives what repeats it, and the tensor that each repetition fills."""


@dataclass(frozen=True, slots=True)
class _Graph:
    inputs: StepInputs
    replay: Callable[[], None]
    logits: Tensor


class GraphRunner:
    """Logits of a step's feeds, by a graph where one fits, else by a plain forward.

    Args:
        forward: the model's.
        cache: its K/V cache, of which one block is taken for padding tokens; it must have one more
            than sequences need.
        max_batch_size: most sequences of a step.
        step_tokens: most tokens that a sequence feeds in a generation step.
        max_cached: most tokens of a sequence in the cache, drafts included.
        capture: how a forward becomes a graph; None: never.
    """

    def __init__(
        self,
        forward: Forward,
        cache: KVCache,
        max_batch_size: int,
        step_tokens: int,
        max_cached: int,
        capture: Capture | None = None,
    ) -> None:
        scratch = cache.pool.allocate(1)
        if scratch is None:
            raise ValueError("the K/V cache has no free block")
        self._forward, self._cache, self._capture = forward, cache, capture
        self._scratch = scratch[0]
        self._step_tokens, self._max_cached = step_tokens, max_cached
        self._tokens = token_buckets(step_tokens, max_batch_size)
        self._batches = batch_buckets(max_batch_size)
        self._graphs: dict[tuple[int, int], _Graph | None] = {}
        self.problem: str | None = None
        """Why a capture failed, the last one that did."""

    @property
    def captured(self) -> list[tuple[int, int]]:
        """(tokens, sequences) of the graphs there are."""
        return [key for key, graph in self._graphs.items() if graph is not None]

    def __call__(self, feeds: Sequence[Feed]) -> Forwarded:
        """Float logits [wanted rows, vocab], feed by feed; the next call may overwrite them."""
        key = self._bucket(feeds)
        if key is None:
            return self._plain(feeds)
        if key not in self._graphs:
            self._graphs[key] = self._captured(key, feeds)
        graph = self._graphs[key]
        if graph is None:
            return self._plain(feeds)
        graph.inputs.fill(feeds)
        graph.replay()
        return Forwarded(graph.logits[: sum(len(feed.rows) for feed in feeds)])

    def _bucket(self, feeds: Sequence[Feed]) -> tuple[int, int] | None:
        """Which graph fits; None for prompts, whose lengths differ too much."""
        if self._capture is None or any(feed.draft is None for feed in feeds):
            return None
        if max(feed.length for feed in feeds) > self._step_tokens:
            return None
        tokens = bucket_of(sum(feed.length for feed in feeds), self._tokens)
        batch = bucket_of(len(feeds), self._batches)
        return None if tokens is None or batch is None else (tokens, batch)

    def _plain(self, feeds: Sequence[Feed]) -> Forwarded:
        inputs = StepInputs(Room.of(feeds), self._scratch, self._cache.device)
        return self._forward(inputs.fill(feeds), self._cache)

    def _captured(self, key: tuple[int, int], feeds: Sequence[Feed]) -> _Graph | None:
        """A new graph; its first run writes what its replay will write again."""
        assert self._capture is not None
        inputs = StepInputs(self._room(*key), self._scratch, self._cache.device)
        batch = inputs.fill(feeds)
        try:
            replay, logits = self._capture(lambda: self._forward(batch, self._cache).logits)
        except RuntimeError as error:  # what cannot be captured, or no memory for the graph
            self.problem = str(error)
            return None
        return _Graph(inputs, replay, logits)

    def _room(self, tokens: int, batch: int) -> Room:
        return Room(
            tokens=tokens,
            prompt_tokens=0,
            rows=tokens,
            prompts=0,
            trees=batch,
            longest_prompt=0,
            longest_tree=min(tokens, self._step_tokens),
            blocks=-(-self._max_cached // TOKENS_PER_BLOCK),
            context=self._max_cached,
        )


class CudaCapture:
    """A `Capture` into CUDA graphs that share one pool of memory, since they never run at once."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Run once on a stream of its own (kernels are compiled then), and record a second run."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = run()
        return graph.replay, logits


def token_buckets(step_tokens: int, max_batch_size: int) -> tuple[int, ...]:
    """Powers of 2 below one sequence's largest step, then that step's multiples.

    Args:
        step_tokens: most tokens that a sequence feeds in a step, such as 84 for (7,7,7).
    """
    powers = [1 << i for i in range(step_tokens.bit_length()) if 1 << i < step_tokens]
    return (*powers, *(step_tokens * count for count in range(1, max_batch_size + 1)))


def batch_buckets(max_batch_size: int) -> tuple[int, ...]:
    """Powers of 2, and the largest batch."""
    powers = [1 << i for i in range(max_batch_size.bit_length()) if 1 << i < max_batch_size]
    return (*powers, max_batch_size)


def bucket_of(size: int, buckets: tuple[int, ...]) -> int | None:
    """The smallest bucket that holds `size`; None where none does."""
    index = bisect_left(buckets, size)
    return buckets[index] if index < len(buckets) else None
