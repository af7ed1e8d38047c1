"""How often guesses come true, by context and rank, seen as the text goes on whether fed or not."""

from __future__ import annotations

from collections.abc import Sequence

from trtla.runtime.draft import Guess

_CONTEXTS, _RANKS = 3, 3
_FIRST_CHANCE = ((0.25, 0.08, 0.03), (0.45, 0.1, 0.04), (0.65, 0.12, 0.05))
"""Of a guess's first token, before anything was seen: [context][rank]."""
_FURTHER_CHANCE = (0.55, 0.7, 0.8)
"""Of each further token, given the one before: [context]."""
_PRIOR_WEIGHT = 6.0  # guesses that the chances of the sequences before count for
_WATCHED = 6  # guesses of a step that are followed up
_TOO_LARGE = 1e100  # of a unit: floats still hold far more


class _Tally:
    """Guesses of one kind: how many were seen, and how many of them added their i-th token.

    Exponentially weighted: instead of decaying old observations, each new one weighs `1 / memory`
    times the one before.
    """

    __slots__ = ("_hits", "_parent", "_step", "_unit", "_weight")

    def __init__(
        self, weight: float, hits: list[float], parent: _Tally | None, memory: float
    ) -> None:
        self._weight, self._hits, self._parent = weight, hits, parent
        self._unit, self._step = 1.0, 1.0 / memory

    def child(self, memory: float) -> _Tally:
        """One that has seen nothing of its own."""
        return _Tally(0.0, [0.0] * len(self._hits), self, memory)

    def add(self, start: int, end: int) -> None:
        """A guess was seen that added its tokens [start, end)."""
        unit = self._unit = self._unit * self._step
        self._weight += unit
        for place in range(start, end):
            self._hits[place] += unit
        if unit > _TOO_LARGE:
            self._weight, self._unit = self._weight / unit, 1.0
            self._hits = [hit / unit for hit in self._hits]

    def chances(self) -> list[float]:
        """Of each token to be accepted where better guesses fail."""
        return [self._chance(place) for place in range(len(self._hits))]

    def _chance(self, place: int) -> float:
        parent = self._parent
        if parent is None:
            return self._hits[place] / self._weight
        prior = _PRIOR_WEIGHT * parent._hits[place] / parent._weight
        unit = self._unit
        return (self._hits[place] / unit + prior) / (self._weight / unit + _PRIOR_WEIGHT)

    def cut(self, least: float) -> tuple[int, float]:
        """How many leading tokens have this chance each, and the sum of their chances."""
        value = 0.0
        for place in range(len(self._hits)):
            chance = self._chance(place)
            if chance < least:
                return place, value
            value += chance
        return len(self._hits), value


class Acceptance:
    """Chances of a sequence's guesses, with those of all sequences before as their prior.

    A guess counts for the tokens that no better guess of its step has, so the chances of several
    guesses add up.
    """

    def __init__(self, tallies: list[list[_Tally]], parent: Acceptance | None = None) -> None:
        self._tallies, self._parent = tallies, parent
        self.from_window = 0
        """Tokens that came true and that only the window's n-grams had, counted up."""
        self._watched: list[tuple[list[Guess], int]] = []

    @classmethod
    def prior(cls, length: int) -> Acceptance:
        """What is expected of guesses of `length` tokens before any was seen."""
        return cls(
            [
                [
                    _Tally(16.0, [16.0 * first * further**i for i in range(length)], None, 0.995)
                    for first in firsts
                ]
                for firsts, further in zip(_FIRST_CHANCE, _FURTHER_CHANCE, strict=True)
            ]
        )

    def child(self) -> Acceptance:
        """A sequence's own, which starts with what this one has seen and teaches it in turn."""
        return Acceptance([[tally.child(0.96) for tally in row] for row in self._tallies], self)

    def chances(self, context: int, rank: int) -> list[float]:
        """The chance of each token of a guess to be accepted where better guesses fail."""
        return self._tallies[min(context, _CONTEXTS) - 1][min(rank, _RANKS - 1)].chances()

    def cuts(self, guesses: list[Guess], least: float) -> list[tuple[int, float]]:
        """Of each guess, the best first: tokens of at least this chance, and their chances' sum."""
        found: list[tuple[int, float]] = []
        before = 0
        for rank, guess in enumerate(guesses):
            context = min(guess.context, _CONTEXTS)
            if rank < _RANKS or context != before:
                cut = self._tallies[context - 1][min(rank, _RANKS - 1)].cut(least)
            found.append(cut)
            before = context
        return found

    def watch(self, guesses: list[Guess], start: int) -> None:
        """Follow up what becomes of these guesses of the text from place `start` on."""
        if guesses:
            self._watched.append((guesses[:_WATCHED], start))

    def saw(self, text: Sequence[int]) -> int:
        """The text went on; how many tokens of a guess came true, at most."""
        best, waiting = 0, []
        for watch in self._watched:
            came_true, decided = self._judge(*watch, text)
            best = max(best, came_true)
            if not decided:
                waiting.append(watch)
        self._watched = waiting
        return best

    def _judge(self, guesses: list[Guess], start: int, text: Sequence[int]) -> tuple[int, bool]:
        """How far a step's best guess came; all are counted once this is decided."""
        matched = [_matched(guess.tokens, text, start) for guess in guesses]
        most, known = max(matched), len(text) - start
        if most == known < len(guesses[0].tokens):
            return most, False
        best, parent = 0, self._parent
        for rank, count in enumerate(matched):
            guess, place = guesses[rank], min(rank, _RANKS - 1)
            context = min(guess.context, _CONTEXTS) - 1
            self._tallies[context][place].add(best, count)
            if parent is not None:
                parent._tallies[context][place].add(best, count)
            if count > best:
                self.from_window += (count - best) * guess.from_window
                best = count
        return most, True


def _matched(guess: tuple[int, ...], text: Sequence[int], start: int) -> int:
    if start == len(text) or text[start] != guess[0]:
        return 0
    count = 0
    for token, said in zip(guess, text[start : start + len(guess)], strict=False):
        if token != said:
            break
        count += 1
    return count
