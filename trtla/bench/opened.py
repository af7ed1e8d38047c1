"""A model opened to be measured, and the rounds in which arms take turns on it.

An `LLM` that is opened here loses its tokenizer, so that no arm pays for text while it is timed,
and its end ids where texts go on behind them.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TypeVar

import torch

from trtla.bench.arms import AR, Arm, Run
from trtla.console import Progress, duration
from trtla.data.encoder import Encoder, plain_answers
from trtla.data.prompt_sets import Ids, Question, prompt_room
from trtla.errors import UsageError
from trtla.llm.llm import LLM
from trtla.llm.text import Tokenizer
from trtla.results.bench_documents import Cell
from trtla.results.metrics import add
from trtla.runtime.models.load import resolve_dtype
from trtla.settings.drafting import LOOKAHEAD, DrafterSettings
from trtla.settings.executor import ExecutorOptions
from trtla.settings.messages import AS_TEXT, Asking
from trtla.settings.sampling import SamplingParams

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What `trtla bench` opens its models with; one after the other for each device and type."""

    model: str
    options: ExecutorOptions
    """Of all models, but for what is listed here."""
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    threads: tuple[int, ...]
    """Empty: PyTorch's own number."""
    sampling: SamplingParams
    """The output's length and the first seed; what is measured has its own filters."""
    ignore_eos: bool
    batch_sizes: tuple[int, ...] = (1,)
    drafters: tuple[DrafterSettings, ...] = ()
    """All that draft; the model gets memory for the longest draft."""
    asking: Asking = AS_TEXT
    """Whether texts are put into the chat template."""

    def open(self, device: str, dtype: str) -> LLM:
        """The model on a device and in a type.

        Raises:
            UsageError: a folder, the device or the type is not usable.
        """
        longest = max(self.drafters, key=lambda one: one.most_tokens, default=LOOKAHEAD)
        options = replace(
            self.options,
            device=device,
            dtype=dtype,
            max_batch_size=max(self.batch_sizes),
            drafter=longest,
        )
        return LLM(self.model, options)


class OpenedModel:
    """An `LLM` from which measuring takes over; it is used for nothing else.

    Args:
        setup: what the model was opened with.
        device: what it was opened on.
        dtype: the type that was asked for; auto is the engine's.

    Raises:
        UsageError: it has no tokenizer.
    """

    def __init__(self, llm: LLM, setup: Setup, device: torch.device, dtype: str) -> None:
        self.llm, self._setup, self.device = llm, setup, device
        self.checkpoint = llm.engine.config.pretrained_config
        self.dtype = resolve_dtype(dtype, self.checkpoint.dtype, self.device)
        self.tokenizer = take_tokenizer(llm)
        self._ends = llm.end_ids
        if setup.ignore_eos:
            llm.end_ids = frozenset()

    @property
    def dtype_name(self) -> str:
        """Such as `bfloat16`."""
        return str(self.dtype).removeprefix("torch.")

    def prompts(
        self,
        questions: Sequence[Question],
        sampling: SamplingParams,
        on_note: Note,
        of: str = "",
    ) -> list[Ids]:
        """All turns as ids, cut to their room; first turns are answered here for the later ones.

        Args:
            sampling: of the answers; the prompt at place i has seed + i.
            of: whose prompts they are, for notes.

        Raises:
            UsageError: any prompt at all has no room, or the chat template fails.
        """
        encoder = Encoder(self.tokenizer, self._setup.asking, self.room)
        answer = plain_answers(self.llm, self.tokenizer, sampling, self._ends)
        if any(len(one.turns) > 1 for one in questions):
            on_note(f"plain decoding answers the first turns{of}, which the second ones continue")
        found = encoder.questions(questions, answer)
        if encoder.cut:
            on_note(f"{encoder.cut} prompts{of} are cut to {self.room} tokens")
        return found

    @property
    def room(self) -> int:
        """Tokens that a prompt may have; raises `UsageError` where there are none."""
        return prompt_room(self.llm.limits, self._setup.sampling.max_output_len)


def take_tokenizer(llm: LLM) -> Tokenizer:
    """The model's tokenizer, taken away from it: no arm pays for text.

    Raises:
        UsageError: it has none.
    """
    tokenizer, llm.tokenizer = llm.tokenizer, None
    if tokenizer is None:
        raise UsageError(
            f"{llm.engine.name} has no tokenizer files", "give them with --tokenizer-dir"
        )
    return tokenizer


