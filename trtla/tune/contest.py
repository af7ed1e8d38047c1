"""The best triples on the real model: whole requests in turns with plain decoding, medians.

A turn is a batch of every category, decoded by all contenders. The field is halved as it goes, and
sooner where time is short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from statistics import median
from typing import TYPE_CHECKING

from trtla.bench.arms import AR, PLAIN, ArmRun, Note, Way
from trtla.bench.turns import Batch, CellRuns, Kept, Turn, rows, take
from trtla.bench.turns import together as joined
from trtla.results.bench_documents import EVERY_CATEGORY, Cell, Row, whole_category
from trtla.settings.drafting import DrafterSettings
from trtla.settings.lookahead import LookaheadConfig
from trtla.tune import clock
from trtla.tune.grid import Groups, as_work, nearness
from trtla.tune.prediction import AUTO, ranked

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


OTHERS = (Way(AUTO, "auto"), Way("prompt-lookup", "auto", DrafterSettings(("prompt-lookup",))))
"""What needs no triple; prompt lookup proposes 4 tokens a draft."""


def contenders(rows: Sequence[Row], size: int) -> list[Way]:
    """Plain decoding and the best triple, what needs none, then further good triples."""
    drafting = [row for row in rows if row.arm != AR]
    names = dict.fromkeys(row.category for row in drafting)
    found = ranked(drafting, whole_category(drafting), size)[:_BEST]
    found += [row for name in names for row in ranked(drafting, name, size)[:1]]
    first, *others = (
        Way(f"lookahead {triple}", triple)
        for triple in dict.fromkeys(LookaheadConfig(*row.triple) for row in found if row.triple)
    )
    return [PLAIN, first, *OTHERS, *others]


class Contest:
    """Contenders in batches of one size, and their turns so far.

    Args:
        cell: what all turns are taken under, but for category and batch size.
        guess_s: the seconds that a contender takes for a turn, at most.
    """

    def __init__(
        self,
        llm: LLM,
        groups: Groups,
        field: Sequence[Way],
        cell: Cell,
        kept: Kept,
        note: Note = lambda text: None,
        guess_s: float = 0.0,
    ) -> None:
        self._guess_s, self._groups, self._kept, self._note = guess_s, groups, kept, note
        self.size = cell.batch_size
        self._arms = {one: one.arm(llm) for one in dict.fromkeys(field)}
        self._cells = {name: cell.model_copy(update={"category": name}) for name in groups}
        self._turns: dict[str, list[Turn]] = {name: [] for name in groups}

    @property
    def field(self) -> list[Way]:
        """Those that are left, plain decoding first."""
        return list(self._arms)

    @property
    def turns(self) -> int:
        return min(map(len, self._turns.values()))

    @property
    def expected_s(self) -> float:
        """What the next turn takes: as long as the last one, or before it at most the guess."""
        if not self.turns:
            return self._guess_s * len(self._arms)
        latest = [own[self.turns - 1].runs for own in self._turns.values()]
        return sum(runs[one.name].time_s for runs in latest for one in self._arms)

    def _batch(self, category: str) -> Batch:
        """What the next turn decodes."""
        own, first = self._groups[category], self.turns * self.size
        samples = [own[place % len(own)] for place in range(first, first + self.size)]
        return Batch(self.turns + 1, 0, as_work(samples))

    def _is_kept(self) -> bool:
        """Whether the next turn was taken before with all contenders."""
        arms = list(self._arms.values())
        return all(
            self._kept.has(cell, self._batch(name), arms) for name, cell in self._cells.items()
        )

    def go(self, deadline: float, most: int, on_turn: Callable[[], None], *, needed: bool) -> bool:
        """Take turns until a deadline of `tune.clock`; False: there was no time for enough.

        Args:
            most: turns, at most.
            needed: whether one turn is taken in any case, and is enough.
        """
        least = min(LEAST_TURNS, most)
        is_warm = False
        while self.turns < most:
            if not self._is_kept():
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
        before = list(self._arms)
        while (
            self.turns < least
            and len(self._arms) > LEAST_FIELD
            and (left <= 0.0 or wanted * self.expected_s >= left)
        ):
            self._arms.popitem()
        self._note_left(before, "there is no time for")

    def _halve(self) -> None:
        """Leave the slower half of the triples out, by how near they come to the best anywhere."""
        triples = [one for one in self._arms if one not in (PLAIN, *OTHERS)]
        if len(triples) <= _FEW_TRIPLES:
            return
        places = product(triples, self._categories)
        score = nearness({(one.name, at): median(self._ratios(one, at)) for one, at in places})
        triples.sort(key=lambda one: score[one.name], reverse=True)
        before = list(self._arms)
        for one in triples[max(_FEW_TRIPLES, len(triples) // 2) :]:
            del self._arms[one]
        self._note_left(before, f"after {self.turns} turns the slower ones leave:")

    def _note_left(self, before: Sequence[Way], why: str) -> None:
        if names := [one.name for one in before if one not in self._arms]:
            self._note(f"batch size {self.size}: {why} {', '.join(names)}")

    def _turn(self) -> None:
        """One more turn. What was cut off is taken again, since its times belong together."""
        batches = {name: self._batch(name) for name in self._cells}
        for name, batch in batches.items():
            self._turns[name].append(Turn(batch, self._take(self._cells[name], batch)))

    def _take(self, cell: Cell, batch: Batch) -> dict[str, ArmRun]:
        arms = list(self._arms.values())
        for arm in arms:
            arm.begin_round()
        return take(cell, batch, arms, self._kept)

    def _warm_up(self) -> None:
        first = next(iter(self._groups.values()))[0]
        wanted = min(_WARM_UP, first.sampling.max_output_len)
        sampling = replace(first.sampling, max_output_len=wanted)
        short = replace(first, prompt=first.prompt[:_SHORT], sampling=sampling)
        for arm in self._arms.values():
            arm.warm_up(*as_work([short] * self.size))

    @property
    def _categories(self) -> list[str]:
        return [*self._groups, *([EVERY_CATEGORY] if len(self._groups) > 1 else [])]

    def rows(self) -> list[Row]:
        """Medians over the turns, of those that stayed."""
        arms = {arm.label: arm for arm in self._arms.values()}
        cells = [
            CellRuns(cell, {**arms}, self._turns[name], reseeded=True)
            for name, cell in self._cells.items()
        ]
        return [row for one in (*cells, *joined(cells)) for row in rows(one)]

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
        names = self._groups if category == EVERY_CATEGORY else (category,)
        turns = zip(*(self._turns[name] for name in names), strict=True)
        return [
            sum(turn.runs[PLAIN.name].time_s for turn in own)
            / sum(turn.runs[one.name].time_s for turn in own)
            for own in turns
        ]
