"""Counters of requests and executors, and acceptance by position in the draft."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from operator import add, sub
from typing import Any, TypeVar

from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig


def tokens_per_step(decoded: int, steps: int) -> float:
    """Return S, the step compression: tokens behind the first of each text over steps; 1.0 without
    steps."""
    return decoded / steps if steps else 1.0


def accepted_lengths(
    step_lengths: Sequence[int], steps: int, accepted: int
) -> tuple[int, ...] | None:
    """Return the accepted drafts of each step after the prefill; None if they are unknown.

    A step commits one token of the target's own after the accepted ones. The last step may end
    within its draft, without that token: it has the rest of `accepted`.

    Args:
        step_lengths: committed tokens of each output, the prefill first.
        steps: the number of these steps; an executor may report several as one.
        accepted: their sum.
    """
    lengths = step_lengths[1:]
    if not lengths:
        return () if steps == accepted == 0 else None
    before = [length - 1 for length in lengths[:-1]]
    last = accepted - sum(before)
    known = len(lengths) == steps and last in (lengths[-1] - 1, lengths[-1])
    return (*before, last) if known else None


def accepted_per_pos(requests: Iterable[Sequence[int] | None]) -> list[float] | None:
    """Return, for each depth from 1 on, the share of all steps that accepted a token there.

    It never rises, and adds up to accepted / steps.
    """
    steps, counts = 0, list[int]()
    for lengths in requests:
        if lengths is None:
            return None
        steps += len(lengths)
        for length in lengths:
            counts += [0] * (length - len(counts))
            for depth in range(length):
                counts[depth] += 1
    return [count / steps for count in counts]


@dataclass(frozen=True, slots=True)
class GammaChoice:
    """A policy's choice for one step."""

    gamma: int
    raw: int
    """The choice before the moving average."""
    entropy: float | None = None
    """H / ln(vocabulary), in [0, 1] except for rounding; None if the policy ignores it."""


@dataclass(frozen=True, slots=True)
class DraftStep:
    """One step of one request, for reports."""

    choice: GammaChoice
    drafted: int
    """At most the gamma: fewer if the output ends before."""
    accepted: int


@dataclass(slots=True)
class DraftTotals:
    """Sums over steps, of one request or of many."""

    forwards: int = 0
    """Forwards of draft models with logits: those that only catch up with a text are excluded."""
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    _gammas: int = 0
    _entropies: float = 0.0
    _with_entropy: int = 0

    def add(self, step: DraftStep) -> None:
        self.steps += 1
        self.drafted += step.drafted
        self.accepted += step.accepted
        self._gammas += step.choice.gamma
        if step.choice.entropy is not None:
            self._entropies += step.choice.entropy
            self._with_entropy += 1

    def since(self, before: DraftTotals) -> DraftTotals:
        """Return the difference to an earlier copy of these sums."""
        return _by_field(sub, self, before)

    @property
    def mean_gamma(self) -> float | None:
        """Mean gamma of the policy; None before the first step."""
        return self._gammas / self.steps if self.steps else None

    @property
    def mean_entropy(self) -> float | None:
        """Mean H / ln V; None if no policy used it."""
        return self._entropies / self._with_entropy if self._with_entropy else None


@dataclass(slots=True)
class HeadTotals:
    """The work of a trained head, summed over requests."""

    forwards: int = 0
    pairs: int = 0
    """States and tokens that it has read."""
    seconds: float = 0.0
    drafts: int = 0
    """Steps of requests that it gave rows."""
    hits: int = 0
    """Those whose most likely token came next."""

    def since(self, before: HeadTotals) -> HeadTotals:
        """Return the difference to an earlier copy of these sums."""
        return _by_field(sub, self, before)

    def __add__(self, other: HeadTotals) -> HeadTotals:
        return _by_field(add, self, other)


_Totals = TypeVar("_Totals", DraftTotals, HeadTotals)


def _by_field(combine: Callable[[Any, Any], Any], one: _Totals, other: _Totals) -> _Totals:
    """Combine two sets of sums, field by field."""
    names = [part.name for part in fields(one)]
    return type(one)(*(combine(getattr(one, name), getattr(other, name)) for name in names))


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """The work of one source of a candidate tree, summed over steps.

    Item i of the tuples is for depth i + 1; depths without any are omitted at the end.
    """

    proposed: tuple[int, ...] = ()
    """Nodes that the tree considered."""
    fed: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    """Accepted nodes among the fed ones."""
    expected: float = 0.0
    """Sum of the chances of the fed nodes: `sum(accepted)` if the chances are right."""

    @property
    def calibration(self) -> float | None:
        accepted = sum(self.accepted)
        return self.expected / accepted if accepted else None

    def __add__(self, other: SourceCounts) -> SourceCounts:
        names = ("proposed", "fed", "accepted")
        sums = {name: _sum_by_depth(getattr(self, name), getattr(other, name)) for name in names}
        return SourceCounts(**sums, expected=self.expected + other.expected)


def _sum_by_depth(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(first, second, fillvalue=0))