_BYTES = 2**29
_TRIES = 5
_CUDA_SHARE = 8  # times the bytes of a CPU's sum, which a GPU is done with at once
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def read_bandwidth(device: torch.device, size: int = _BYTES) -> float:
    """Bytes a second, the best of some tries: a sum, on CUDA also a copy (read + write)."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        with torch.cuda.device(device):  # events are of the current one
            return _device_bandwidth(device, min(_CUDA_SHARE * size, free // 4))
    data = torch.ones(size // 4, device=device)
    best = float("inf")
    for _ in range(_TRIES + 1):
        start = time.perf_counter()
        data.sum()
        best = min(best, time.perf_counter() - start)
    return size / best


def _device_bandwidth(device: torch.device, size: int) -> float:
    """By the device's own clock: the host's would count what a launch takes."""
    data = torch.ones(size // 4, device=device)
    target = torch.empty_like(data)
    return max(2 * size / _device_s(lambda: target.copy_(data)), size / _device_s(data.sum))


def _device_s(launch: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_TRIES + 1):
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        launch()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1000)
    return best


def reset_peak(device: torch.device) -> None:
    """Start counting peak memory anew, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _CLEAR.write_text("5")  # Linux: VmHWM starts again at the resident size
    except OSError:
        return


def peak_bytes(device: torch.device) -> int:
    """Most memory since `reset_peak`: of the device on CUDA, else resident in this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        match = re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        match = None
    return int(match[1]) * 1024 if match else _max_resident()


def _max_resident() -> int:
    try:
        import resource
    except ImportError:  # not on every system
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


@dataclass(slots=True)
class Measured:
    """What the arms of a cell gave."""

    cell: Cell
    arms: dict[str, Arm]
    """By name, as `runs`."""
    runs: dict[str, list[Run]]
    """One a round."""
    order: list[str] = field(default_factory=list)
    """The arms as they ran."""


AnyArm = TypeVar("AnyArm", bound=Arm)
Work = tuple[Sequence[Ids], Sequence[SamplingParams]]
"""The prompts of a batch, and how each is sampled."""
OnRound = Callable[[Measured, int], None]
"""Called after a round with what is measured so far and the round's number, from 1."""
OnRun = Callable[[Arm, Run | None], None]
"""Called after each decoding; None: an arm has warmed up."""

_SLOW, _LONG_S = 3.0, 60.0
"""An arm that takes so many times as long as the first one, and so long, is announced."""


class Pace:
    """How far a benchmark is, and which arms take far longer than plain decoding.

    Args:
        total: decodings of all arms and cells, warming up counted.
        progress: called with (decodings done, in all).
    """

    def __init__(self, total: int, progress: Progress, on_note: Note) -> None:
        self._total, self._progress, self._note = total, progress, on_note
        self._done, self._plain_s, self._known = 0, 0.0, set[str]()
        progress(0, total)

    def saw(self, arm: Arm, run: Run | None, decodings: int) -> None:
        """Count a decoding, and announce an arm the first time that it turns out slow.

        Args:
            run: None: the arm has warmed up, which takes longer.
            decodings: of this arm in all cells.
        """
        self._done += 1
        self._progress(self._done, self._total)
        if run is None:
            return
        if arm.name == AR:
            self._plain_s = run.time_s
        elif arm.name not in self._known and self._plain_s:
            self._known.add(arm.name)
            factor, seconds = run.time_s / self._plain_s, run.time_s * decodings
            if factor >= _SLOW and seconds >= _LONG_S:
                self._note(
                    f"{arm.name} takes about {factor:.0f} times as long as {AR}: about "
                    f"{duration(seconds)} in all; fewer --rounds or --num-prompts take less"
                )


def measure(
    cell: Cell,
    arms: Sequence[Arm],
    batches: Sequence[Sequence[Ids]],
    sampling: SamplingParams,
    rounds: int,
    on_round: OnRound | None = None,
    on_run: OnRun | None = None,
) -> Measured:
    """Warm every arm up on the first batch, then measure the rounds.

    Request i of a cell is sampled with seed + i, in every arm and round.
    """
    work = _with_seeds(batches, sampling)
    measured = Measured(cell, {arm.name: arm for arm in arms}, {arm.name: [] for arm in arms})
    for arm in arms:
        arm.warm_up(*work[0])
        if on_run is not None:
            on_run(arm, None)
    for number in range(1, rounds + 1):
        found: dict[str, list[Run]] = {arm.name: [] for arm in arms}
        for arm in arms:
            arm.begin_round()
        for arm, run in alternate(arms, work, torch.device(cell.device)):
            measured.order.append(arm.name)
            found[arm.name].append(run)
            if on_run is not None:
                on_run(arm, run)
        for name, runs in found.items():
            measured.runs[name].append(add(runs))
        if on_round is not None:
            on_round(measured, number)
    return measured


def alternate(
    arms: Sequence[AnyArm], work: Iterable[Work], device: torch.device
) -> Iterator[tuple[AnyArm, Run]]:
    """All arms decode each batch, one after the other; yields each decoding as it ends."""
    for prompts, sampling in work:
        for arm in arms:
            reset_peak(device)
            run = arm.decode(prompts, sampling)
            yield arm, replace(run, peak_bytes=peak_bytes(device))


def _with_seeds(batches: Sequence[Sequence[Ids]], sampling: SamplingParams) -> list[Work]:
    seeds = count(sampling.seed)
    return [(batch, [replace(sampling, seed=next(seeds)) for _ in batch]) for batch in batches]
