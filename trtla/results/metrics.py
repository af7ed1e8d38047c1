"""The record of decoded texts and their time: counters that add up, and figures computed from them.

The names of the figures are those of docs/algorithm.md; run, summarize, bench and its ablation
share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

from trtla.runtime.request import FinishReason
from trtla.runtime.stats import (
    DraftTotals,
    HeadTotals,
    RequestCounters,
    RequestStats,
    accepted_per_pos,
    tokens_per_step,
)

if TYPE_CHECKING:
    from trtla.llm.answer import Completion

SHORT_TEXT = 4
"""Texts with fewer tokens on average say nothing about decoding."""
MetricsT = TypeVar("MetricsT", bound="Metrics")


@dataclass(slots=True, kw_only=True)
class Metrics(RequestCounters):
    """Finished outputs, their counters and their time; None: the executor does not report it.

    `fed` counts the tokens that were fed in the steps, without prompts.
    """

    outputs: tuple[tuple[int, ...], ...]
    """Token ids of each request."""
    reasons: tuple[FinishReason | None, ...] = ()
    """The finish reason of each output; empty: they are not reported."""
    time_s: float
    """Seconds with prefills."""
    accepted_lengths: tuple[Sequence[int], ...] | None = None
    """Accepted drafts of each step, per request."""
    heads: HeadTotals | None = None
    """The work of trained heads; None: there are none."""

    @classmethod
    def of(
        cls: type[MetricsT], completions: Sequence[Completion], time_s: float, **more: Any
    ) -> MetricsT:
        """Add the counters of completions up."""
        stats = [completion.stats for completion in completions]
        names = (field.name for field in fields(RequestCounters) if field.name != "fed")
        counted = {name: total(getattr(each, name) for each in stats) for name in names}
        return cls(
            outputs=tuple(completion.output_ids for completion in completions),
            reasons=tuple(completion.finish_reason for completion in completions),
            time_s=time_s,
            **counted,
            fed=total(map(fed_in_steps, completions)),
            accepted_lengths=total(map(_lengths, stats)),
            **more,
        )

    @property
    def prompts(self) -> int:
        return len(self.outputs)

    @property
    def output_tokens(self) -> int:
        return sum(map(len, self.outputs))

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.time_s if self.time_s else 0.0

    @property
    def tokens_per_step(self) -> float:
        """S, the step compression."""
        decoded = sum(len(output) - 1 for output in self.outputs if output)
        return tokens_per_step(decoded, self.steps)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; None: nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def fed_per_step(self) -> float | None:
        """Tokens that a request feeds in a step."""
        return self.fed / self.steps if self.fed is not None and self.steps else None

    @property
    def accepted_per_pos(self) -> list[float] | None:
        """Shares of all steps, item i of those that accepted a draft at depth i + 1."""
        return None if self.accepted_lengths is None else accepted_per_pos(self.accepted_lengths)

    @property
    def head_forwards(self) -> int | None:
        """Forwards of trained heads; None: there are none."""
        return None if self.heads is None else self.heads.forwards

    @property
    def head_s(self) -> float | None:
        """Seconds that trained heads took to draft."""
        return None if self.heads is None else self.heads.seconds

    @property
    def head_share(self) -> float | None:
        """The share of the whole time that trained heads took."""
        return None if self.heads is None or not self.time_s else self.heads.seconds / self.time_s

    @property
    def distinct_4grams(self) -> float | None:
        return distinct_4grams(self.outputs)


def too_short(texts: int | None, tokens: int | None) -> str | None:
    """Describe texts that are too short to say anything, in a sentence; None: they are not."""
    if not texts or tokens is None or tokens >= SHORT_TEXT * texts:
        return None
    plural = "s" * (tokens != texts)
    return f"texts of {tokens / texts:.2g} token{plural} say nothing about decoding"


def _lengths(stats: RequestStats) -> tuple[Sequence[int]] | None:
    return None if stats.accepted_lengths is None else (stats.accepted_lengths,)


def fed_in_steps(done: Completion) -> int | None:
    """Return the number of tokens that a request fed in its steps, without its prompt."""
    stats = done.stats
    return None if stats.fed is None else stats.fed + stats.reused_tokens - len(done.input_ids)


def add(metrics: Iterable[MetricsT]) -> MetricsT:
    """Add several batches up; a figure that one of them does not report is None."""
    summed: MetricsT = total(metrics)
    return summed


def total(values: Iterable[Any]) -> Any:
    """Add up numbers, tuples, records, or dictionaries of them; None if one of them is None."""
    return reduce(_joined, values)


def _joined(first: Any, second: Any) -> Any:
    """Add two values; a record's field may declare another way to join it."""
    if first is None or second is None:
        return None
    if isinstance(first, dict):
        return {key: total(counts[key] for counts in (first, second) if key in counts)
                for key in first | second}  # fmt: skip
    if not isinstance(first, Metrics | DraftTotals):
        return first + second
    values = {}
    for field in fields(first):
        pair = getattr(first, field.name), getattr(second, field.name)
        join = None if None in pair else field.metadata.get("join")
        values[field.name] = _joined(*pair) if join is None else join(*pair)
    return type(first)(**values)


def distinct_4grams(outputs: Iterable[Sequence[int]]) -> float | None:
    """Return the share of distinct 4-grams of each text; None for texts below 4 tokens.

    Texts that loop have few of them, and flatter any drafter.
    """
    grams = [[tuple(ids[i : i + 4]) for i in range(len(ids) - 3)] for ids in outputs]
    count = sum(map(len, grams))
    return sum(len(set(text)) for text in grams) / count if count else None


def first_difference(ours: Sequence[object], theirs: Sequence[object]) -> int | None:
    """Return the first index at which two outputs differ, maybe the shorter's end; None: equal."""
    shorter = min(len(ours), len(theirs))
    end = None if len(ours) == len(theirs) else shorter
    return next((i for i in range(shorter) if ours[i] != theirs[i]), end)


def agreement(ours: Metrics, reference: Metrics) -> dict[str, int | None]:
    """Count the outputs that equal the reference's, and find the earliest index of a difference.

    Ids and finish reasons are compared, on which alone the text depends. If only the reason
    differs, the index is the output's length.
    """
    at: list[int | None] = []
    for output, other, reason, other_reason in zip_longest(
        ours.outputs, reference.outputs, ours.reasons, reference.reasons
    ):
        first = first_difference(output, other)
        only_reason = (
            first is None and None not in (reason, other_reason) and reason != other_reason
        )
        at.append(len(output) if only_reason else first)
    different = [index for index in at if index is not None]
    return {
        "texts": len(at),
        "equal_texts": len(at) - len(different),
        "first_divergence": min(different, default=None),
    }
