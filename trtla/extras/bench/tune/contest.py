"""A contest of the best triples, measured on whole requests in turns with plain decoding.

A turn is a batch of every category, decoded by all contenders. The slower half of the field leaves
every few turns, and earlier if time is short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from statistics import median
from typing import TYPE_CHECKING

from trtla.extras.bench.documents import EVERY_CATEGORY, whole_category
from trtla.extras.bench.rounds import together as joined
from trtla.extras.bench.tune import clock
from trtla.extras.bench.tune.grid import Groups, as_work, nearness
from trtla.extras.bench.tune.prediction import AUTO, ranked
from trtla.extras.bench.ways import PLAIN, Way
from trtla.measuring.arms import AR, ArmRun, Note
from trtla.measuring.turns import Batch, CellRuns, Kept, Turn, rows, take
from trtla.results.rows import Cell, Row
from trtla.settings.drafting import DrafterSettings
from trtla.settings.lookahead import LookaheadConfig

if TYPE_CHECKING:
    from trtla.llm.llm import LLM

LEAST_TURNS = 3
"""The fewest turns that give a median, if that many are requested."""
LEAST_FIELD = 3
"""Contenders that always stay: plain decoding, the best triple and `auto`."""
_BEST = 6
"""Triples of all categories together that begin; the best of each category is added."""
_FEW_TRIPLES = 3
"""Triples that are too few to be halved."""
_WARM_UP, _SHORT = 2, 8
"""Tokens that a contender writes to warm up, and prompt tokens that it reads for that."""


OTHERS = (Way(AUTO, "auto"), Way("prompt-lookup", "auto", DrafterSettings(("prompt-lookup",))))
"""Contenders that need no triple; prompt lookup proposes 4 tokens a draft."""


def contenders(rows: Sequence[Row], size: int) -> list[Way]:
    """List plain decoding, the best triple, contenders without one, then further good triples."""
    drafting = [row for row in rows if row.arm != AR]
    names = dict.fromkeys(row.category for row in drafting)
    best = ranked(drafting, whole_category(drafting), size)[:_BEST]
    best += [row for name in names for row in ranked(drafting, name, size)[:1]]
    first, *others = (
        Way(f"lookahead {triple}", triple)
        for triple in dict.fromkeys(LookaheadConfig(*row.triple) for row in best if row.triple)
    )
    return [PLAIN, first, *OTHERS, *others]


class Contest:
    """Contenders in batches of one size, and their turns so far.

    Args:
        cell: the circumstances of all turns, but for their category.
        guess_s: the most seconds that a contender takes for a turn.
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
        self._arms = {way: way.arm(llm) for way in dict.fromkeys(field)}
        self._cells = {name: cell.model_copy(update={"category": name}) for name in groups}
        self._turns: dict[str, list[Turn]] = {name: [] for name in groups}

    @property
    def field(self) -> list[Way]:
        """The contenders that are left, plain decoding first."""
        return list(self._arms)

    @property
    def turns(self) -> int:
        return min(map(len, self._turns.values()))

    @property
    def expected_s(self) -> float:
        """Seconds that the next turn takes: those of the last turn, or before it the guess."""
        if not self.turns:
            return self._guess_s * len(self._arms)
        latest = [turns[self.turns - 1].runs for turns in self._turns.values()]
        return sum(runs[way.name].time_s for runs in latest for way in self._arms)

    def _batch(self, category: str) -> Batch:
        """Return the batch of the next turn."""
        group, first = self._groups[category], self.turns * self.size
        samples = [group[i % len(group)] for i in range(first, first + self.size)]
        return Batch(self.turns + 1, 0, as_work(samples))

    def _is_kept(self) -> bool:
        """Return whether the journal has the next turn with all contenders."""
        arms = list(self._arms.values())
        return all(
            self._kept.has(cell, self._batch(name), arms) for name, cell in self._cells.items()
        )

    def go(self, deadline: float, most: int, on_turn: Callable[[], None], *, needed: bool) -> bool:
        """Take turns until a deadline of `tune.clock`; False: there was no time for enough.

        Args:
            most: the most turns.
            needed: one turn is always taken, and is enough.
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
        """Remove the last contenders while there is no time for all of them."""
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
        """Remove the slower half of the triples, by their nearness to the best of any category."""
        triples = [way for way in self._arms if way not in (PLAIN, *OTHERS)]
        if len(triples) <= _FEW_TRIPLES:
            return
        pairs = product(triples, self._categories)
        score = nearness({(way.name, at): median(self._ratios(way, at)) for way, at in pairs})
        triples.sort(key=lambda way: score[way.name], reverse=True)
        before = list(self._arms)
        for way in triples[max(_FEW_TRIPLES, len(triples) // 2) :]:
            del self._arms[way]
        self._note_left(before, f"after {self.turns} turns the slower ones leave:")

    def _note_left(self, before: Sequence[Way], why: str) -> None:
        if names := [way.name for way in before if way not in self._arms]:
            self._note(f"batch size {self.size}: {why} {', '.join(names)}")

    def _turn(self) -> None:
        """Take one more turn, all of it even if it was interrupted: its times belong together."""
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
        """Return medians over the turns of the contenders that stayed."""
        arms = {arm.label: arm for arm in self._arms.values()}
        cells = [
            CellRuns(cell, {**arms}, self._turns[name], reseeded=True)
            for name, cell in self._cells.items()
        ]
        return [row for runs in (*cells, *joined(cells)) for row in rows(runs)]

    def scatter(self) -> float:
        """Return the largest ratio between turns of a speed-up on the same samples."""
        cycle = max(len(group) for group in self._groups.values())
        scatters = [1.0]
        for way in self._arms:
            for category in self._groups:
                ratios = self._ratios(way, category)
                repeats = (ratios[i::cycle] for i in range(min(cycle, len(ratios))))
                scatters += [max(same) / min(same) for same in repeats]
        return max(scatters)

    def _ratios(self, way: Way, category: str) -> list[float]:
        names = self._groups if category == EVERY_CATEGORY else (category,)
        turns = zip(*(self._turns[name] for name in names), strict=True)
        return [
            sum(turn.runs[PLAIN.name].time_s for turn in group)
            / sum(turn.runs[way.name].time_s for turn in group)
            for group in turns
        ]
