"""Steps of triples that were neither run nor replayed: guessed between those that were.

What the text alone would bring, exact for every (N, G), is the shape; how much more or less a
triple made of it is averaged over its measured neighbours, the near ones counting most. Plain
arithmetic; a guess is called `interpolated` wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import log

from trtla.settings.lookahead import LookaheadConfig
from trtla.tune.acceptance import Acceptance, Source
from trtla.tune.grid import window_tokens
from trtla.tune.replay import Steps
from trtla.tune.samples import Sample
from trtla.tune.text_only import text_steps

_NEAR = 0.15  # added to distances: a neighbour counts much, not all
_FIRST_GAIN, _FIRST_SHARE = 1.1, 0.6
"""Before anything was measured: S over the text's own, and candidates found of G."""

_Place = tuple[float, float, float]
_Neighbour = tuple[_Place, float, float]
"""Where a triple lies, its S over the text's own, the share of G candidates that it found."""


@lru_cache(maxsize=100_000)
def _text(triple: tuple[int, int], sample: Sample, output: tuple[int, ...]) -> Steps:
    return text_steps(*triple, sample.prompt, output)


class Interpolation:
    """Steps for every triple and sample: what is known of it, else a guess."""

    def __init__(self, acceptance: Acceptance) -> None:
        self._acceptance = acceptance
        self._averages: dict[str, list[_Neighbour]] = {}
        self._guesses: dict[tuple[LookaheadConfig, str], tuple[float, float]] = {}
        self._steps: dict[tuple[LookaheadConfig, str], tuple[Steps, Source]] = {}

    def learn(self, triples: Sequence[LookaheadConfig]) -> None:
        """Look at what is known by now."""
        self._averages, self._guesses, self._steps = {}, {}, {}
        for sample in self._acceptance.samples:
            self._averages.setdefault(sample.category, [])
        for category in self._averages:
            own = [s for s in self._acceptance.samples if s.category == category]
            found = [self._neighbour(t, own) for t in triples if not t.is_autoregressive]
            self._averages[category] = [one for one in found if one is not None]

    def _neighbour(self, triple: LookaheadConfig, samples: Sequence[Sample]) -> _Neighbour | None:
        gains, shares = [], []
        for sample in samples:
            found = self._acceptance.get(triple, sample)
            if found is not None and found[0].steps:
                steps = found[0]
                gains.append(steps.tokens_per_step / self._of_text(triple, sample).tokens_per_step)
                shares.append(_share(triple, steps))
        if not gains:
            return None
        return _place(triple), sum(gains) / len(gains), sum(shares) / len(shares)

    def _of_text(self, triple: LookaheadConfig, sample: Sample) -> Steps:
        shape = (triple.ngram_size, triple.verification_set_size)
        return _text(shape, sample, self._acceptance.output(sample))

    def steps(self, triple: LookaheadConfig, sample: Sample) -> tuple[Steps, Source]:
        """The steps of a triple on a sample, and whether they are known."""
        place = (triple, sample.name)
        found = self._steps.get(place)
        if found is None:
            found = self._acceptance.get(triple, sample) or self._guessed(triple, sample)
            self._steps[place] = found
        return found

    def _guessed(self, triple: LookaheadConfig, sample: Sample) -> tuple[Steps, Source]:
        tokens = len(self._acceptance.output(sample)) - 1
        if triple.is_autoregressive or tokens < 1:
            return Steps(tokens, tokens, tokens), "replayed"
        gain, share = self._guess(triple, sample.category)
        speed = gain * self._of_text(triple, sample).tokens_per_step
        steps = max(1, round(tokens / min(max(1.0, speed), triple.ngram_size)))
        guesses = share * triple.verification_set_size * (triple.ngram_size - 1)
        fed = round(steps * (window_tokens(triple) + guesses))
        return Steps(tokens, steps, fed), "interpolated"

    def _guess(self, triple: LookaheadConfig, category: str) -> tuple[float, float]:
        """Gain over the text's own S, and share of candidates found."""
        found = self._guesses.get((triple, category))
        if found is None:
            found = _average(_place(triple), self._averages.get(category, []))
            self._guesses[triple, category] = found
        return found


def _average(place: _Place, neighbours: Sequence[_Neighbour]) -> tuple[float, float]:
    if not neighbours:
        return _FIRST_GAIN, _FIRST_SHARE
    weights = [1.0 / (_NEAR + _distance(place, one[0])) ** 3 for one in neighbours]
    total = sum(weights)
    gain = sum(w * one[1] for w, one in zip(weights, neighbours, strict=True)) / total
    share = sum(w * one[2] for w, one in zip(weights, neighbours, strict=True)) / total
    return gain, share


def _share(triple: LookaheadConfig, steps: Steps) -> float:
    """Candidates fed of those that could have been; the window's warm-up counts against it."""
    most = triple.verification_set_size * (triple.ngram_size - 1)
    return (steps.fed_per_step - window_tokens(triple)) / most if most else 0.0


def _place(triple: LookaheadConfig) -> _Place:
    w, n, g = triple.as_tuple()
    return log(w), 1.5 * log(n - 1) if n > 1 else 0.0, log(g + 1)


def _distance(a: _Place, b: _Place) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
