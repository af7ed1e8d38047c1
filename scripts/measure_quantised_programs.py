"""The two programs of scripts/measure_quantised.py: trtla and llama.cpp, asked the same things.

Both get token ids and the same number of threads. llama.cpp runs as in `trtla bench`, through its C
functions: without its AMX kernels, which crash, with its repacked weights.
"""

from __future__ import annotations

import ctypes
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.bench.llama_cpp_model import Context, Model
from trtla.build.engine import build_engine
from trtla.data.prompt_sets import Ids
from trtla.formats.engine_limits import BuildSettings
from trtla.formats.folder import folder_kind
from trtla.formats.gguf.header import is_gguf
from trtla.runtime.costs import CostPlan
from trtla.settings.lookahead import Lookahead

PLAIN = LookaheadConfig(1, 1, 0)
TRIES = 5
"""Times that a step is run for one figure, the least of which counts."""
CONTEXT = 200
"""Tokens that are cached when a step is timed."""
_BUDGET_S = 3.0
"""For the steps of one round in trtla."""
_ROWS = 64
"""Rows whose probabilities are computed together."""


@dataclass(frozen=True, slots=True)
class Text:
    """A greedy text."""

    ids: Ids
    decoding_s: float
    """From the moment that the first tokens were there; a prompt has a figure of its own."""
    later: int
    """Tokens that came in this time."""
    margins: tuple[float, ...] = ()
    """By how much the most probable token was ahead of the second, in nats."""


class Program(ABC):
    """A model file opened in one of the two."""

    weight_bytes: int | None
    """Of weights that a forward reads."""
    weight_type: str | None

    @abstractmethod
    def log_probs(self, ids: Ids) -> list[float]:
        """Of every token of a text but the first, given those before it."""

    @abstractmethod
    def greedy(
        self, prompt: Ids, length: int, *, drafted: bool = False, margins: bool = False
    ) -> Text:
        """The greedy text of a prompt; no token ends it early."""

    @abstractmethod
    def prompt_s(self, ids: Ids) -> float:
        """Seconds for a prompt, up to the logits after it."""

    @abstractmethod
    def step_s(self, sizes: Sequence[int], text: Ids) -> dict[int, float]:
        """Seconds of forwards that feed a chain of so many tokens, with logits for each."""


class Trtla(Program):
    """A model in trtla; whatever it is opened with, tokens go in and come out as ids."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        llm.tokenizer, llm.end_ids = None, frozenset()
        stats = llm.stats()
        self.weight_bytes, self.weight_type = stats.weight_bytes, stats.weight_type

    def log_probs(self, ids: Ids) -> list[float]:
        """In steps of 32 tokens, which are drafts of the text itself."""
        return self._llm.log_probs(ids[:1], ids[1:])

    def greedy(
        self, prompt: Ids, length: int, *, drafted: bool = False, margins: bool = False
    ) -> Text:
        """Drafted, it is adaptive lookahead, trtla's default."""
        found: list[int] = []
        first, started = 0, 0.0
        known: tuple[float, ...] = ()
        lookahead: Lookahead = "auto" if drafted else PLAIN
        for chunk in self._llm.stream(prompt, SamplingParams(length), lookahead, margins=margins):
            found += chunk.token_ids
            if not first:
                first, started = len(found), time.perf_counter()
            if chunk.completion is not None:
                known = chunk.completion.margins
        return Text(tuple(found), time.perf_counter() - started, len(found) - first, known)

    def prompt_s(self, ids: Ids) -> float:
        """With the choice of one token."""
        started = time.perf_counter()
        self._llm.generate(ids, SamplingParams(1), PLAIN)
        return time.perf_counter() - started

    def step_s(self, sizes: Sequence[int], text: Ids) -> dict[int, float]:
        """As `auto` times them: made-up tokens; a size never costs more than a larger one."""
        plan = CostPlan(
            (1,), tuple(sizes), context=CONTEXT, row_budget_s=_BUDGET_S, repeats=TRIES, sweeps=1
        )
        table = self._llm.executor.call(lambda executor: executor.measure_costs(plan))
        return {size: table.seconds(size) for size in sizes}


