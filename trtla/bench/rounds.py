"""Rounds of arms (A B A B ...): after the warm-up all arms decode each batch one after the other.

So a machine that is slow for a while is so for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeVar

import torch

from trtla.bench.arms import Arm, Run
from trtla.bench.opened import peak_bytes, reset_peak
from trtla.data.prompt_sets import Ids
from trtla.results.bench_documents import Cell
from trtla.results.metrics import add
from trtla.settings.sampling import SamplingParams


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


def measure(
    cell: Cell,
    arms: Sequence[Arm],
    batches: Sequence[Sequence[Ids]],
    sampling: SamplingParams,
    rounds: int,
    on_round: OnRound | None = None,
) -> Measured:
    """Warm every arm up on the first batch, then measure the rounds.

    Request i of a cell is sampled with seed + i, in every arm and round.
    """
    work = _with_seeds(batches, sampling)
    measured = Measured(cell, {arm.name: arm for arm in arms}, {arm.name: [] for arm in arms})
    for arm in arms:
        arm.warm_up(*work[0])
    for number in range(1, rounds + 1):
        found: dict[str, list[Run]] = {arm.name: [] for arm in arms}
        for arm, run in alternate(arms, work, torch.device(cell.device)):
            measured.order.append(arm.name)
            found[arm.name].append(run)
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
