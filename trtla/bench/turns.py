"""The measuring engine: arms that take turns on the same work, and the machine they run on.

All arms decode a batch before the next batch begins, so that a machine that slows down slows all.
bench, its ablation, tune and summarize differ in their arms, their work and what they make of the
runs.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

from trtla.bench.arms import AR, Arm, ArmRun, Note
from trtla.console import Progress, duration
from trtla.data.prompt_sets import Ids
from trtla.results.bench_documents import BenchRow, Cell
from trtla.results.metrics import add, agreement
from trtla.runtime.device import resolve_device
from trtla.settings.sampling import SamplingParams

AnyArm = TypeVar("AnyArm", bound=Arm)
Work = tuple[Sequence[Ids], Sequence[SamplingParams]]
"""The prompts of a batch, and how each is sampled."""


def alternate(
    arms: Sequence[AnyArm], work: Iterable[Work], device: torch.device
) -> Iterator[tuple[AnyArm, ArmRun]]:
    """All arms decode each batch, one after the other; yields each decoding as it ends."""
    for prompts, sampling in work:
        for arm in arms:
            reset_peak(device)
            run = arm.decode(prompts, sampling)
            yield arm, replace(run, peak_bytes=peak_bytes(device))


@dataclass(slots=True)
class CellRuns:
    """What the arms of a cell gave."""

    cell: Cell
    arms: dict[str, Arm]
    """By name, as `runs`."""
    runs: dict[str, list[ArmRun]]
    """One a round."""
    order: list[str] = field(default_factory=list)
    """The arms as they ran."""


OnRound = Callable[[CellRuns, int], None]
"""Called after a round with what is measured so far and the round's number, from 1."""
OnRun = Callable[[Arm, ArmRun | None], None]
"""Called after each decoding; None: an arm has warmed up."""


def measure(
    cell: Cell,
    arms: Sequence[Arm],
    batches: Sequence[Sequence[Ids]],
    sampling: SamplingParams,
    rounds: int,
    on_round: OnRound = lambda *_: None,
    on_run: OnRun = lambda *_: None,
) -> CellRuns:
    """Warm every arm up on the first batch, then measure the rounds.

    Request i of a cell is sampled with seed + i, in every arm and round.
    """
    seeds = count(sampling.seed)
    work = [(batch, [replace(sampling, seed=next(seeds)) for _ in batch]) for batch in batches]
    measured = CellRuns(cell, {arm.name: arm for arm in arms}, {arm.name: [] for arm in arms})
    for arm in arms:
        arm.warm_up(*work[0])
        on_run(arm, None)
    for number in range(1, rounds + 1):
        found: dict[str, list[ArmRun]] = {arm.name: [] for arm in arms}
        for arm in arms:
            arm.begin_round()
        for arm, run in alternate(arms, work, torch.device(cell.device)):
            measured.order.append(arm.name)
            found[arm.name].append(run)
            on_run(arm, run)
        for name, runs in found.items():
            measured.runs[name].append(add(runs))
        on_round(measured, number)
    return measured


_MEDIANS = ("ttft_ms", "ms_per_token", "host_ms_per_step")


def rows(measured: CellRuns, hardware: Hardware) -> list[BenchRow]:
    """One row an arm. A figure with a spread is the median over rounds; its `_min` and `_max` stand
    beside it. Ratios to `ar` are taken round by round, so that a slower machine slows both."""
    return [_row(measured, name, hardware) for name in measured.runs]


def _row(measured: CellRuns, name: str, hardware: Hardware) -> BenchRow:
    """Counters and what follows from them are those of the first round."""
    runs, plain, arm = measured.runs[name], measured.runs[AR], measured.arms[name]
    ratios = [a.tokens_per_s / b.tokens_per_s for a, b in zip(runs, plain, strict=True)]
    step, gb_per_s = runs[0].tokens_per_step, _median(runs, hardware.gb_per_s)
    equal = agreement(runs[0], plain[0])
    if not arm.own and measured.cell.temperature > 0.0:  # peers draw other random numbers
        equal |= {"equal_texts": None, "first_divergence": None}
    return BenchRow.fill(
        measured.cell,
        arm,
        runs[0],
        arm=name,
        rounds=len(runs),
        **_spread("tokens_per_s", [run.tokens_per_s for run in runs]),
        **{figure: _median(runs, attrgetter(figure)) for figure in _MEDIANS},
        tokens_per_step=step,
        **_spread("speedup_vs_ar", ratios),
        efficiency=median(ratios) / step,
        read_gb_per_s=gb_per_s,
        share_of_bandwidth=None if gb_per_s is None else gb_per_s * 1e9 / hardware.read_bandwidth,
        peak_memory_mb=max(run.peak_bytes for run in runs) / 1e6,
        **equal,
    )