class LlamaCpp(Program):
    """The same GGUF file in llama.cpp.

    Args:
        llm: the file opened in trtla.
        room: tokens of the longest text.
    """

    def __init__(self, llm: LLM, room: int) -> None:
        self._model = Model(llm.engine, torch.device("cpu"), torch.bfloat16, converted=False)
        self._context = Context(self._model, room)
        self._vocab = llm.engine.config.pretrained_config.vocab_size
        self.weight_bytes, self.weight_type = self._model.nbytes, self._model.type
        self.without_amx = self._model.without_amx

    def log_probs(self, ids: Ids) -> list[float]:
        """In one batch, of which llama.cpp makes micro-batches of 512."""
        context = self._started()
        context.feed(ids, 0, len(ids))
        rows = torch.from_numpy(self._logits(len(ids) - 1))
        targets = torch.tensor(ids[1:])[:, None]
        found: list[float] = []
        for start in range(0, len(rows), _ROWS):
            some = rows[start : start + _ROWS].double().log_softmax(-1)
            found += some.gather(1, targets[start : start + _ROWS])[:, 0].tolist()
        return found

    def greedy(
        self, prompt: Ids, length: int, *, drafted: bool = False, margins: bool = False
    ) -> Text:
        """Never drafted."""
        context = self._started()
        context.feed(prompt, 0, 1)
        found: list[int] = []
        known: list[float] = []
        started = time.perf_counter()
        while True:
            logits = self._logits()[0]
            found.append(int(logits.argmax()))
            if margins:
                second, first = np.partition(logits, -2)[-2:]
                known.append(float(first - second))
            if len(found) == length:
                break
            context.feed(found[-1:], len(prompt) + len(found) - 1, 1)
        seconds = time.perf_counter() - started
        return Text(tuple(found), seconds, length - 1, tuple(known))

    def prompt_s(self, ids: Ids) -> float:
        """Without the choice of a token."""
        context = self._started()
        context.feed(ids, 0, 1)
        return context.seconds

    def step_s(self, sizes: Sequence[int], text: Ids) -> dict[int, float]:
        """Batches that are taken out of the cache again; the first of each size warms up."""
        context = self._started()
        context.feed(text[:CONTEXT], 0, 1)
        return {size: self._step(context, text[CONTEXT:][:size]) for size in sizes}

    def _step(self, context: Context, tokens: Ids) -> float:
        seconds: list[float] = []
        for _ in range(TRIES + 1):
            before = context.seconds
            context.feed(tokens, CONTEXT, len(tokens))
            seconds.append(context.seconds - before)
            context.cut(CONTEXT)
        return min(seconds[1:])

    def _started(self) -> Context:
        self._context.start(torch.get_num_threads())
        return self._context

    def _logits(self, rows: int = 1) -> npt.NDArray[np.float32]:
        """Rows of the last forward that asked for logits, as llama.cpp holds them."""
        pointer = self._model.library.llama_get_logits(self._context.pointer)
        whole = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(whole, shape=(rows, self._vocab))


@contextmanager
def opened(
    path: Path, dtype: str = "auto", kv_cache_dtype: Literal["auto", "int8"] = "auto"
) -> Iterator[LLM]:
    """A GGUF file, an engine, a Hugging Face folder, or a checkpoint: it is built for that."""
    with ExitStack() as stack:
        if not is_gguf(path) and folder_kind(path) == "checkpoint":
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="trtla-measure-")))
            build_engine(path, folder / "engine", BuildSettings(LookaheadConfig(7, 7, 7)))
            path = folder / "engine"
        llm = LLM(path, lookahead="auto", dtype=dtype, kv_cache_dtype=kv_cache_dtype, device="cpu")
        yield stack.enter_context(llm)
