"""Arms in turns (A B A B ...): warm-up, then in every round all arms decode each batch, one after
the other, so that a machine that is slow for a while is so for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import torch

from trtla.bench.arms import Arm, Run
from trtla.bench.opened import peak_bytes, reset_peak
from trtla.data.prompt_sets import Ids
from trtla.settings.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Cell:
    """The circumstances that arms of one table row group share."""

    device: str
    dtype: str
    threads: int
    batch_size: int
    prompt_len: int | None
    """None: the prompts' own lengths."""
    temperature: float
    category: str
    top_k: int = 0
    top_p: float = 1.0


@dataclass(slots=True)
class Measured:
    """What the arms of a cell gave."""

    cell: Cell
    runs: dict[str, list[Run]] = field(default_factory=dict)
    """Per arm, one a round."""
    order: list[str] = field(default_factory=list)
    """The arms as they ran."""
    settings: dict[str, str | None] = field(default_factory=dict)
    own: dict[str, bool] = field(default_factory=dict)


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
    """Warm every arm up on the first batch, then let them take turns.

    Request i of a cell is sampled with seed + i, in every arm and round.
    """
    work = _with_seeds(batches, sampling)
    measured = Measured(cell)
    for arm in arms:
        arm.warm_up(*work[0])
        measured.runs[arm.name] = []
        measured.settings[arm.name], measured.own[arm.name] = arm.setting, arm.own
    for number in range(1, rounds + 1):
        found: dict[str, list[Run]] = {arm.name: [] for arm in arms}
        for prompts, seeds in work:
            for arm in arms:
                measured.order.append(arm.name)
                found[arm.name].append(_decode(arm, prompts, seeds, torch.device(cell.device)))
        for name, runs in found.items():
            measured.runs[name].append(add(runs))
        if on_round is not None:
            on_round(measured, number)
    return measured


_Work = tuple[Sequence[Ids], list[SamplingParams]]


def _with_seeds(batches: Sequence[Sequence[Ids]], sampling: SamplingParams) -> list[_Work]:
    work: list[_Work] = []
    at = 0
    for batch in batches:
        work.append(
            (batch, [replace(sampling, seed=sampling.seed + at + i) for i in range(len(batch))])
        )
        at += len(batch)
    return work


def _decode(
    arm: Arm, prompts: Sequence[Ids], sampling: list[SamplingParams], device: torch.device
) -> Run:
    reset_peak(device)
    return replace(arm.decode(prompts, sampling), peak_bytes=peak_bytes(device))


def add(runs: Sequence[Run]) -> Run:
    """Several batches as one run; what one of them does not tell, the sum does not."""
    fed = [run.fed for run in runs if run.fed is not None]
    forward_s = [run.forward_s for run in runs if run.forward_s is not None]
    accepted = [run.accepted_lengths for run in runs if run.accepted_lengths is not None]
    return Run(
        tuple(ids for run in runs for ids in run.outputs),
        sum(run.wall_s for run in runs),
        tuple(s for run in runs for s in run.first_s),
        tuple(s for run in runs for s in run.last_s),
        sum(run.steps for run in runs),
        sum(fed) if len(fed) == len(runs) else None,
        sum(run.forwards for run in runs),
        sum(forward_s) if len(forward_s) == len(runs) else None,
        max(run.peak_bytes for run in runs),
        runs[0].weight_bytes,
        tuple(chain.from_iterable(accepted)) if len(accepted) == len(runs) else None,
        tuple(reason for run in runs for reason in run.reasons),
    )
