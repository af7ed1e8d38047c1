"""The best triples on the real model: whole requests in turns with plain decoding, medians.

A turn is a batch of every category, decoded by all contenders. The field is halved as it goes, and
sooner where time is short.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from trtla.bench.arms import EngineArm
from trtla.bench.journal import Measurements
from trtla.bench.turns import alternate
from trtla.results.documents import GridPoint, Verified
from trtla.settings.drafting import LOOKAHEAD, DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead, LookaheadConfig
from trtla.tune.plan import Groups, Sample
from trtla.tune.prediction import ALL, best, nearness, together

if TYPE_CHECKING:
    from trtla.llm.llm import LLM

LEAST_TURNS = 3
"""Turns that are taken in any case, if so many are wanted: a median of fewer is none."""
_LEAST = 3
"""Contenders that stay in any case: plain decoding, the best triple and `auto`."""
_BEST = 6
"""Triples of all categories together that begin; beside them the best of each category."""
_FEW_TRIPLES = 3
"""Triples that are not halved any more."""
_WARM_UP, _SHORT = 2, 8
"""Tokens that a contender writes before it is timed, and prompt tokens that it reads for that."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of decoding whole requests."""

    name: str
    """A triple as W,N,G, `auto` or `prompt-lookup`."""
    lookahead: Lookahead
    drafter: DrafterSettings = LOOKAHEAD


PLAIN = Contender(str(AUTOREGRESSIVE), AUTOREGRESSIVE)
OTHERS = (
    Contender("auto", "auto"),
    Contender("prompt-lookup", "auto", DrafterSettings(("prompt-lookup",))),
)
"""What needs no triple; prompt lookup proposes 4 tokens a draft."""


def contenders(rows: Sequence[GridPoint], size: int) -> list[Contender]:
    """Plain decoding and the best triple, what needs none, then further good triples."""
    drafting = [row for row in rows if LookaheadConfig(*row.lookahead) != AUTOREGRESSIVE]
    names = dict.fromkeys(row.category for row in drafting)
    found = best(drafting, together(drafting), size)[:_BEST]
    found += [row for name in names for row in best(drafting, name, size)[:1]]
    first, *others = (
        Contender(str(triple), triple)
        for triple in dict.fromkeys(LookaheadConfig(*row.lookahead) for row in found)
    )
    return [PLAIN, first, *OTHERS, *others]


