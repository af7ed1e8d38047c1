"""One record of what decoding gave and took: counters that add up, and the figures made of them.

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
    RequestCounters,
    RequestStats,
    accepted_per_pos,
    tokens_per_step,
)

if TYPE_CHECKING:
    from trtla.llm.answer import Completion

SHORT_TEXT = 4
"""Texts of fewer tokens on average say nothing about decoding."""
MetricsT = TypeVar("MetricsT", bound="Metrics")


@dataclass(slots=True, kw_only=True)
class Metrics(RequestCounters):
    """Finished outputs, their counters and their time; None: the executor does not report it.

    `fed` are the tokens that were fed in the steps, without prompts.
    """

    outputs: tuple[tuple[int, ...], ...]
    """Token ids of each request."""
    reasons: tuple[FinishReason | None, ...] = ()
    """Why each output ended; empty where that is not reported."""
    time_s: float
    """Prefills included."""
    accepted_lengths: tuple[Sequence[int], ...] | None = None
    """Accepted drafts of each step, per request."""

    @classmethod
    def of(
        cls: type[MetricsT], completions: Sequence[Completion], time_s: float, **more: Any
    ) -> MetricsT:
        """Add the counters of completions up."""
        stats = [one.stats for one in completions]
        names = (one.name for one in fields(RequestCounters) if one.name != "fed")
        counted = {name: total(getattr(one, name) for one in stats) for name in names}
        return cls(
            outputs=tuple(one.output_ids for one in completions),
            reasons=tuple(one.finish_reason for one in completions),
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
        """Accepted over drafted tokens; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def fed_per_step(self) -> float | None:
        """Tokens that a request feeds in a step."""
        return self.fed / self.steps if self.fed is not None and self.steps else None

    @property
    def accepted_per_pos(self) -> list[float] | None:
        """Item i: in how many of all steps a draft was accepted at depth i + 1."""
        return None if self.accepted_lengths is None else accepted_per_pos(self.accepted_lengths)

    @property
    def distinct_4grams(self) -> float | None:
        return distinct_4grams(self.outputs)


def too_short(texts: int | None, tokens: int | None) -> str | None:
    """What texts of next to no tokens are worth, in a sentence; None where they are long enough."""
    if not texts or tokens is None or tokens >= SHORT_TEXT * texts:
        return None
    plural = "s" * (tokens != texts)
    return f"texts of {tokens / texts:.2g} token{plural} say nothing about decoding"


def _lengths(stats: RequestStats) -> tuple[Sequence[int]] | None:
    return None if stats.accepted_lengths is None else (stats.accepted_lengths,)


def fed_in_steps(done: Completion) -> int | None:
    """The tokens that a request fed in its steps, without its prompt."""
    stats = done.stats
    return None if stats.fed is None else stats.fed + stats.reused_tokens - len(done.input_ids)


def add(metrics: Iterable[MetricsT]) -> MetricsT:
    """Several batches as one record; what one of them does not report, the sum does not."""
    summed: MetricsT = total(metrics)
    return summed


def total(values: Iterable[Any]) -> Any:
    """The sum of numbers, tuples, records, or dictionaries of them; None where one is None."""
    return reduce(_joined, values)


def _joined(first: Any, second: Any) -> Any:
    """The sum of two values; a record's fields may say how they are joined."""
    if first is None or second is None:
        return None
    if isinstance(first, dict):
        return {key: total(one[key] for one in (first, second) if key in one)
                for key in first | second}  # fmt: skip
    if not isinstance(first, Metrics | DraftTotals):
        return first + second
    values = {}
    for one in fields(first):
        pair = getattr(first, one.name), getattr(second, one.name)
        join = None if None in pair else one.metadata.get("join")
        values[one.name] = _joined(*pair) if join is None else join(*pair)
    return type(first)(**values)


def distinct_4grams(outputs: Iterable[Sequence[int]]) -> float | None:
    """Share of 4-grams that differ from all others of their text; None for texts below 4 tokens.

    Text that loops has few of them, and makes any lookahead look good.
    """
    grams = [[tuple(ids[i : i + 4]) for i in range(len(ids) - 3)] for ids in outputs]
    count = sum(map(len, grams))
    return sum(len(set(text)) for text in grams) / count if count else None


def first_difference(ours: Sequence[object], theirs: Sequence[object]) -> int | None:
    """The first index at which two outputs differ, the shorter one's end included; None: equal."""
    shorter = min(len(ours), len(theirs))
    end = None if len(ours) == len(theirs) else shorter
    return next((i for i in range(shorter) if ours[i] != theirs[i]), end)


def agreement(ours: Metrics, reference: Metrics) -> dict[str, int | None]:
    """How many outputs equal the reference's, and the earliest index where one does not.

    Ids and finish reasons are compared, on which alone the text depends. Where only the reason
    differs, that is at the output's length.
    """
    at: list[int | None] = []
    for own, other, reason, others in zip_longest(
        ours.outputs, reference.outputs, ours.reasons, reference.reasons
    ):
        first = first_difference(own, other)
        only_reason = first is None and None not in (reason, others) and reason != others
        at.append(len(own) if only_reason else first)
    different = [index for index in at if index is not None]
    return {
        "texts": len(at),
        "equal_texts": len(at) - len(different),
        "first_divergence": min(different, default=None),
    }
