"""Beam search with Wu et al.'s length penalty (arXiv 1609.08144): which hypotheses live on.

Plain Python: log probabilities come from a `BeamTarget`; the one of `beam_cache` runs a model.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from trtla.arguments import real, whole
from trtla.runtime.executor import Request

_LARGEST_PENALTY = 20  # far above any useful one; keeps penalties of long texts finite

LogProbs = Sequence[float]
"""Of every token of the vocabulary."""


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """How beams are expanded and compared.

    Raises:
        UsageError: a value is out of its range.
    """

    num_beams: int = 4
    """Hypotheses that are kept."""
    expansions: int = 3
    """Most probable tokens that every hypothesis is continued with."""
    length_penalty: float = 1.2
    """Exponent alpha; 0 compares plain log probabilities, which favours short texts."""
    length_penalty_offset: float = 5.0
    """Wu et al.'s constant 5; no minimum length."""

    def __post_init__(self) -> None:
        penalties = f"from 0 to {_LARGEST_PENALTY}"
        whole("num_beams", self.num_beams, "1 or more", 1)
        whole("expansions", self.expansions, "1 or more", 1)
        real("length_penalty", self.length_penalty, penalties, 0.0, _LARGEST_PENALTY)
        real("length_penalty_offset", self.length_penalty_offset, "0 or more", 0.0)

    def penalty(self, length: int) -> float:
        """What the log probability of `length` new tokens is divided by."""
        offset = self.length_penalty_offset
        return float(((offset + length) / (offset + 1.0)) ** self.length_penalty)

    def score(self, beam: Hypothesis) -> float:
        """What hypotheses are ordered by, the largest first."""
        return beam.log_prob / self.penalty(len(beam.tokens))


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """New tokens, and the sum of their log probabilities."""

    tokens: tuple[int, ...]
    log_prob: float
    finished: bool
    """It ends with an end token."""
    parent: int = 0
    """The unfinished hypothesis of the step before that it continues, counted among those."""


class BeamTarget(Protocol):
    """Tells what follows the prompt, and what follows hypotheses."""

    def start(self) -> LogProbs:
        """After the prompt."""

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Sequence[LogProbs]:
        """After these continuations.

        Args:
            parents: for each, its place in the call before (in the first call always 0).
            tokens: the token that continues it.
        """


@runtime_checkable
class BeamSearcher(Protocol):
    """An executor that searches with beams."""

    def beam_search(self, request: Request, settings: BeamSettings) -> list[Hypothesis]:
        """The best hypotheses, the best first."""


def beam_search(
    target: BeamTarget, settings: BeamSettings, max_output_len: int, end_ids: frozenset[int]
) -> list[Hypothesis]:
    """The best hypotheses, the best first; an end token is part of its text.

    Equal scores are ordered by their tokens, so that the result is the same everywhere.
    """
    seeds = _continued(Hypothesis((), 0.0, False), 0, target.start(), settings.num_beams, end_ids)
    beams = _best(seeds, settings)
    for _ in range(1, max_output_len):
        live = [beam for beam in beams if not beam.finished]
        if not live:
            break
        rows = target.follow([b.parent for b in live], [b.tokens[-1] for b in live])
        grown = [beam for beam in beams if beam.finished]
        for place, (beam, row) in enumerate(zip(live, rows, strict=True)):
            grown += _continued(beam, place, row, settings.expansions, end_ids)
        beams = _best(grown, settings)
    return beams


def _continued(
    beam: Hypothesis, place: int, row: LogProbs, count: int, end_ids: frozenset[int]
) -> list[Hypothesis]:
    """A hypothesis with each of its most probable next tokens that can follow at all."""
    likely = heapq.nsmallest(count, range(len(row)), key=lambda token: (-row[token], token))
    return [
        Hypothesis((*beam.tokens, token), beam.log_prob + row[token], token in end_ids, place)
        for token in likely
        if row[token] > -math.inf
    ]


def _best(found: Sequence[Hypothesis], settings: BeamSettings) -> list[Hypothesis]:
    """The best of them, each text once."""

    def order(beam: Hypothesis) -> tuple[float, tuple[int, ...]]:
        return -settings.score(beam), beam.tokens

    distinct = {beam.tokens: beam for beam in found}
    return sorted(distinct.values(), key=order)[: settings.num_beams]
