"""Evidence for a proposed token in plain Python: the oracle of `native/rows.h` and `chances.h`."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.support.plain_trees.texts import Texts
from trtla.runtime.draft import TopRows
from trtla.settings.drafting import PROPOSERS


@dataclass(frozen=True, slots=True)
class Row:
    """The most probable tokens after some text, best first."""

    ids: tuple[int, ...]
    logs: tuple[float, ...]
    """Logarithms of their probabilities."""

    @classmethod
    def of(cls, ids: Sequence[int], logs: Sequence[float]) -> Row:
        count = ids.index(-1) if -1 in ids else len(ids)
        return cls(tuple(ids[:count]), tuple(logs[:count]))

    def rounded(self) -> Row:
        return Row(
            self.ids, tuple(int(min(65534.0, max(0.0, -256.0 * log))) / -256.0 for log in self.logs)
        )

    def among(self, allowed: Sequence[int] | None, vocab: int) -> tuple[Row, float]:
        """The row without tokens that a grammar forbids, and the likelihood of all others."""
        rest = 1.0
        for log in self.logs:
            rest -= math.exp(log)
        if allowed is None:
            return self, rest
        kept = [at for at, token in enumerate(self.ids) if token in allowed]
        row = Row(tuple(self.ids[at] for at in kept), tuple(self.logs[at] for at in kept))
        return row, rest * len(allowed) / vocab


def scores_of(
    row: Row, rest: float, small: Sequence[float], heat: float, vocab: int
) -> list[float]:
    """Each token's share if the row is right: its likelihood, weighted by its noise."""
    scores = [math.exp(log / heat) / noise for log, noise in zip(row.logs, small, strict=True)]
    total = 0.0
    for score in scores:
        total += score
    # Tokens that are not kept: as if each were a tenth as likely as the last one kept.
    least = math.exp(row.logs[-1]) / 10.0 if row.logs else 0.0
    if rest > 0.0 and least > 0.0:
        total += min(rest / least, float(vocab)) * math.exp(math.log(least) / heat)
    total = max(total, 1e-300)  # 0 where what is left of a row is impossible
    return [score / total for score in scores]


_SETS_BITS, _WAYS = 15, 4


class RowTables:
    """What the target held for likely after a token, and after two; the former for all tokens."""

    def __init__(self) -> None:
        self._after_one: dict[int, Row] = {}
        self._after_two: dict[int, dict[tuple[int, int], Row]] = {}
        """Sets of a few pairs, the one that was written longest ago first."""

    def after(self, token: int) -> Row | None:
        return self._after_one.get(token)

    def after_pair(self, before: int, token: int) -> Row | None:
        return self._after_two.get(_set_of(before, token), {}).get((before, token))

    def learn(self, before: int, token: int, row: Row) -> None:
        """Keep a row.

        Args:
            before: the token before `token`; -1: there is none.
        """
        self._after_one[token] = kept = row.rounded()
        if before < 0:
            return
        entries = self._after_two.setdefault(_set_of(before, token), {})
        if entries.pop((before, token), None) is None and len(entries) == _WAYS:
            del entries[next(iter(entries))]
        entries[before, token] = kept


def _set_of(before: int, token: int) -> int:
    mixed = (before << 32 | token) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    return mixed >> 64 - _SETS_BITS


_DEPTHS, _LENGTHS, _SHARES, _NOISES, _RANKS, _SCORES = 4, 8, 4, 5, 5, 8
_DEPTH_BOUNDS = (2, 4, 8)
_LENGTH_BOUNDS = (1, 2, 3, 4, 6, 9, 16)
_NOISE_BOUNDS = (0.2, 0.6, 1.5)
_SCORE_BOUNDS = (0.02, 0.06, 0.15, 0.3, 0.5, 0.7, 0.9)
_VALUE_BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7)
# Weights before anything was learnt, in log odds: near what SmolLM2 taught on Spec-Bench.
_BY_LENGTH = (0.0, -1.1, -0.7, 0.0, 0.5, 1.1, 1.5, 2.5)
_BY_SHARE = (0.0, 0.2, -0.9, -1.3)
_BY_KIND = (  # context, expected, requests, window, chain, grammar; by depth
    (0.9, 0.7, 0.3, 0.1),
    (0.9, 0.8, 0.8, 0.8),
    (-0.2, -0.2, 0.0, 0.2),
    (-0.8, -0.8, -0.8, -0.8),
    (0.0, 0.0, 0.0, 0.0),
    (1.0, 1.0, 1.0, 1.0),
)
_BY_NOISE = (0.0, 0.2, -0.2, -0.3, -0.9)
_BY_SCORE = (-3.2, -2.9, -2.2, -1.8, -1.4, -1.0, -0.8, -0.5)
_BY_ORDER = (  # after two tokens, after one, after one beside two, next-next; by depth
    (0.0, 0.2, 0.6, 0.6),
    (-0.1, -0.3, 0.0, 0.0),
    (-0.5, -0.5, -0.5, -0.5),
    (-1.0, -1.0, -1.0, -1.0),
)
_AGREED = (2.8, 2.1, 1.6, 1.3, 1.1, 1.0, 1.0, 0.9)  # by score, as the next two
_TEXT_ALONE = (0.0, -0.3, -0.5, -1.0, -1.2, -1.2, -1.3, -1.2)
_ROW_ALONE = (0.0, -0.1, -0.2, -0.3, -0.4, -0.6, -0.9, -1.2)
_ALONE_OR_NOT = (_AGREED, _TEXT_ALONE, _ROW_ALONE)


