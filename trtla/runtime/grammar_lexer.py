"""The lexer of a compiled grammar, which its texts share, and the fuel that it has burnt.

`llguidance` allots the same fuel to every mask, and spends it on what its lexer has not met. So a
lexer's past can let a mask succeed or fail, while a text has to end by its ids alone. What decides
is a fresh lexer of ample limits that has read these ids only. A used lexer's mask stands for it as
long as the used one has burnt less in its whole life than the fresh one may for one mask: there is
nothing to do for that which the used one has not done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol

from trtla.errors import UsageError, first_line

STEP_FUEL = 1 << 15
"""The fuel of a lexer for one mask: ordinary masks burn up to 6000, in 0.1 ms."""
LIFE_FUEL = 64 * STEP_FUEL
"""The fuel of a lexer in its life, in which it grows by up to 12 MB."""
AMPLE_FUEL = 2 * LIFE_FUEL
"""For the mask that decides: twice a life, since `llguidance` also learns what burns no fuel."""
_WINDOW = 64
"""Tokens that are read with one mask's fuel, at multiples of it in the text."""
_NO_TOKEN = 1 << 31
_COUNTS = "\nParser: "
_NO_COUNTS = {"fuel": 0}


class Matcher(Protocol):
    """`llguidance.LLMatcher`, as far as it is used."""

    def compute_bitmask(self) -> bytes: ...
    def compute_ff_tokens(self) -> list[int]: ...
    def try_consume_tokens(self, tokens: list[int]) -> int: ...
    def consume_token(self, sampled_token: int) -> bool: ...
    def validate_tokens(self, tokens: list[int]) -> int: ...
    def is_error(self) -> bool: ...
    def get_error(self) -> str: ...
    def deep_copy(self) -> Matcher: ...


class Lexer:
    """The lexer of one compiled matcher, whose copies all use it.

    Args:
        begun: the matcher at the beginning of an output.
        ample: it has the limits that decide, twice the usual ones.
    """

    def __init__(self, begun: Matcher, *, ample: bool) -> None:
        self.ample = ample
        self._begun = begun
        self._step_fuel = AMPLE_FUEL if ample else STEP_FUEL
        self.count_from(begun)
        mask = int.from_bytes(begun.compute_bitmask(), "little")
        self._first = (mask & -mask).bit_length() - 1
        """A token that texts begin with."""

    def start(self) -> Matcher:
        """Return a matcher at the beginning of an output."""
        return self._begun.deep_copy()

    def error(self) -> str:
        """The reason why the lexer has given up, be it for another text; empty: it has not."""
        probe = self.start()
        probe.consume_token(self._first)
        error = first_line(probe.get_error()) if probe.is_error() else ""
        return error if error.startswith("lexer error") else ""

    def count_from(self, matcher: Matcher) -> None:
        """Count the fuel that is burnt from here on: all before was burnt by reading a text."""
        self._spent_before = (_counts(matcher) or _NO_COUNTS)["fuel"]
        self._burnt = self._masks = 0
        """Fuel that was counted, and masks since."""

    def read(self, matcher: Matcher, tokens: Sequence[int], place: int) -> int:
        """Read tokens from a place in the text; return how many the grammar has allowed."""
        done = 0
        while done < len(tokens):
            part = list(tokens[done : done + _WINDOW - (place + done) % _WINDOW])
            count = matcher.try_consume_tokens(part)
            done += count
            if count < len(part):
                break
            if (place + done) % _WINDOW == 0:
                self.mask(matcher)
        return done

    def mask(self, matcher: Matcher) -> tuple[bytes, bool]:
        """Return a matcher's mask, and True if it stands for a fresh lexer's."""
        self._masks += 1
        if self._burnt + self._masks * self._step_fuel <= LIFE_FUEL:
            return matcher.compute_bitmask(), True
        before = _counts(matcher)
        mask = matcher.compute_bitmask()
        after = _counts(matcher)
        if before is None or after is None:  # it has given up
            return mask, False
        if before["walked"] == after["walked"]:  # it was forced, or known, and burnt nothing
            self._masks -= 1
        else:
            self._burnt, self._masks = after["fuel"] - self._spent_before, 0
        return mask, self._burnt <= LIFE_FUEL - LIFE_FUEL // 8


def _counts(matcher: Matcher) -> dict[str, int] | None:
    """What a matcher's masks have walked, and its lexer's fuel at the last of them; None: unknown.

    Only its description has them, and only an error shows that.
    """
    if matcher.is_error():
        return None
    copy = matcher.deep_copy()
    copy.consume_token(_NO_TOKEN)
    text = copy.get_error()
    try:
        counts = json.JSONDecoder().raw_decode(text, text.index(_COUNTS) + len(_COUNTS))[0]
        walked = counts["trie_nodes_walked"] + counts["slices_applied"]
        return {"walked": walked, "fuel": counts["lexer_cost"]}
    except (ValueError, KeyError):  # another release's: no used lexer stands for a fresh one then
        return None


class CompiledGrammar:
    """A grammar and the lexer that new texts begin with.

    Args:
        compiled: compiles the grammar, with ample limits if its argument is true.
    """

    def __init__(self, compiled: Callable[[bool], Matcher]) -> None:
        self._compiled = compiled
        self.lexer = self._first()

    def _first(self) -> Lexer:
        try:
            return self.fresh(ample=False)
        except UsageError:
            return self.fresh(ample=True)

    def fresh(self, *, ample: bool) -> Lexer:
        """Return a lexer that knows no text."""
        return Lexer(self._compiled(ample), ample=ample)

    def retire(self, spent: Lexer) -> None:
        """Have new texts begin with another lexer than this one."""
        if self.lexer is spent:
            self.lexer = self._first()
