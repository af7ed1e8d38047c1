"""Which triples are verified on how many samples, and what is predicted for exactly those.

A slow model cannot decode all samples with all contenders in the time that is left: then each
category brings its first few, and predictions are made for the same few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from trtla.data.prompt_sets import Ids
from trtla.llm.open import DEFAULT_LOOKAHEAD
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.tune.acceptance import Source
from trtla.tune.measurements import Measurements
from trtla.tune.prediction import ALL, Predictor, Row, StepsOf, best, category_seconds
from trtla.tune.replay import Steps
from trtla.tune.samples import Sample
from trtla.tune.step_time import StepClock
from trtla.tune.text_only import prompt_lookup_steps
from trtla.tune.verification import (
    LEAST_ROUNDS,
    OTHERS,
    PLAIN,
    PROMPT_LOOKUP,
    Contender,
    Rounds,
    Verified,
)

if TYPE_CHECKING:
    from trtla.llm.llm import LLM

Groups = Mapping[str, Sequence[Sample]]
_BEST = 3
"""Triples of all categories together that are verified; beside them the best of each category."""
_LEAST = 3
"""Triples that are verified however slow the model is."""
_BUSY = 1.3
"""Rounds of one speed-up that lie further apart tell of a busy machine."""


def contenders(
    rows: Sequence[Row], names: Sequence[str], size: int, *, default: bool
) -> list[LookaheadConfig]:
    """The best triples of all categories together, the best of each, and the default if asked."""
    together = ALL if len(names) > 1 else names[0]
    found = [row.lookahead for row in best(rows, together, size)[:_BEST]]
    found += [best(rows, name, size)[0].lookahead for name in names]
    found += [DEFAULT_LOOKAHEAD] if default else []
    return list(dict.fromkeys(triple for triple in found if triple != AUTOREGRESSIVE))


class Contest:
    """Real requests of one batch size, in turns.

    Args:
        groups: all samples by category.
        of: steps of a triple on a sample; of contenders they are known when rounds begin.
        outputs: the samples' texts.
        know: makes steps known.
    """

    def __init__(
        self,
        triples: Sequence[LookaheadConfig],
        size: int,
        groups: Groups,
        of: StepsOf,
        outputs: Callable[[Sample], Ids],
        know: Callable[[Sequence[LookaheadConfig], Sequence[Sample]], None],
    ) -> None:
        self.triples, self._size, self._groups = tuple(triples), size, groups
        self.scatter = 1.0
        """How far rounds lay apart, as a ratio."""
        self._of, self._output, self._know = of, outputs, know

    def prepare(self, clocks: Mapping[str, StepClock], seconds: float) -> None:
        """Keep what some rounds can be decoded with in this time.

        One sample of each category stays, and of the triples the best and the default.
        """
        count = max(map(len, self._groups.values()))
        while count > 1 and LEAST_ROUNDS * self._round_s(clocks, count) > seconds:
            count -= 1
        while len(self.triples) > _LEAST and LEAST_ROUNDS * self._round_s(clocks, count) > seconds:
            *first, _, last = self.triples
            self.triples = (*first, last)
        self._groups = {name: own[:count] for name, own in self._groups.items()}
        self._know(self.triples, [sample for own in self._groups.values() for sample in own])

    @property
    def disturbed(self) -> bool:
        """Whether rounds differ so much that the machine must have been busy."""
        return self.scatter > _BUSY

    def _round_s(self, clocks: Mapping[str, StepClock], count: int) -> float:
        """A round's time; what needs no triple counts as plain decoding."""
        plain = [AUTOREGRESSIVE] * (1 + len(OTHERS))
        return sum(
            category_seconds(clocks[name], triple, own[:count], self._size, self._of)
            for name, own in self._groups.items()
            for triple in (*self.triples, *plain)
        )

    def run(
        self,
        llm: LLM,
        kept: Measurements,
        rounds: int,
        deadline: float,
        beside: Callable[[str, int], None],
        clocks: Callable[[], Mapping[str, StepClock]],
    ) -> list[Verified]:
        """Take turns, and hold the medians against the predictions.

        Args:
            beside: times steps of a category in a round, for the predictions.
            clocks: what they come to in the end.
        """
        wanted = [PLAIN, *map(Contender.of, self.triples), *OTHERS]
        turns = Rounds(llm, self._groups, self._size, kept)
        done = turns.run(wanted, rounds, deadline, beside)
        self.scatter = turns.scatter(wanted, done)
        return turns.verified(wanted, done, self._predicted(dict(clocks())))

    def _predicted(self, clocks: dict[str, StepClock]) -> dict[tuple[str, str], float]:
        """Speed-ups by contender and category."""
        samples = [sample for own in self._groups.values() for sample in own]
        predictor = Predictor(samples, clocks, self._of)
        found = {
            (str(row.lookahead), row.category): row.predicted_speedup
            for row in predictor.rows([AUTOREGRESSIVE, *self.triples], [self._size])
        }
        lookup = Predictor(samples, clocks, self._lookup)
        for row in lookup.rows([DEFAULT_LOOKAHEAD], [self._size]):
            found[PROMPT_LOOKUP.name, row.category] = row.predicted_speedup
        return found

    def _lookup(self, triple: LookaheadConfig, sample: Sample) -> tuple[Steps, Source]:
        """What prompt lookup does, replayed exactly, in place of any triple."""
        steps, source = self._of(AUTOREGRESSIVE, sample)
        if triple == AUTOREGRESSIVE:
            return steps, source
        most = sample.sampling.max_output_len
        return prompt_lookup_steps(
            PROMPT_LOOKUP.gamma, sample.prompt, self._output(sample), most
        ), "replayed"
