"""The best triples on the real model: whole requests in turns with plain decoding, medians."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from trtla.bench.arms import EngineArm
from trtla.data.prompt_sets import batches
from trtla.settings.drafting import LOOKAHEAD, DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead, LookaheadConfig
from trtla.tune.measurements import Measurements
from trtla.tune.prediction import ALL
from trtla.tune.samples import Sample

if TYPE_CHECKING:
    from trtla.llm.llm import LLM

LEAST_ROUNDS = 3
PROMPT_LOOKUP = DrafterSettings(("prompt-lookup",))
"""What triples are compared with, beside `auto`: lookup alone, 4 tokens a draft."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of decoding whole requests."""

    name: str
    """A triple as W,N,G, `auto` or `prompt-lookup`."""
    lookahead: Lookahead | None
    drafter: DrafterSettings = LOOKAHEAD

    @classmethod
    def of(cls, triple: LookaheadConfig) -> Contender:
        """A triple."""
        return cls(str(triple), triple)


PLAIN = Contender.of(AUTOREGRESSIVE)
OTHERS = (Contender("auto", "auto"), Contender("prompt-lookup", None, PROMPT_LOOKUP))
"""What needs no triple."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A contender's real speed-up over plain decoding."""

    name: str
    lookahead: LookaheadConfig | None
    """None: it has no triple."""
    category: str
    batch_size: int
    measured_speedup: float
    predicted_speedup: float | None

    @property
    def error_percent(self) -> float | None:
        """How far the prediction lies above what was measured."""
        if self.predicted_speedup is None:
            return None
        return 100.0 * (self.predicted_speedup / self.measured_speedup - 1.0)


class Rounds:
    """Seconds of all contenders in one batch size, by category; kept round by round.

    Args:
        samples: by category.
    """

    def __init__(
        self,
        llm: LLM,
        samples: Mapping[str, Sequence[Sample]],
        batch_size: int,
        kept: Measurements,
    ) -> None:
        self._llm, self._samples, self._size, self._kept = llm, samples, batch_size, kept
        self._warm: set[str] = set()

    def run(
        self,
        contenders: Sequence[Contender],
        rounds: int,
        deadline: float,
        beside: Callable[[str, int], None],
    ) -> int:
        """Let them take turns; how many whole rounds there are.

        `beside` is called with category and round before a turn is taken.

        Three in any case, if so many are wanted: a median of fewer is none.
        """
        for number in range(rounds):
            if number >= LEAST_ROUNDS and time.monotonic() > deadline:
                return number
            for category in self._samples:
                self._turn(number, category, contenders, beside)
        return rounds

    def _turn(
        self,
        number: int,
        category: str,
        contenders: Sequence[Contender],
        beside: Callable[[str, int], None],
    ) -> None:
        """Each once; a turn that was cut off is taken anew, for its times belong together."""
        name = self._name(number, category)
        found = self._kept.get(name) or {}
        if all(contender.name in found for contender in contenders):
            return
        beside(category, number)
        seconds = {}
        for contender in contenders:
            arm = EngineArm(self._llm, contender.lookahead, contender.drafter)
            if contender.name not in self._warm:
                self._warm.add(contender.name)
                self._decode(arm, self._batches(category)[:1])
            seconds[contender.name] = self._decode(arm, self._batches(category))
        self._kept.put(name, seconds)

    def _name(self, number: int, category: str) -> str:
        return f"turn {number} {self._size} {category} {len(self._samples[category])}"

    def _batches(self, category: str) -> list[list[Sample]]:
        return batches(self._samples[category], self._size)

    def _decode(self, arm: EngineArm, many: Sequence[Sequence[Sample]]) -> float:
        return sum(
            arm.decode([s.prompt for s in batch], [s.sampling for s in batch]).wall_s
            for batch in many
        )

    def verified(
        self,
        contenders: Sequence[Contender],
        rounds: int,
        predicted: Mapping[tuple[str, str], float],
    ) -> list[Verified]:
        """Medians of the rounds' speed-ups, beside the predictions by name and category."""
        names = [*self._samples, *([ALL] if len(self._samples) > 1 else [])]
        return [
            self._verified(contender, category, rounds, predicted.get((contender.name, category)))
            for category in names
            for contender in contenders
        ]

    def scatter(self, contenders: Sequence[Contender], rounds: int) -> float:
        """How far a speed-up's largest and smallest rounds lie apart at most, as a ratio."""
        found = [
            self._ratios(contender, category, rounds)
            for category in self._samples
            for contender in contenders
        ]
        return max(max(ratios) / min(ratios) for ratios in found)

    def _verified(
        self, contender: Contender, category: str, rounds: int, predicted: float | None
    ) -> Verified:
        ratios = self._ratios(contender, category, rounds)
        triple = contender.lookahead
        own = triple if isinstance(triple, LookaheadConfig) else None
        return Verified(contender.name, own, category, self._size, median(ratios), predicted)

    def _ratios(self, contender: Contender, category: str, rounds: int) -> list[float]:
        return [
            self._seconds(number, category, PLAIN) / self._seconds(number, category, contender)
            for number in range(rounds)
        ]

    def _seconds(self, number: int, category: str, contender: Contender) -> float:
        names = self._samples if category == ALL else (category,)
        turns = [self._kept.get(self._name(number, one)) for one in names]
        return sum(float(turn[contender.name]) for turn in turns)