@dataclass(frozen=True, slots=True)
class Counter:
    """The report of a counter of requests."""

    help: str
    prometheus: str
    """Its name there, without `trtla_` and `_total`; empty: it is omitted."""
    documents: tuple[str, ...] = ("run", "api")
    """The documents that have it: those of `trtla run`, and answers with `metrics`."""
    everywhere: bool = True
    """True if all executors count it; for executors that do not, Prometheus has none."""


def counter(about: str, prometheus: str, **more: Any) -> Any:
    """Return a dataclass field that counts from 0; arguments as in `Counter`."""
    return field(default=0, metadata={"counter": Counter(about, prometheus, **more)})


@dataclass(slots=True, kw_only=True)
class RequestCounters:
    """Counters of one request, or sums over many; definitions in docs/algorithm.md.

    A new counter is a field here and the code that counts: documents, tables and Prometheus include
    it. TensorRT-LLM does not report what it feeds: `fed` and `drafted` are None there.
    """

    steps: int = counter("Steps of finished texts.", "spec_decode_num_drafts")
    """Forwards behind the prefill."""
    drafted: int | None = counter(
        "Draft tokens fed.", "spec_decode_num_draft_tokens", everywhere=False
    )
    """Tokens of the window count as far as they may be accepted."""
    accepted: int = counter("Draft tokens accepted.", "spec_decode_num_accepted_tokens")
    """Draft tokens that became output."""
    fed: int | None = counter("Tokens fed, prompts included.", "", documents=())
    reused_tokens: int = counter(
        "Prompt tokens found in kept K/V blocks.",
        "prefix_cache_hits",
        documents=("api",),
        everywhere=False,
    )
    """These were not fed."""
    sources: dict[str, SourceCounts] | None = None
    """The counts of each source of the candidate tree, without cells of a fed window, once the
    request has ended; None: it was not adaptive, or one of several was not."""

    def reported(self, document: str) -> dict[str, int | None]:
        """Return the counters of a document, by name."""
        return {
            name: getattr(self, name)
            for name, shown in COUNTERS.items()
            if document in shown.documents
        }


COUNTERS: Mapping[str, Counter] = {
    part.name: part.metadata["counter"]
    for part in fields(RequestCounters)
    if "counter" in part.metadata
}
"""The numbers among the counters, in order."""


@dataclass(slots=True)
class RequestStats(RequestCounters):
    """Counters of one request; the token of the prefill counts in no step."""

    lookahead: LookaheadConfig = AUTOREGRESSIVE
    """The triple that the request is decoded with."""
    drafter: str = "lookahead"
    """The drafters' names, with commas between."""
    step_lengths: list[int] = field(default_factory=list)
    """Committed tokens of each forward, the prefill first; their sum is the output's length."""

    @property
    def tokens_per_step(self) -> float:
        return tokens_per_step(self.decoded, self.steps)

    @property
    def decoded(self) -> int:
        """Tokens of the steps: those behind the first one and behind known output."""
        lengths = self.step_lengths
        each = len(lengths) == self.steps + 1  # else several steps are reported as one
        return sum(lengths) - (lengths[0] if each else min(1, sum(lengths)))

    @property
    def accepted_lengths(self) -> tuple[int, ...] | None:
        """Accepted drafts of each step; None if TensorRT-LLM reports several steps as one."""
        return accepted_lengths(self.step_lengths, self.steps, self.accepted)

    @property
    def accepted_per_pos(self) -> list[float] | None:
        """For each depth from 1 on, the share of steps that accepted a token; None as above."""
        return accepted_per_pos([self.accepted_lengths])


@dataclass(slots=True)
class ExecutorStats:
    """Counters of an executor since it was opened."""

    steps: int = 0
    """Forwards of the model, over all requests in flight."""
    prompt_tokens: int = 0
    """Tokens of all answered prompts, including those that block reuse spared."""
    new_tokens: int = 0
    fed: int | None = 0
    """None, as in RequestCounters, if unknown; `drafted` likewise."""
    drafted: int | None = 0
    accepted: int = 0
    forward_s: float | None = 0.0
    """Seconds inside the model's forwards, device synchronised; None if not reported."""
    max_in_flight: int = 0
    running: int | None = None
    """Requests in the batch at the time of the call; None if not reported."""
    waiting: int | None = None
    """Requests that were waiting for the batch."""
    kv_cache_usage: float | None = None
    """Share of the K/V cache's blocks that running requests owned."""
    weight_bytes: int | None = None
    """Bytes of the weights that a forward reads; None if unknown."""
    weight_type: str | None = None
    """Such as bfloat16 or FP8; None if unknown."""
    compute_type: str | None = None
    """The type of activations; None if unknown."""
    draft_models: DraftTotals = field(default_factory=DraftTotals)
    """Sums over all draft models."""
    heads: Mapping[str, HeadTotals] = field(default_factory=dict)
    """The work of each trained head, by the PATH of `head:PATH`."""

    def heads_since(self, before: ExecutorStats) -> HeadTotals | None:
        """Return the work of all heads since an earlier copy; None: no head is loaded."""
        each = [
            totals.since(before.heads.get(path, HeadTotals()))
            for path, totals in self.heads.items()
        ]
        return sum(each, HeadTotals()) if each else None