class Contest:
    """Contenders in batches of one size, and the seconds of their turns so far."""

    def __init__(
        self,
        llm: LLM,
        groups: Groups,
        field: Sequence[Contender],
        size: int,
        journal: Measurements,
    ) -> None:
        self._groups, self.size, self._journal = groups, size, journal
        self._arms = {
            one: EngineArm(llm, one.lookahead, one.drafter, one.name)
            for one in dict.fromkeys(field)
        }
        self._turns: list[dict[str, dict[str, float]]] = []
        """By category and contender."""

    @property
    def field(self) -> list[Contender]:
        """Those that are left, plain decoding first."""
        return list(self._arms)

    @property
    def turns(self) -> int:
        """Whole turns so far."""
        return len(self._turns)

    @property
    def is_least(self) -> bool:
        """Whether nobody more can be left out."""
        return len(self._arms) == _LEAST

    @property
    def last_s(self) -> float:
        """Seconds of the latest turn, of those that are left."""
        names = {one.name for one in self._arms}
        return sum(s for own in self._turns[-1].values() for n, s in own.items() if n in names)

    def go(self, deadline: float, most: int, on_turn: Callable[[], None], *, needed: bool) -> bool:
        """Take turns until a deadline of time.monotonic; False: there was no time for enough.

        Args:
            most: turns, at most.
            needed: whether the least is measured in any case.
        """
        least = min(LEAST_TURNS, most)
        self._warm_up()
        while self.turns < most:
            left = deadline - time.monotonic()
            wanted = max(1, least - self.turns)
            if self.turns < least:
                self._fit(left, wanted)
            short = left < (self.last_s if self._turns else 0.0)
            if short and (self.turns >= least or not needed):
                return self.turns >= least
            self._turn()
            on_turn()
            if self.turns % LEAST_TURNS == 0:
                self._halve()
        return True

    def _fit(self, left: float, turns: int) -> None:
        """Leave contenders out, the last ones first, that there is no time for."""
        expected = turns * self.last_s if self._turns else 0.0
        while len(self._arms) > _LEAST and expected >= left:
            self._arms.popitem()
            expected = turns * self.last_s if self._turns else 0.0

    def _halve(self) -> None:
        """Leave the slower half of the triples out, by how near they come to the best anywhere."""
        triples = [one for one in self._arms if one not in (PLAIN, *OTHERS)]
        if len(triples) <= _FEW_TRIPLES:
            return
        speeds = {
            (one.name, name): median(self._ratios(one, name))
            for one in triples
            for name in self._categories
        }
        score = nearness(speeds)
        triples.sort(key=lambda one: score[one.name], reverse=True)
        for one in triples[max(_FEW_TRIPLES, len(triples) // 2) :]:
            del self._arms[one]

    def _turn(self) -> None:
        """One more turn. What was cut off is taken again, since its times belong together."""
        number = len(self._turns)
        name, names = f"turn {self.size} {number}", {one.name for one in self._arms}
        taken = self._journal.get(name)
        if taken is None or any(not names <= own.keys() for own in taken.values()):
            taken = {name: self._decode(own, number) for name, own in self._groups.items()}
            self._journal.put(name, taken)
        self._turns.append(taken)

    def _decode(self, own: Sequence[Sample], number: int) -> dict[str, float]:
        places = range(number * self.size, (number + 1) * self.size)
        return self._seconds([own[place % len(own)] for place in places])

    def _seconds(self, samples: Sequence[Sample]) -> dict[str, float]:
        for arm in self._arms.values():
            arm.begin_round()
        work = ([one.prompt for one in samples], [one.sampling for one in samples])
        runs = alternate(list(self._arms.values()), [work], torch.device("cpu"))
        return {arm.name: run.time_s for arm, run in runs}

    def _warm_up(self) -> None:
        """Let every contender write a few tokens in a batch of the contest's size."""
        first = next(iter(self._groups.values()))[0]
        wanted = min(_WARM_UP, first.sampling.max_output_len)
        sampling = replace(first.sampling, max_output_len=wanted)
        short = replace(first, prompt=first.prompt[:_SHORT], sampling=sampling)
        self._seconds([short] * self.size)

    @property
    def _categories(self) -> list[str]:
        return [*self._groups, *([ALL] if len(self._groups) > 1 else [])]

    def verified(self, rows: Sequence[GridPoint]) -> list[Verified]:
        """Medians of the turns' speed-ups beside the predictions, of those that stayed."""
        predicted = {
            (str(LookaheadConfig(*row.lookahead)), row.category): row.predicted_speedup
            for row in rows
            if row.batch_size == self.size
        }
        return [
            self._verified(one, category, predicted.get((one.name, category)))
            for category in self._categories
            for one in self._arms
        ]

    def _verified(self, one: Contender, category: str, predicted: float | None) -> Verified:
        measured = median(self._ratios(one, category))
        error = None if predicted is None else round(100.0 * (predicted / measured - 1.0), 4)
        triple = one.lookahead
        own: dict[str, Any] = (
            {"lookahead": triple.as_tuple()}
            if isinstance(triple, LookaheadConfig)
            else {"drafter": one.name}
        )
        return Verified(
            **own,
            category=category,
            batch_size=self.size,
            predicted_speedup=predicted,
            measured_speedup=round(measured, 4),
            error_percent=error,
        )

    def scatter(self) -> float:
        """How far a speed-up on the same samples differs from turn to turn at most, as a ratio."""
        cycle = max(len(own) for own in self._groups.values())
        found = [1.0]
        for one in self._arms:
            for category in self._groups:
                ratios = self._ratios(one, category)
                same = (ratios[place::cycle] for place in range(min(cycle, len(ratios))))
                found += [max(own) / min(own) for own in same]
        return max(found)

    def _ratios(self, one: Contender, category: str) -> list[float]:
        names = self._groups if category == ALL else (category,)
        return [
            sum(taken[name][PLAIN.name] for name in names)
            / sum(taken[name][one.name] for name in names)
            for taken in self._turns
        ]
