"""A round of `stress texts`: one LLM, requests in streams, in turns or in threads."""

from __future__ import annotations

import gc
import io
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from stress.models import KINDS, head_folder, model_folder
from stress.worlds import Request, World, fed

from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.cli.app import execute
from trtla.errors import TrtlaError
from trtla.llm.llm import Chunk, Completion
from trtla.runtime.blocks import TOKENS_PER_BLOCK, BlockPool
from trtla.runtime.threads import set_threads
from trtla.settings.drafting import DrafterSettings, DraftOptions

MAX_SEQ_LEN = 192
_OPEN_STREAMS = 3


@dataclass
class Outcome:
    """What came of one request."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    """Its chunks' texts."""
    completion: Completion | None = None
    """None: its consumer left, or was interrupted."""
    error: str | None = None

    def add(self, chunk: Chunk) -> None:
        """Take a chunk of the stream."""
        self.ids += chunk.token_ids
        self.text += chunk.text or ""
        self.completion = chunk.completion


def play(world: World, root: Path) -> list[Outcome]:
    """Send all requests of the world; their outcomes in order."""
    set_threads(world.torch_threads)
    outcomes = [Outcome() for _ in world.requests]
    with open_world(world, root) as llm:
        calls = [
            _Call(world, call, outcomes, root)
            for call in sorted({one.call for one in world.requests})
        ]
        if world.callers > 1:
            _in_threads(llm, calls, world.callers)
        else:
            _in_turns(llm, calls, world)
        llm.generate([[1]], SamplingParams(max_output_len=1))  # it recovers from interrupts here
        leaks = lost_blocks()
    if leaks:
        raise LostBlocks(f"{leaks} cache blocks are in use when nothing is in flight")
    return outcomes


class LostBlocks(Exception):
    """Blocks were not given back."""


def lost_blocks() -> int:
    """Blocks in use in all caches of this process, those of draft models too."""
    gc.collect()
    pools = [one for one in gc.get_objects() if type(one) is BlockPool]
    return sum(pool.num_blocks - pool.num_free for pool in pools)


@contextmanager
def open_world(world: World, root: Path) -> Iterator[LLM]:
    """The world's LLM, from an engine with its limits."""
    engine = _engine(world, root)
    block = 2 * 2 * 4 * 32 * TOKENS_PER_BLOCK * 4  # float32; at most 2 layers, 4 heads of 32
    with patch.dict(os.environ, TRTLA_COMPILED=str(int(world.compiled))):
        with _memory(world, block):
            llm = LLM(
                engine,
                dtype="float32",
                draft_models=[str(model_folder(one, root)) for one in world.drafts],
                heads=[str(head_folder(world.model, one, root)) for one in world.heads],
                head_layers=tuple(map(str, _boundaries(world))) if world.heads else None,
                draft_options=DraftOptions(**world.options),
                block_reuse=world.reuse,
                bounded_steps=world.bounded_steps,
            )
        with llm:
            llm.executor.call(lambda executor: setattr(executor, "_ahead", world.ahead))
            yield llm


def _boundaries(world: World) -> range:
    """All layers of the model: a first one of 1 in a head's files would count outputs."""
    return range(1, 1 + KINDS[world.model.kind].get("num_hidden_layers", 2))


