"""Beam search with Wu et al.'s length penalty (arXiv 1609.08144), on a model with a K/V cache."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import islice
from types import TracebackType
from typing import Protocol

from trtla.errors import TrtlaError, named
from trtla.runtime.draft import NO_DRAFT, NoDrafter
from trtla.runtime.loop.scores import log_prob_rows, prompt_logits
from trtla.runtime.models.forward import StepForward
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.request import Hypothesis, Request
from trtla.runtime.sampling.logits import Logits
from trtla.runtime.sequence import Feed
from trtla.runtime.sequence import Sequence as Beam
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.settings.sampling import BeamSettings

LogProbs = Sequence[float]
"""The log probability of every token of the vocabulary."""


class BeamTarget(Protocol):
    """The log probabilities of tokens after the prompt, and after hypotheses."""

    def start(self) -> LogProbs:
        """Return those after the prompt."""

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Sequence[LogProbs]:
        """Return those after these continuations.

        Args:
            parents: for each, its index in the call before (in the first call always 0).
            tokens: the token that continues it.
        """


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
        for index, (beam, row) in enumerate(zip(live, rows, strict=True)):
            grown += _continued(beam, index, row, settings.expansions, end_ids)
        beams = _best(grown, settings)
    return beams


def _continued(
    beam: Hypothesis, index: int, row: LogProbs, count: int, end_ids: frozenset[int]
) -> list[Hypothesis]:
    likely = heapq.nsmallest(count, range(len(row)), key=lambda token: (-row[token], token))
    return [
        Hypothesis((*beam.tokens, token), beam.log_prob + row[token], token in end_ids, index)
        for token in likely
        if row[token] > -math.inf
    ]


def _best(hypotheses: Sequence[Hypothesis], settings: BeamSettings) -> list[Hypothesis]:
    def order(beam: Hypothesis) -> tuple[float, tuple[int, ...]]:
        return -settings.score(beam.log_prob, len(beam.tokens)), beam.tokens

    distinct = {beam.tokens: beam for beam in hypotheses}
    return sorted(distinct.values(), key=order)[: settings.num_beams]


class CachedBeams:
    """Live hypotheses of one request's prompt; a context manager that releases their blocks."""

    def __init__(
        self,
        forward: StepForward,
        cache: KVCache,
        request: Request,
        num_beams: int,
        max_num_tokens: int,
    ) -> None:
        self._forward, self._cache, self._chunk = forward, cache, max_num_tokens
        self._request = request
        self._free: list[tuple[int, ...]] = []
        self._live: list[Beam] = []
        length = len(request.input_ids) + request.sampling.max_output_len
        for _ in range(num_beams):
            blocks = cache.pool.allocate(length)
            if blocks is None:
                self.close()
                raise TrtlaError(
                    f"the K/V cache has no room for {num_beams} beams of {length} tokens",
                    f"use fewer beams or a smaller {named('max_output_len')}, or rebuild with a "
                    "larger "
                    "--max-batch-size",
                )
            self._free.append(blocks)

    def __enter__(self) -> CachedBeams:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for blocks in (*self._free, *(beam.blocks for beam in self._live)):
            self._cache.pool.release(blocks)
        self._free, self._live = [], []

    def start(self) -> list[float]:
        beam = self._beam(self._free.pop(), 0)
        self._live = [beam]
        return self._log_probs(prompt_logits(self._forward, beam, self._chunk), 0)[0]

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> list[list[float]]:
        """Return log probabilities after these continuations of the last call's hypotheses."""
        self._rearrange(parents)
        for beam, token in zip(self._live, tokens, strict=True):
            beam.output_ids = [token]
        logits = self._forward([Feed.step(beam, NO_DRAFT) for beam in self._live]).logits
        for beam in self._live:
            beam.num_cached += 1
        return self._log_probs(logits, self._live[0].num_cached - len(self._request.input_ids))

    def _log_probs(self, logits: Logits, position: int) -> list[list[float]]:
        positions = [position] * len(logits)
        rows: list[list[float]] = log_prob_rows(logits, self._request.label, positions).tolist()
        return rows

    def _beam(self, blocks: tuple[int, ...], num_cached: int) -> Beam:
        return Beam(self._request, AUTOREGRESSIVE, NoDrafter(), [], num_cached, blocks)

    def _rearrange(self, parents: Sequence[int]) -> None:
        before = self._live
        self._free += [b.blocks for index, b in enumerate(before) if index not in parents]
        taken: set[int] = set()
        self._live = []
        for index in parents:
            parent = before[index]
            blocks = parent.blocks if index not in taken else self._free.pop()
            if index in taken:
                orders = (self._cache.table(owned).order for owned in (parent.blocks, blocks))
                self._cache.move_later(islice(zip(*orders, strict=True), parent.num_cached))
            taken.add(index)
            self._live.append(self._beam(blocks, parent.num_cached))
