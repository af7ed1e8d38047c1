"""Forwards of generation steps as CUDA graphs: one for every bucket, captured at start, replayed.

The capture itself can be replaced, so that the bookkeeping runs without a GPU.

Steps without a graph have few shapes, all of which are run once at the start: Triton compiles a
kernel for half a second and more for each new set of constants, warps, types, integers that are 1
or a multiple of 16, and addresses that are a multiple of 16. A model fixes all of them but the
tiles of attention, by the longest prompt or tree, its splits, by sequences and context, and whether
rows are drawn and filtered: other sizes of a step are not specialised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trtla.errors import first_line
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models.batch import Batch, BatchOutput
from trtla.runtime.models.cuda.inputs import Room, StepInputs
from trtla.runtime.models.cuda.paged_attention import LARGEST_TILE, stretch_of
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.sequence import Feed

Forward = Callable[[Batch, TensorCache], BatchOutput]
"""Writes the fed tokens' keys and values, computes logits [batch.rows, vocab]."""
Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Runs a function and records it; gives what repeats it."""

_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_MOST_TOKENS = 512
"""Of a step with a graph: a larger one computes for longer than its launches take."""
_MOVES, _MOST_MOVES = 8, 256  # accepted drafts that a graph moves: of a sequence, and of all
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Steps that share a graph: up to so many fed tokens of up to so many sequences."""

    tokens: int
    sequences: int

    def holds(self, tokens: int, sequences: int) -> bool:
        return tokens <= self.tokens and sequences <= self.sequences


@dataclass(frozen=True, slots=True)
class _Graph:
    inputs: StepInputs
    replay: Callable[[], None]