def _memory(world: World, block: int) -> Any:
    """Memory for few blocks, where the world's cache is small."""
    if world.spare_blocks is None:
        return patch.dict({})
    longest = -(-(MAX_SEQ_LEN + fed(world.triple) + 16) // TOKENS_PER_BLOCK)
    free = (longest + world.spare_blocks) * block * (1 + len(world.drafts))
    return patch("trtla.runtime.models.kv_cache._free_bytes", lambda device: free)


def _engine(world: World, root: Path) -> Path:
    source = model_folder(world.model, root)
    sizes, triple = (world.batch, world.max_num_tokens, *world.triple), map(str, world.triple)
    folder = root / "-".join((source.name, "engine", *map(str, sizes)))
    if not folder.exists():
        words = (
            f"build --checkpoint-dir {source} --output-dir {folder} --dtype float32 --quiet "
            f"--backend torch --max-batch-size {world.batch} --max-seq-len {MAX_SEQ_LEN} "
            f"--max-num-tokens {world.max_num_tokens} --lookahead {','.join(triple)}"
        )
        printed = io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            code = execute(words.split())
        if code:
            raise RuntimeError(printed.getvalue())
    return folder


class _Call:
    """Requests that go into one batch, and their stream."""

    def __init__(self, world: World, number: int, outcomes: list[Outcome], root: Path) -> None:
        pairs = zip(world.requests, outcomes, strict=True)
        own = [(request, outcome) for request, outcome in pairs if request.call == number]
        self._requests, self._outcomes = zip(*own, strict=True)
        drafts = [str(model_folder(one, root)) for one in world.drafts]
        heads = [str(head_folder(world.model, one, root)) for one in world.heads]
        self._folders = {"draft": drafts, "head": heads}
        self._leave, self._chunks = self._requests[0].leave, 0
        self._stream: Any = None

    def _open(self, llm: LLM) -> Any:
        return llm.stream(
            [a.prompt for a in self._requests],
            [SamplingParams(**a.sampling) for a in self._requests],
            [_triple(a) for a in self._requests],
            drafter=[self._drafter(a) for a in self._requests],
            expected_output=[a.expected for a in self._requests],
            logprobs=[a.logprobs for a in self._requests],
            private=[a.private for a in self._requests],
        )

    def _drafter(self, request: Request) -> DrafterSettings | None:
        if request.drafter is None:
            return None
        names = tuple(map(self._named, request.drafter["drafter"]))
        return DrafterSettings(**{**request.drafter, "drafter": names})

    def _named(self, name: str) -> str:
        """A drafter with the path in place of the number."""
        kind, _, number = name.partition(":")
        return f"{kind}:{self._folders[kind][int(number)]}" if number else name

    def step(self, llm: LLM) -> bool:
        """Take a chunk; False when the call has ended."""
        self._stream = self._stream or self._open(llm)
        chunk = None if self._chunks == self._leave else next(self._stream, None)
        if chunk is None:
            self._stream.close()
            return False
        self._chunks += 1
        self._outcomes[chunk.index].add(chunk)
        return True

    def fail(self, error: BaseException) -> None:
        """Note why those that have not ended will not."""
        for outcome in self._outcomes:
            if outcome.completion is None:
                outcome.error = f"{type(error).__name__}: {error}"
        if self._stream is not None:
            self._stream.close()


def _triple(request: Request) -> Any:
    named = request.lookahead
    return named if named is None or isinstance(named, str) else LookaheadConfig(*named)


def _in_turns(llm: LLM, calls: list[_Call], world: World) -> None:
    """Streams take turns at random, and a signal may interrupt any of them."""
    dice, waiting, opened = Random(world.seed + 2), list(calls), list[_Call]()
    interrupts = _Interrupts(dice if world.interrupts else None)
    while waiting or opened:
        if waiting and len(opened) < _OPEN_STREAMS and dice.random() < 0.5:
            opened.append(waiting.pop(0))
        if opened and not _turn(call := dice.choice(opened), llm, interrupts):
            opened.remove(call)


def _turn(call: _Call, llm: LLM, interrupts: _Interrupts) -> bool:
    try:
        with interrupts:
            return call.step(llm)
    except (TrtlaError, KeyboardInterrupt) as error:
        call.fail(error)
        return False


class _Interrupts:
    """Within it a signal may raise KeyboardInterrupt, anywhere."""

    def __init__(self, dice: Random | None) -> None:
        self._dice, self._armed = dice, False
        if dice is not None:
            signal.signal(signal.SIGALRM, self._raise)

    def _raise(self, *_: object) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        self._armed = True
        if self._dice is not None and self._dice.random() < 0.05:
            signal.setitimer(signal.ITIMER_REAL, self._dice.uniform(0.00005, 0.003))

    def __exit__(self, *_: object) -> None:
        self._armed = False


def _in_threads(llm: LLM, calls: list[_Call], count: int) -> None:
    """Threads take calls until none is left."""
    waiting = list(calls)

    def work() -> None:
        while True:
            try:
                call = waiting.pop(0)
            except IndexError:
                return
            try:
                while call.step(llm):
                    pass
            except Exception as error:
                call.fail(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
