"""The best triples on the real model: whole requests in turns with plain decoding, medians.

A turn is a batch of every category, decoded by all contenders. The field is halved as it goes, and
sooner where time is short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from trtla.bench.arms import Way
from trtla.bench.journal import Measurements
from trtla.bench.turns import alternate
from trtla.results.documents import GridPoint, Verified
from trtla.settings.drafting import DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.tune import clock
from trtla.tune.prediction import ALL, best, together
from trtla.tune.search import Groups, Sample, nearness

if TYPE_CHECKING:
    from trtla.llm.llm import LLM

LEAST_TURNS = 3
"""Turns that are enough, if so many are wanted: a median of fewer is none."""
LEAST_FIELD = 3
"""Contenders that stay in any case: plain decoding, the best triple and `auto`."""
_BEST = 6
"""Triples of all categories together that begin; beside them the best of each category."""
_FEW_TRIPLES = 3
"""Triples that are not halved any more."""
_WARM_UP, _SHORT = 2, 8
"""Tokens that a contender writes before it is timed, and prompt tokens that it reads for that."""


PLAIN = Way(str(AUTOREGRESSIVE), AUTOREGRESSIVE)
OTHERS = (Way("auto", "auto"), Way("prompt-lookup", "auto", DrafterSettings(("prompt-lookup",))))
"""What needs no triple; prompt lookup proposes 4 tokens a draft."""


def contenders(rows: Sequence[GridPoint], size: int) -> list[Way]:
    """Plain decoding and the best triple, what needs none, then further good triples."""
    drafting = [row for row in rows if LookaheadConfig(*row.lookahead) != AUTOREGRESSIVE]
    names = dict.fromkeys(row.category for row in drafting)
    found = best(drafting, together(drafting), size)[:_BEST]
    found += [row for name in names for row in best(drafting, name, size)[:1]]
    first, *others = (
        Way(str(triple), triple)
        for triple in dict.fromkeys(LookaheadConfig(*row.lookahead) for row in found)
    )
    return [PLAIN, first, *OTHERS, *others]


class Contest:
    """Contenders in batches of one size, and the seconds of their turns so far."""

    def __init__(
        self,
        llm: LLM,
        groups: Groups,
        field: Sequence[Way],
        size: int,
        journal: Measurements,
        guess_s: float = 0.0,
    ) -> None:
        """`guess_s`: the seconds that a contender takes for a turn, at most."""
        self._guess_s = guess_s
        self._groups, self.size, self._journal = groups, size, journal
        self._arms = {one: one.arm(llm) for one in dict.fromkeys(field)}
        self._turns: list[dict[str, dict[str, float]]] = []
        """By category and contender."""

    @property
    def field(self) -> list[Way]:
        """Those that are left, plain decoding first."""
        return list(self._arms)

    @property
    def turns(self) -> int:
        return len(self._turns)

    @property
    def expected_s(self) -> float:
        """What the next turn takes: as long as the last one, or before it at most the guess."""
        if not self._turns:
            return self._guess_s * len(self._arms)
        latest = [own for turn in self._turns[-1:] for own in turn.values()]
        return sum(own[one.name] for own in latest for one in self._arms)

    @property
    def _name(self) -> str:
        return f"turn {self.size} {self.turns}"

    def _kept(self) -> dict[str, dict[str, float]] | None:
        """The next turn, if it was taken before with all contenders."""
        names, taken = {one.name for one in self._arms}, self._journal.get(self._name)
        whole = taken is not None and all(names <= own.keys() for own in taken.values())
        return taken if whole else None

    def go(self, deadline: float, most: int, on_turn: Callable[[], None], *, needed: bool) -> bool:
        """Take turns until a deadline of `tune.clock`; False: there was no time for enough.

        Args:
            most: turns, at most.
            needed: whether one turn is taken in any case, and is enough.
        """
        least = min(LEAST_TURNS, most)
        is_warm = False
        while self.turns < most:
            if self._kept() is None:
                self._shorten(deadline, least)
                late = deadline - clock.now() < self.expected_s
                if late and (self.turns or not needed):
                    return self.turns >= (1 if needed else least)
                if not is_warm:
                    self._warm_up()
                    is_warm = True
            self._turn()
            on_turn()
            if self.turns % LEAST_TURNS == 0:
                self._halve()
        return True

    def _shorten(self, deadline: float, least: int) -> None:
        """Have the last contenders leave while there is no time for all of them."""
        left, wanted = deadline - clock.now(), max(1, least - self.turns)
        while (
            self.turns < least
            and len(self._arms) > LEAST_FIELD
            and (left <= 0.0 or wanted * self.expected_s >= left)
        ):
            self._arms.popitem()

    def _halve(self) -> None:
        """Leave the slower half of the triples out, by how near they come to the best anywhere."""
        triples = [one for one in self._arms if one not in (PLAIN, *OTHERS)]
        if len(triples) <= _FEW_TRIPLES:
            return
        places = product(triples, self._categories)
        score = nearness({(one.name, at): median(self._ratios(one, at)) for one, at in places})
        triples.sort(key=lambda one: score[one.name], reverse=True)
        for one in triples[max(_FEW_TRIPLES, len(triples) // 2) :]:
            del self._arms[one]

    def _turn(self) -> None:
        """One more turn. What was cut off is taken again, since its times belong together."""
        taken = self._kept()
        if taken is None:
            number = self.turns
            taken = {name: self._decode(own, number) for name, own in self._groups.items()}
            self._journal.put(self._name, taken)
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
        found = []
        for category, one in product(self._categories, self._arms):
            measured = median(self._ratios(one, category))
            expected = predicted.get((one.name, category))
            own: dict[str, Any] = {"drafter": one.name}
            if isinstance(one.lookahead, LookaheadConfig):
                own = {"lookahead": one.lookahead.as_tuple()}
            error = None if expected is None else round(100.0 * (expected / measured - 1.0), 4)
            found.append(
                Verified(
                    **own,
                    category=category,
                    batch_size=self.size,
                    predicted_speedup=expected,
                    measured_speedup=round(measured, 4),
                    error_percent=error,
                )
            )
        return found

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

    def _ratios(self, one: Way, category: str) -> list[float]:
        names = self._groups if category == ALL else (category,)
        return [
            sum(taken[name][PLAIN.name] for name in names)
            / sum(taken[name][one.name] for name in names)
            for taken in self._turns
        ]
