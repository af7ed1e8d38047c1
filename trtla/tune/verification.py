"""The best triples on the real model: whole requests in rounds with plain decoding, medians."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from trtla.bench.arms import EngineArm
from trtla.data.prompt_sets import batches
from trtla.results.documents import GridPoint, Verified
from trtla.settings.drafting import LOOKAHEAD, DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead, LookaheadConfig
from trtla.tune.measurements import Measurements
from trtla.tune.plan import Groups, Sample
from trtla.tune.prediction import ALL, best, together

if TYPE_CHECKING:
    from trtla.llm.llm import LLM

PlainSeconds = Callable[[Sequence[Sample], int], float]
"""Seconds that plain decoding of samples takes in batches of a size."""

LEAST_ROUNDS = 3
"""Rounds that are taken in any case, if so many are wanted: a median of fewer is none."""
LEAST_CONTENDERS = 3
STANDARD_CONTENDERS = 4
"""Plain decoding, the best triple and `auto`; with prompt lookup."""
_BEST = 3
"""Triples of all categories together that are verified; beside them the best of each category."""
_WARM_UP = 2
"""Tokens that a contender writes before it is timed."""
_SHORT = 8
"""Prompt tokens that it reads for that."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of decoding whole requests."""

    name: str
    """A triple as W,N,G, `auto` or `prompt-lookup`."""
    lookahead: Lookahead | None
    drafter: DrafterSettings = LOOKAHEAD
    share: float = 1.0
    """Of plain decoding's time, which it is expected to take."""


PLAIN = Contender(str(AUTOREGRESSIVE), AUTOREGRESSIVE)
OTHERS = (
    Contender("auto", "auto"),
    Contender("prompt-lookup", "auto", DrafterSettings(("prompt-lookup",))),
)
"""What needs no triple; prompt lookup proposes 4 tokens a draft."""


def contenders(rows: Sequence[GridPoint], size: int) -> list[Contender]:
    """Plain decoding and the best triple, what needs none, then further good triples.

    Those are the best of all categories together and the best of each; what comes later is left
    out first where time is short.
    """
    drafting = [row for row in rows if LookaheadConfig(*row.lookahead) != AUTOREGRESSIVE]
    names = dict.fromkeys(row.category for row in drafting)
    found = [*best(drafting, together(drafting), size)[:_BEST]]
    found += [row for name in names for row in best(drafting, name, size)[:1]]
    speeds = {LookaheadConfig(*row.lookahead): row.predicted_speedup for row in reversed(found)}
    first, *others = [
        Contender(str(triple), triple, share=1.0 / speeds[triple])
        for triple in dict.fromkeys(LookaheadConfig(*row.lookahead) for row in found)
    ]
    return [PLAIN, first, *(replace(one, share=first.share) for one in OTHERS), *others]


@dataclass(frozen=True, slots=True)
class Contest:
    """Who is verified on which samples, in batches of one size."""

    groups: Groups
    contenders: Sequence[Contender]
    size: int

    def seconds(self, plain_s: PlainSeconds, rounds: int) -> float:
        """What rounds should take."""
        once = sum(plain_s(own, self.size) for own in self.groups.values())
        return rounds * once * sum(one.share for one in self.contenders)

    def within(self, seconds: float, plain_s: PlainSeconds, rounds: int) -> Contest:
        """As many samples, then as many contenders as such a time is enough for.

        One sample of each category, plain decoding, the best triple and `auto` stay.
        """
        fitting = self
        count = max(map(len, self.groups.values()))
        while fitting.seconds(plain_s, rounds) > seconds:
            if count > 1:
                count -= 1
                groups = {name: own[:count] for name, own in self.groups.items()}
                fitting = replace(fitting, groups=groups)
            elif len(fitting.contenders) > LEAST_CONTENDERS:
                fitting = replace(fitting, contenders=fitting.contenders[:-1])
            else:
                break
        return fitting