class GraphRunner:
    """Logits of a step's feeds, by a graph where one fits, else by a plain forward.

    Args:
        forward: the model's.
        cache: its K/V cache, of which one block is taken for padding tokens; it must have one more
            than sequences need.
        max_batch_size: most sequences of a step.
        step_sizes: tokens that a sequence may feed in a step and that need a bucket of their own,
            rising; the last one is the most that any request feeds.
        max_cached: most tokens of a sequence in the cache, drafts included.
        capture: how a forward becomes a graph; None: never.
        max_num_tokens: most tokens of a step, whatever its sequences could feed; None: they say it.
        windows: those of the model's layers.
    """

    def __init__(
        self,
        forward: Forward,
        cache: TensorCache,
        max_batch_size: int,
        step_sizes: Sequence[int],
        max_cached: int,
        capture: Capture | None = None,
        max_num_tokens: int | None = None,
        windows: Sequence[int | None] = (),
    ) -> None:
        self._forward, self._cache, self._capture = forward, cache, capture
        self._windows = [window for window in windows if window and window < max_cached]
        self._scratch = cache.pool.reserve()
        self._step_tokens, self._max_cached = step_sizes[-1], max_cached
        self._stretch = stretch_of(max_cached)
        self._buckets = buckets(step_sizes, max_batch_size, max_num_tokens)
        self._graphs: dict[Bucket, _Graph] = {}
        self._logits: Tensor | None = None
        """Of all graphs, which never run at once: [rows, vocab]."""
        self.most_tokens = self._buckets[-1].tokens
        """Of a step that may have a graph; larger ones found no memory."""
        self.problem: str | None = None
        """Why there are no graphs, where a capture failed."""

    @property
    def token_counts(self) -> set[int]:
        """The tokens of a step, padding included, by bucket."""
        return {bucket.tokens for bucket in self._buckets}

    @property
    def captured(self) -> list[Bucket]:
        return list(self._graphs)

    @property
    def is_complete(self) -> bool:
        """Whether no bucket lacks its graph for want of memory."""
        return self.most_tokens == self._buckets[-1].tokens

    def capture_all(self) -> None:
        """Capture every bucket, the largest first: smaller ones then live in its memory."""
        with self._on_device():
            for bucket in sorted(self._buckets, key=lambda one: -one.tokens):
                self._graph(bucket)
        if self.problem is None and not self.is_complete:
            _log.warning(
                "steps of more than %d tokens run without a CUDA graph, which is slower: there is "
                "no memory for larger ones",
                self.most_tokens,
            )

    def warm_up(self) -> Tensor | None:
        """Run small steps without a graph, so that no step waits for a compiler; on scratch alone.

        Returns:
            Logits as steps give them; None where there is a `problem`.
        """
        if self.problem is not None:
            return None
        try:
            with self._on_device():
                return [self._run(room).logits for room in self._rooms_to_try()][-1]
        except Exception as error:  # as of a capture
            self._give_up(error)
            return None

    def _rooms_to_try(self) -> Iterator[Room]:
        """Small steps that together launch whatever steps without a graph launch."""
        for bucket in self._buckets:
            if bucket not in self._graphs:
                yield replace(self._room(bucket), tokens=1, rows=1, moves=0)
        one = replace(self._room(Bucket(1, 1)), prompts=1, moves=0)
        lengths = {min(1 << bit, self._max_cached) for bit in range(LARGEST_TILE.bit_length())}
        for length in sorted(lengths):
            prompt = replace(one, tokens=1 + length, prompt_tokens=length, longest_prompt=length)
            yield self._unsplit(replace(prompt, longest_tree=length))

    def _unsplit(self, exact: Room) -> Room:
        """The room of a step that no bucket holds: one split, and a tile above those of buckets."""
        longest = max(exact.longest_tree, self._step_tokens + 1)
        return replace(exact, longest_tree=longest, context=0)

    def __call__(self, feeds: Sequence[Feed]) -> BatchOutput:
        """Float logits [wanted rows, vocab], feed by feed; the next call may overwrite them.

        Prompts run before trees, whose bits then do not depend on the prompts beside them.
        """
        prompts = sum(feed.draft is None for feed in feeds)
        if not 0 < prompts < len(feeds):
            return self._step(feeds)
        parts = [self._step(feeds[:prompts]).logits, self._step(feeds[prompts:]).logits]
        return BatchOutput(torch.cat(parts))

    def _step(self, feeds: Sequence[Feed]) -> BatchOutput:
        with self._on_device():
            bucket = self._bucket(feeds)
            graph = None if bucket is None else self._graph(bucket)
            if graph is None:
                self._cache.move_now()
                logits = self._run(self._plain_room(feeds, bucket), feeds).logits
            else:
                graph.inputs.fill(feeds, self._moves(graph.inputs.room.moves))
                graph.replay()
                assert self._logits is not None
                logits = self._logits
            return BatchOutput(logits[: sum(len(feed.rows) for feed in feeds)])

    def _on_device(self) -> AbstractContextManager[object]:
        """Launches and streams follow the current device, not the tensors."""
        device = self._cache.data.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def _bucket(self, feeds: Sequence[Feed]) -> Bucket | None:
        """The smallest that holds them; None for prompts, whose lengths differ too much."""
        if any(feed.draft is None or feed.length > self._step_tokens for feed in feeds):
            return None
        tokens = sum(feed.length for feed in feeds)
        fits = (one for one in self._buckets if one.holds(tokens, len(feeds)))
        return next(fits, None)

    def _run(self, room: Room, feeds: Sequence[Feed] = ()) -> BatchOutput:
        inputs = self._inputs(room)
        return self._forward(inputs.fill(feeds), self._cache)

    def _inputs(self, room: Room) -> StepInputs:
        return StepInputs(room, self._scratch, self._cache.data.device, self._windows)

    def _plain_room(self, feeds: Sequence[Feed], bucket: Bucket | None) -> Room:
        """Its bucket's for trees, which then have the bits of a graph; else just enough."""
        if bucket is not None:
            return replace(self._room(bucket), moves=0)
        exact = replace(Room.of(feeds), stretch=self._stretch)
        return exact if exact.prompts else self._unsplit(exact)

    def _moves(self, most: int) -> list[tuple[int, int]]:
        """What a graph has to move; where it has no room for all, that is done now."""
        moves = self._cache.take_moves()
        if len(moves) > most:
            self._cache.move_later(moves)
            self._cache.move_now()
            return []
        return moves

    def _graph(self, bucket: Bucket) -> _Graph | None:
        wanted = bucket not in self._graphs and bucket.tokens <= self.most_tokens
        if wanted and self._capture is not None and not self._has_memory(bucket, self._capture):
            self._shrink(bucket)
        return self._graphs.get(bucket)

    def _has_memory(self, bucket: Bucket, capture: Capture) -> bool:
        """Capture a bucket; False where memory is all that it lacks."""
        try:
            self._graphs[bucket] = self._captured(bucket, capture)
        except torch.OutOfMemoryError:
            return False
        except Exception as error:  # of Triton or the driver
            self._give_up(error)
        return True

    def _shrink(self, bucket: Bucket) -> None:
        """There is no memory for a bucket: smaller ones are still captured, none of its size is."""
        sizes = (one.tokens for one in self._buckets if one.tokens < bucket.tokens)
        self.most_tokens = max(sizes, default=0)
        if not self._graphs:  # the next one makes smaller logits
            self._logits = None
        torch.cuda.empty_cache()  # what the failed capture took is PyTorch's own until then

    def _give_up(self, error: Exception) -> None:
        """After one failed capture no other is tried: the allocator may have been left in it."""
        self.problem = first_line(error)
        self._capture, self._logits = None, None
        self._graphs.clear()
        _log.warning("there are no CUDA graphs, decoding is slower: %s", self.problem)

    def _captured(self, bucket: Bucket, capture: Capture) -> _Graph:
        """A graph over inputs without a feed: what it is run for writes to the scratch block."""
        inputs = self._inputs(self._room(bucket))
        batch = inputs.fill(())

        def run() -> None:
            logits = self._forward(batch, self._cache).logits
            if self._logits is None:  # in the first run, which is not recorded
                self._logits = logits.new_empty((self.most_tokens, logits.shape[1]))
            self._logits[: len(logits)].copy_(logits)

        return _Graph(inputs, capture(run))

    def _room(self, bucket: Bucket) -> Room:
        return Room(
            tokens=bucket.tokens,
            prompt_tokens=0,
            rows=bucket.tokens,
            prompts=0,
            trees=bucket.sequences,
            longest_prompt=0,
            longest_tree=min(bucket.tokens, self._step_tokens),
            blocks=-(-self._max_cached // TOKENS_PER_BLOCK),
            context=self._max_cached,
            stretch=self._stretch,
            moves=min(_MOVES * bucket.sequences, _MOST_MOVES),
        )


def buckets(
    step_sizes: Sequence[int], max_batch_size: int, max_num_tokens: int | None = None
) -> tuple[Bucket, ...]:
    """For powers of 2 of sequences, and most of them, some sizes of their steps; tokens rising.

    Args:
        step_sizes: as of `GraphRunner`, such as (84, 100) for (7,7,7) with other drafters beside.
        max_num_tokens: most tokens of a step; None: as many as its sequences can feed.
    """
    most = max_num_tokens or max_batch_size * step_sizes[-1]
    sizes = {*(size for size in _SIZES if size < step_sizes[-1]), *step_sizes}
    most = min(most, max(_MOST_TOKENS, step_sizes[-1]))
    powers = [1 << bit for bit in range(max_batch_size.bit_length())]
    batches = sorted({*(power for power in powers if power < max_batch_size), max_batch_size})
    made = {Bucket(min(batch * size, most), batch) for batch in batches for size in sizes}
    return tuple(sorted(made, key=lambda one: (one.tokens, one.sequences)))


class CudaCapture:
    """A `Capture` into graphs that share one pool of memory, since they never run at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
            # PyTorch's own is the first device's; cuBLAS keeps a workspace for every stream.
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._in_use = False
        """Whether a graph lives in the pool."""

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """Run once on a stream of its own (kernels are compiled then), and record a second run.

        What fails leaves the stream as it was; other threads may use the device meanwhile.
        """
        with torch.cuda.device(self._device):
            before = torch.cuda.current_stream()
            self._warm_up(run)
            graph = torch.cuda.CUDAGraph()
            try:
                mode = "thread_local"
                with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode=mode):
                    run()
            except BaseException:
                self._leave(before)
                raise
            self._in_use = True
            return graph.replay

    def _warm_up(self, run: Callable[[], None]) -> None:
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)

    def _leave(self, before: torch.cuda.Stream) -> None:
        """Do what `torch.cuda.graph` leaves undone where the end of a capture fails."""
        torch.cuda.set_stream(before)
        with suppress(Exception):  # private, and not in every release
            torch._C._cuda_endAllocateToPool(before.device_index, self._pool)
        if not self._in_use:  # PyTorch captures nothing into a pool whose graphs are all gone
            self._pool = torch.cuda.graph_pool_handle()
