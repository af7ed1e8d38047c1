"""Forwards of generation steps as CUDA graphs, one for each bucket, captured at the start.

The capture can be replaced, so that the bookkeeping runs without a GPU.

Steps without a graph have few shapes, and all of them run once at the start. Triton compiles a
kernel for half a second or more for each new set of constants, warps, types, integers that are 1
or a multiple of 16, and addresses that are a multiple of 16. A model fixes all of them but three:
the tiles of attention (longest prompt or tree), its splits (sequences and context), and whether
rows are drawn and filtered. Other sizes of a step are not specialised.
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
from trtla.runtime.models.batch import Batch, BatchOutput, joined
from trtla.runtime.models.cuda.inputs import Room, StepInputs
from trtla.runtime.models.cuda.paged_attention import LARGEST_TILE, stretch_of
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.sequence import Feed

Forward = Callable[[Batch, TensorCache], BatchOutput]
"""A forward: it writes the fed tokens' keys and values and returns logits [batch.rows, vocab]."""
Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""A recorder: it runs a function, records it, and returns a function that replays it."""

_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_MOST_TOKENS = 512
"""Most tokens of a step with a graph; larger steps compute for longer than their launches take."""
_MOVES, _MOST_MOVES = 8, 256  # accepted drafts that a graph moves: of a sequence, and of all
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bucket:
    """The steps that share a graph: up to `tokens` fed tokens of up to `sequences` sequences."""

    tokens: int
    sequences: int

    def holds(self, tokens: int, sequences: int) -> bool:
        return tokens <= self.tokens and sequences <= self.sequences


@dataclass(frozen=True, slots=True)
class _Graph:
    inputs: StepInputs
    replay: Callable[[], None]


class GraphRunner:
    """The logits of a step's feeds, from a graph if one fits, else from a plain forward.

    With taps every graph copies the states of tapped layers, whether a drafter wants them or not:
    two small launches in a step of hundreds. Graphs without taps beside them would double the time
    and the memory of captures. Steps without a graph tap where a drafter wants states.

    Args:
        forward: the model's.
        cache: the K/V cache, with one block more than sequences need, for padding tokens.
        max_batch_size: most sequences of a step.
        step_sizes: tokens per sequence and step that get a bucket, rising; the last one is the
            most that any request feeds.
        max_cached: most tokens of a sequence in the cache, drafts included.
        capture: records a forward as a graph; None runs without graphs.
        max_num_tokens: most tokens of a step; None means as many as its sequences can feed.
        windows: the windows of the model's layers.
        taps: layers whose output drafters may want.
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
        taps: tuple[int, ...] = (),
    ) -> None:
        self._forward, self._cache, self._capture = forward, cache, capture
        self._taps = taps
        self._windows = [window for window in windows if window and window < max_cached]
        self._scratch = cache.pool.reserve()
        self._step_tokens, self._max_cached = step_sizes[-1], max_cached
        self._stretch = stretch_of(max_cached)
        self._buckets = buckets(step_sizes, max_batch_size, max_num_tokens)
        self._graphs: dict[Bucket, _Graph] = {}
        self._kept: BatchOutput | None = None
        """The output of all graphs, which never run concurrently."""
        self.most_tokens = self._buckets[-1].tokens
        """Most tokens of a step with a graph; memory has no room for larger ones."""
        self.problem: str | None = None
        """The reason why a capture failed, after which there are no graphs; None if none failed."""

    @property
    def token_counts(self) -> set[int]:
        """The padded token counts of all buckets."""
        return {bucket.tokens for bucket in self._buckets}

    @property
    def captured(self) -> list[Bucket]:
        return list(self._graphs)

    @property
    def is_complete(self) -> bool:
        """True if memory has room for the graph of every bucket."""
        return self.most_tokens == self._buckets[-1].tokens

    def capture_all(self) -> None:
        """Capture every bucket, the largest first, so that smaller ones share its memory."""
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
        """Run small steps without a graph on the scratch block, so no later step waits to compile.

        Returns:
            Logits in the form of a step's; None if there is a `problem`.
        """
        if self.problem is not None:
            return None
        try:
            with self._on_device():
                rooms = self._rooms_to_try()
                return [self._run(room, (), self._taps).logits for room in rooms][-1]
        except Exception as error:  # as of a capture
            self._give_up(error)
            return None

    def _rooms_to_try(self) -> Iterator[Room]:
        """Yield small steps that together launch every kernel of steps without a graph."""
        for bucket in self._buckets:
            if bucket not in self._graphs:
                yield replace(self._room(bucket), tokens=1, rows=1, moves=0)
        one = replace(self._room(Bucket(1, 1)), prompts=1, moves=0)
        lengths = {min(1 << bit, self._max_cached) for bit in range(LARGEST_TILE.bit_length())}
        for length in sorted(lengths):
            prompt = replace(one, tokens=1 + length, prompt_tokens=length, longest_prompt=length)
            yield self._unsplit(replace(prompt, longest_tree=length))

    def _unsplit(self, exact: Room) -> Room:
        """Return a room that fits no bucket: one split, and a tile above the buckets'."""
        longest = max(exact.longest_tree, self._step_tokens + 1)
        return replace(exact, longest_tree=longest, context=0)

    def __call__(self, feeds: Sequence[Feed]) -> BatchOutput:
        """Return float logits [rows, vocab], feed by feed, and states if a drafter wants them.

        The next call may overwrite them. Prompts run before trees, so that the bits of trees do not
        depend on prompts.
        """
        taps = self._taps if any(feed.wants_states for feed in feeds) else ()
        prompts = sum(feed.draft is None for feed in feeds)
        if not 0 < prompts < len(feeds):
            return self._step(feeds, taps)
        return joined([self._step(part, taps) for part in (feeds[:prompts], feeds[prompts:])])

    def _step(self, feeds: Sequence[Feed], taps: tuple[int, ...]) -> BatchOutput:
        with self._on_device():
            bucket = self._bucket(feeds)
            graph = None if bucket is None else self._graph(bucket)
            if graph is None:
                self._cache.move_now()
                output = self._run(self._plain_room(feeds, bucket), feeds, taps)
            else:
                graph.inputs.fill(feeds, self._moves(graph.inputs.room.moves))
                graph.replay()
                assert self._kept is not None
                output = self._kept if taps else BatchOutput(self._kept.logits)
            rows = sum(len(feed.rows) for feed in feeds)
            return output.first(rows, sum(feed.length for feed in feeds))

    def _on_device(self) -> AbstractContextManager[object]:
        """Return a context with the cache's device, because launches do not follow the tensors."""
        device = self._cache.data.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def _bucket(self, feeds: Sequence[Feed]) -> Bucket | None:
        """Return the smallest fitting bucket; None for prompts, whose lengths vary too much."""
        if any(feed.draft is None or feed.length > self._step_tokens for feed in feeds):
            return None
        tokens = sum(feed.length for feed in feeds)
        fits = (one for one in self._buckets if one.holds(tokens, len(feeds)))
        return next(fits, None)

    def _run(self, room: Room, feeds: Sequence[Feed], taps: tuple[int, ...]) -> BatchOutput:
        inputs = self._inputs(room, taps)
        return self._forward(inputs.fill(feeds), self._cache)

    def _inputs(self, room: Room, taps: tuple[int, ...]) -> StepInputs:
        return StepInputs(room, self._scratch, self._cache.data.device, self._windows, taps)

    def _plain_room(self, feeds: Sequence[Feed], bucket: Bucket | None) -> Room:
        """Return the bucket's room, with which trees have a graph's bits; else an exact one."""
        if bucket is not None:
            return replace(self._room(bucket), moves=0)
        exact = replace(Room.of(feeds), stretch=self._stretch)
        return exact if exact.prompts else self._unsplit(exact)

    def _moves(self, most: int) -> list[tuple[int, int]]:
        """Return the moves for a graph; if it has no room for all of them, they are done now."""
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
        """Capture a bucket, and return False if only memory is lacking."""
        try:
            self._graphs[bucket] = self._captured(bucket, capture)
        except torch.OutOfMemoryError:
            return False
        except Exception as error:  # of Triton or the driver
            self._give_up(error)
        return True

    def _shrink(self, bucket: Bucket) -> None:
        """Limit captures to buckets smaller than this one, which memory has no room for."""
        sizes = (one.tokens for one in self._buckets if one.tokens < bucket.tokens)
        self.most_tokens = max(sizes, default=0)
        if not self._graphs:  # the next one makes a smaller one
            self._kept = None
        torch.cuda.empty_cache()  # what the failed capture took is PyTorch's own until then

    def _give_up(self, error: Exception) -> None:
        """Stop capturing after a failure, because the allocator may be left inside the capture."""
        self.problem = first_line(error)
        self._capture = self._kept = None
        self._graphs.clear()
        _log.warning("there are no CUDA graphs, decoding is slower: %s", self.problem)

    def _captured(self, bucket: Bucket, capture: Capture) -> _Graph:
        """Capture a graph over inputs without a feed, whose tokens write to the scratch block."""
        inputs = self._inputs(self._room(bucket), self._taps)
        batch = inputs.fill(())

        def run() -> None:
            output = self._forward(batch, self._cache)
            if self._kept is None:  # in the first run, which is not recorded
                self._kept = output.room(self.most_tokens)
            output.copy_to(self._kept)

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
    """Return buckets for powers of 2 of sequences and the largest number, tokens rising.

    Args:
        step_sizes: as in `GraphRunner`, such as (84, 100) for (7,7,7) and further drafters.
        max_num_tokens: most tokens of a step; None means as many as its sequences can feed.
    """
    most = max_num_tokens or max_batch_size * step_sizes[-1]
    sizes = {*(size for size in _SIZES if size < step_sizes[-1]), *step_sizes}
    most = min(most, max(_MOST_TOKENS, step_sizes[-1]))
    powers = [1 << bit for bit in range(max_batch_size.bit_length())]
    batches = sorted({*(power for power in powers if power < max_batch_size), max_batch_size})
    made = {Bucket(min(batch * size, most), batch) for batch in batches for size in sizes}
    return tuple(sorted(made, key=lambda one: (one.tokens, one.sequences)))


class CudaCapture:
    """A `Capture` into graphs that share a memory pool, because they never run concurrently."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
            # PyTorch's own is the first device's; cuBLAS keeps a workspace for every stream.
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._in_use = False
        """True once a graph uses the pool."""

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """Run once on a separate stream, which compiles the kernels, and record a second run.

        A failure restores the stream. Other threads may use the device concurrently.
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
        """Finish the cleanup that `torch.cuda.graph` omits if the end of a capture fails."""
        torch.cuda.set_stream(before)
        with suppress(Exception):  # private, and not in every release
            torch._C._cuda_endAllocateToPool(before.device_index, self._pool)
        if not self._in_use:  # PyTorch captures nothing into a pool whose graphs are all gone
            self._pool = torch.cuda.graph_pool_handle()