def share_class(own: int, every: int) -> int:
    if every == 1:
        return 0
    return 1 if 10 * own >= 7 * every else 2 if 10 * own >= 4 * every else 3


@dataclass(slots=True)
class Facts:
    """All that is known of a proposed token when its chance is asked for."""

    depth: int
    drawn: bool
    """Whether rows are ranked with the noise of a sampled request."""
    kind: int = -1
    """Of text; -1: none proposes it."""
    match: int = 0
    share: int = 0
    smallness: float = 1.0
    order: int = -1
    """Of row; -1: none proposes it."""
    rank: int = 0
    score: float = 0.0
    other_match: int = 0
    """The longest match of any text here."""
    other_score: float = -1.0
    """The score of the first row's best token; -1: there is no row."""


def weights_of(facts: Facts) -> tuple[int, ...]:
    found: list[int] = []
    depth, length = bisect_right(_DEPTH_BOUNDS, facts.depth), _length_class(facts.match)
    if facts.kind >= 0:
        found.append(_TEXT + length * _SHARES + facts.share)
        found.append(_TEXT_KIND + facts.kind * _DEPTHS + depth)
        if facts.drawn:
            noise = 1 + bisect_right(_NOISE_BOUNDS, facts.smallness)
            found.append(_TEXT_NOISE + noise * _LENGTHS + length)
    if facts.order >= 0:
        score = _score_class(facts.score)
        rank = facts.drawn * _RANKS + min(facts.rank, _RANKS - 1)
        found.append(_ROW + rank * _SCORES + score)
        found.append(_ROW_ORDER + facts.order * _DEPTHS + depth)
        if facts.kind >= 0:
            found.append(_AGREE + length * _SCORES + score)
        elif facts.other_match:
            found.append(_ROW_ONLY + _length_class(facts.other_match) * _SCORES + score)
    elif facts.kind >= 0 and facts.other_score >= 0.0:
        found.append(_TEXT_ONLY + length * _SCORES + _score_class(facts.other_score))
    return tuple(found)


def _length_class(match: int) -> int:
    return bisect_right(_LENGTH_BOUNDS, match)


def _score_class(score: float) -> int:
    return bisect_right(_SCORE_BOUNDS, score)


def _first_weights() -> list[list[float]]:
    lengths = range(_LENGTHS)
    text = [0.0] * _SHARES
    text += [_BY_LENGTH[length] + share for length in lengths[1:] for share in _BY_SHARE]
    return [
        text,
        [weight for kind in _BY_KIND for weight in kind],
        [weight for weight in _BY_NOISE for _ in lengths],
        [weight for _ in range(2 * _RANKS) for weight in _BY_SCORE],
        [weight for order in _BY_ORDER for weight in order],
        *([weight for _ in lengths for weight in group] for group in _ALONE_OR_NOT),
        [0.0] * ((len(_VALUE_BOUNDS) + 1) * len(PROPOSERS)),
    ]


FIRST_WEIGHTS = [weight for group in _first_weights() for weight in group]
_STARTS = [sum(map(len, _first_weights()[:group])) for group in range(9)]
_TEXT, _TEXT_KIND, _TEXT_NOISE, _ROW, _ROW_ORDER, _AGREE, _TEXT_ONLY, _ROW_ONLY = _STARTS[:8]
_CORRECTION = _STARTS[8]


def correction_of(value: float, source: int) -> int:
    """The weight that corrects the value of a node.

    A path is as likely as its steps together only where these are independent, and of many
    estimates the highest is rather too high.

    Args:
        value: the product of the chances down to the node.
        source: what proposes it, a place in PROPOSERS.
    """
    return _CORRECTION + bisect_right(_VALUE_BOUNDS, value) * len(PROPOSERS) + source


class Chances:
    """How likely proposals are: a logistic model of what speaks for them.

    It learns at every committed token from all that was proposed there, whether it was fed or not.

    Args:
        shared: of all requests, which learn at the same time; this one's own weights are added.
    """

    def __init__(self, shared: Chances | None = None) -> None:
        nothing = [0.0] * len(FIRST_WEIGHTS)
        self._weights: list[float] = nothing if shared else list(FIRST_WEIGHTS)
        self._shared: list[float] = shared._weights if shared else nothing
        self._sums = [0.0] * len(FIRST_WEIGHTS)

    def of(self, weights: Iterable[int]) -> float:
        odds = 0.0
        for place in weights:
            odds += self._shared[place] + self._weights[place]
        return _chance(odds)

    def corrected(self, value: float, correction: int) -> float:
        own = min(self._shared[correction] + self._weights[correction], 700.0)  # no infinite odds
        odds = value / (1.0 - value) * math.exp(own)
        return odds / (1.0 + odds)

    def learn(self, weights: Iterable[int], hit: bool, rate: float) -> None:
        self.change(weights, hit - self.of(weights), rate)

    def change(self, weights: Iterable[int], error: float, rate: float) -> None:
        for place in weights:
            self._sums[place] += error * error
            self._weights[place] += rate * error / math.sqrt(1.0 + self._sums[place])


CERTAIN = 0.998


def _chance(odds: float) -> float:
    return max(1e-4, min(CERTAIN, 1.0 / (1.0 + math.exp(min(-odds, 700.0)))))


class Shared:
    """What the trees of all requests share."""

    def __init__(self, vocab_size: int, most_tokens: int) -> None:
        self.vocab_size = vocab_size
        self.rows, self.others, self.chances = RowTables(), Texts(most_tokens), Chances()


def rows_of(rows: TopRows) -> list[Row]:
    return [Row.of(*pair) for pair in zip(rows.ids.tolist(), rows.logs.tolist(), strict=True)]