class Rounds:
    """The seconds of a contest round by round, each of which is kept as a whole."""

    def __init__(self, llm: LLM, contest: Contest, kept: Measurements) -> None:
        self._llm, self.contest, self._kept = llm, contest, kept
        self._taken: list[dict[str, dict[str, float]]] = []
        """Of each round, by category and contender."""

    @property
    def count(self) -> int:
        """Whole rounds so far."""
        return len(self._taken)

    @property
    def last_s(self) -> float:
        """Seconds of the latest round."""
        return sum(s for own in self._taken[-1].values() for s in own.values())

    def take(self, on_decoding: Callable[[], None] = lambda: None) -> None:
        """One more round. What was cut off is taken anew, for its times belong together."""
        number, taken = len(self._taken), {}
        names = ",".join(one.name.replace(",", ".") for one in self.contest.contenders)
        for category, own in self.contest.groups.items():
            name = f"round {number} {self.contest.size} {category} {len(own)} {names}"
            if (found := self._kept.get(name)) is None:
                found = {}
                for one in self.contest.contenders:
                    found[one.name] = decode_s(self._llm, one, own, self.contest.size)
                    on_decoding()
                self._kept.put(name, found)
            taken[category] = found
        self._taken.append(taken)

    def verified(self, rows: Sequence[GridPoint]) -> list[Verified]:
        """Medians of the rounds' speed-ups beside the predictions."""
        names = [*self.contest.groups, *([ALL] if len(self.contest.groups) > 1 else [])]
        predicted = {
            (str(LookaheadConfig(*row.lookahead)), row.category): row.predicted_speedup
            for row in rows
            if row.batch_size == self.contest.size
        }
        return [
            self._verified(one, category, predicted.get((one.name, category)))
            for category in names
            for one in self.contest.contenders
        ]

    def _verified(self, one: Contender, category: str, predicted: float | None) -> Verified:
        measured = median(self._ratios(one, category))
        error = None if predicted is None else round(100.0 * (predicted / measured - 1.0), 4)
        triple = one.lookahead
        own = (
            {"lookahead": triple.as_tuple()}
            if isinstance(triple, LookaheadConfig)
            else {"drafter": one.name}
        )
        return Verified.model_validate(
            {
                **own,
                "category": category,
                "batch_size": self.contest.size,
                "predicted_speedup": predicted,
                "measured_speedup": round(measured, 4),
                "error_percent": error,
            }
        )

    def scatter(self) -> float:
        """How far a speed-up's largest and smallest rounds lie apart at most, as a ratio."""
        found = [
            self._ratios(one, category)
            for one in self.contest.contenders
            for category in self.contest.groups
        ]
        return max(max(ratios) / min(ratios) for ratios in found)

    def _ratios(self, one: Contender, category: str) -> list[float]:
        names = self.contest.groups if category == ALL else (category,)
        return [
            sum(taken[name][PLAIN.name] for name in names)
            / sum(taken[name][one.name] for name in names)
            for taken in self._taken
        ]


def shortened(sample: Sample, most: int) -> Sample:
    """A sample that writes at most so many tokens."""
    wanted = min(most, sample.sampling.max_output_len)
    return replace(sample, sampling=replace(sample.sampling, max_output_len=wanted))


def warm_up(llm: LLM, contest: Contest) -> None:
    """Let every contender write a few tokens in a batch of the contest's size."""
    sample = shortened(next(iter(contest.groups.values()))[0], _WARM_UP)
    short = replace(sample, prompt=sample.prompt[:_SHORT])
    for contender in contest.contenders:
        decode_s(llm, contender, [short], contest.size)


def decode_s(llm: LLM, one: Contender, samples: Sequence[Sample], size: int) -> float:
    """Seconds that samples take in batches, the last of which is filled up from the front."""
    arm = EngineArm(llm, one.lookahead, one.drafter)
    return sum(
        arm.decode([s.prompt for s in batch], [s.sampling for s in batch]).time_s
        for batch in batches(samples, size)
    )
