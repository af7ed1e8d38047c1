"""How often guesses come true, by context and rank, seen as the text goes on whether fed or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trtla.runtime.draft import Guess

_CONTEXTS, _RANKS = 3, 3
_FIRST_CHANCE = ((0.25, 0.08, 0.03), (0.45, 0.1, 0.04), (0.65, 0.12, 0.05))
"""Of a guess's first token, before anything was seen: [context][rank]."""
_FURTHER_CHANCE = (0.55, 0.7, 0.8)
"""Of each further token, given the one before: [context]."""
_PRIOR_WEIGHT = 6.0  # guesses that the chances of the sequences before count for
_WATCHED = 6  # guesses of a step that are followed up


@dataclass(slots=True)
class _Tally:
    """Guesses of one kind: how many were seen, and how many of them added their i-th token."""

    weight: float
    hits: list[float]
    parent: _Tally | None
    memory: float
    """What a guess counts after the next one of its kind was seen."""
    chances: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        self._settle()

    def add(self, start: int, end: int) -> None:
        """A guess was seen that added its tokens [start, end)."""
        memory = self.memory
        self.weight = self.weight * memory + 1.0
        self.hits = [hit * memory + (start <= place < end) for place, hit in enumerate(self.hits)]
        self._settle()

    def _settle(self) -> None:
        if self.parent is None:
            self.chances = tuple(hit / self.weight for hit in self.hits)
        else:
            total = self.weight + _PRIOR_WEIGHT
            self.chances = tuple(
                (hit + _PRIOR_WEIGHT * prior) / total
                for hit, prior in zip(self.hits, self.parent.chances, strict=True)
            )


@dataclass(slots=True)
class _Watch:
    """A step's guesses, waiting for the text that follows."""

    guesses: list[Guess]
    start: int


@dataclass(slots=True)
class Acceptance:
    """Chances of a sequence's guesses, with those of all sequences before as their prior.

    A guess counts for the tokens that no better guess of its step has, so the chances of several
    guesses add up.
    """

    tallies: list[list[_Tally]]
    parent: Acceptance | None = None
    from_window: int = 0
    """Tokens that came true and that only the window's n-grams had, counted up."""
    _watched: list[_Watch] = field(default_factory=list)
    _text: list[int] = field(default_factory=list)

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
        return Acceptance(
            [
                [_Tally(0.0, [0.0] * len(tally.hits), tally, 0.96) for tally in row]
                for row in self.tallies
            ],
            self,
        )

    def chances(self, context: int, rank: int) -> tuple[float, ...]:
        """The chance of each token of a guess to be accepted where better guesses fail."""
        return self.tallies[context - 1][min(rank, _RANKS - 1)].chances

    def watch(self, guesses: Sequence[Guess]) -> None:
        """Follow up what becomes of these guesses of the next tokens."""
        if guesses:
            self._watched.append(_Watch(list(guesses[:_WATCHED]), len(self._text)))

    def saw(self, tokens: Sequence[int]) -> int:
        """The text went on; how many tokens of a guess that this decided came true, at most."""
        if not self._watched:
            return 0
        self._text += tokens
        decided, waiting = 0, []
        for watch in self._watched:
            came_true = self._judge(watch)
            if came_true is None:
                waiting.append(watch)
            else:
                decided = max(decided, came_true)
        self._watched = waiting
        self._forget()
        return decided

    def _forget(self) -> None:
        """Drop text that nothing waits for."""
        start = self._watched[0].start if self._watched else len(self._text)
        del self._text[:start]
        for watch in self._watched:
            watch.start -= start

    def _judge(self, watch: _Watch) -> int | None:
        """Count a step's guesses once all are decided; how far the best came, None before that."""
        text = self._text[watch.start :]
        matched = [_matched(guess.tokens, text) for guess in watch.guesses]
        if len(text) < len(watch.guesses[0].tokens) and max(matched) == len(text):
            return None
        best = 0
        for rank, (guess, count) in enumerate(zip(watch.guesses, matched, strict=True)):
            tally = self.tallies[guess.context - 1][min(rank, _RANKS - 1)]
            tally.add(best, count)
            if tally.parent is not None:
                tally.parent.add(best, count)
            if guess.from_window:
                self.from_window += max(0, count - best)
            best = max(best, count)
        return best


def _matched(guess: tuple[int, ...], text: Sequence[int]) -> int:
    count = 0
    for ours, theirs in zip(guess, text, strict=False):
        if ours != theirs:
            break
        count += 1
    return count