def _median(runs: Sequence[ArmRun], figure: Callable[[ArmRun], float | None]) -> float | None:
    found = [value for value in map(figure, runs) if value is not None]
    return median(found) if found else None


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: median(values), f"{name}_min": min(values), f"{name}_max": max(values)}


_SLOW, _LONG_S = 3.0, 60.0
"""An arm that takes so many times as long as the first one, and so long, is announced."""


class Watch:
    """How far a benchmark is, and which arms take far longer than plain decoding.

    Args:
        decodings: of each arm in all cells, warming up counted.
    """

    def __init__(self, decodings: Mapping[str, int], progress: Progress, on_note: Note) -> None:
        self._decodings, self._progress, self._note = decodings, progress, on_note
        self._total = sum(decodings.values())
        self._done, self._plain_s, self._known = 0, 0.0, set[str]()
        progress(0, self._total)

    def saw(self, arm: Arm, run: ArmRun | None) -> None:
        """Count a decoding, and announce an arm the first time that it turns out slow."""
        self._done += 1
        self._progress(self._done, self._total)
        if run is None:
            return
        if arm.name == AR:
            self._plain_s = run.time_s
        elif arm.name not in self._known and self._plain_s:
            self._known.add(arm.name)
            factor = run.time_s / self._plain_s
            seconds = run.time_s * self._decodings[arm.name]
            if factor >= _SLOW and seconds >= _LONG_S:
                self._note(
                    f"{arm.name} takes about {factor:.0f} times as long as {AR}: about "
                    f"{duration(seconds)} in all; fewer --rounds or --num-prompts take less"
                )


_BYTES = 2**29
_TRIES = 5
_CUDA_SHARE = 8  # times the bytes of a CPU's sum, which a GPU is done with at once
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True)
class Hardware:
    """What forwards are held against."""

    weight_bytes: int
    """Read by one forward of an arm that does not report its own."""
    read_bandwidth: float
    """Bytes a second."""

    def gb_per_s(self, run: ArmRun) -> float | None:
        if not run.forward_s:
            return None
        return (run.weight_bytes or self.weight_bytes) * run.forwards / run.forward_s / 1e9


def read_bandwidth(device: torch.device, size: int = _BYTES) -> float:
    """Bytes a second, the best of some tries: a sum, on CUDA also a copy (read + write)."""
    if device.type == "cuda":
        return _device_bandwidth(device, _CUDA_SHARE * size)
    data = torch.ones(size // 4, device=device)
    best = float("inf")
    for _ in range(_TRIES + 1):
        start = time.perf_counter()
        data.sum()
        best = min(best, time.perf_counter() - start)
    return size / best


def _device_bandwidth(device: torch.device, size: int) -> float:
    """By the device's own clock: the host's would count what a launch takes."""
    size = min(size, torch.cuda.mem_get_info(device)[0] // 4)
    with torch.cuda.device(device):  # events are of the current one
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


def torch_device(name: str) -> torch.device:
    """Auto, cpu, cuda or cuda:N."""
    return torch.device(str(resolve_device(name)))


def reset_peak(device: torch.device) -> None:
    """Start counting peak memory again, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        _CLEAR.write_text("5")  # Linux: VmHWM starts again at the resident size


def peak_bytes(device: torch.device) -> int:
    """Most memory since `reset_peak`: of the device on CUDA, else resident in this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with suppress(OSError):
        if match := re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE):
            return int(match[1]) * 1024
    try:
        import resource
    except ImportError:  # not on every system
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit
