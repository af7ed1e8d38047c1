"""The tokens that may follow a text, by the grammar of its request.

The state follows the text, and a copy of its matcher runs ahead along paths of drafts: no mask is
computed twice in a step. Masks are computed by `llguidance`'s matcher, made where the tokenizer is
known. No matcher goes back: it would take its last mask for that of another path as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy import ndarray

from trtla.errors import first_line
from trtla.runtime.grammar_lexer import CompiledGrammar, Matcher

_WORD = 32
"""Tokens in an integer of a mask."""
_NOTHING = "NoExtension"
"""The name in an error: the tokenizer has no token that continues the text."""
_OF_ALL = (_NOTHING, "Parser Error: Current row")
"""Errors that no lexer changes."""


class GrammarState:
    """The grammar of one request behind its output.

    Args:
        grammar: the grammar of the whole output.
        end_ids: the tokens that may follow a text that has ended.
        vocab_size: of the model's logits.
    """

    def __init__(self, grammar: CompiledGrammar, end_ids: Sequence[int], vocab_size: int) -> None:
        self._grammar, self._lexer = grammar, grammar.lexer
        self._matcher = self._lexer.start()
        self._output: list[int] = []  # that was read
        self._scout: Matcher | None = None  # a copy ahead of the output
        self._ahead: tuple[int, ...] = ()  # that the scout has read
        self._ended = self._strained = False
        self._ends = _bits(end_ids, vocab_size)
        self._words = len(self._ends)
        self._none = np.zeros_like(self._ends)
        self._masks: dict[tuple[int, ...], ndarray | None] = {}
        """Masks by path, since the output last grew."""
        self._failures: dict[tuple[int, ...], str] = {}
        """Reasons why a mask was given up, by all tokens in front of it."""

    @property
    def failure(self) -> str:
        """The reason why the mask behind the output was given up; empty if it was not."""
        return self._failures.get(tuple(self._output), "")

    @property
    def is_dear(self) -> bool:
        """True once a mask, be it a draft's, took more than a step has: no draft is worth that."""
        return self._strained or self._lexer.ample

    def follow(self, output_ids: Sequence[int]) -> GrammarState:
        """Read the new tokens of the output."""
        new = tuple(output_ids[len(self._output) :])
        if new:
            self._ended = self._ended or self._read(new)  # behind an end token
            if self._ended and not allows(self._ends, new[-1]):
                self._ends = self._none  # the mask was wrong: no token is what must follow
            self._output = list(output_ids)
            self._masks = {
                path[len(new) :]: mask
                for path, mask in self._masks.items()
                if path[: len(new)] == new
            }
        return self

    def _read(self, new: tuple[int, ...]) -> bool:
        """Move the matcher behind new tokens of the output; True if the grammar forbids them."""
        if self._ahead == new and self._scout is not None:
            self._matcher, self._scout, self._ahead = self._scout, None, ()
            return False
        if self._ahead[: len(new)] == new:
            self._ahead = self._ahead[len(new) :]
        else:
            self._scout, self._ahead = None, ()
        count = self._lexer.read(self._matcher, new, len(self._output))
        return count < len(new) and not self._error(self._matcher)

    def mask(self, path: tuple[int, ...] = ()) -> ndarray | None:
        """The tokens that may follow output and path, a bit each, uint32 [words].

        Returns:
            None where a mask forbids the path itself. No bit is set where nothing may follow, or
            where that takes too much computing: `failure` has the reason behind the output.
        """
        if path not in self._masks:
            self._masks[path] = self._ends if self._ended else self._computed(path)
        return self._masks[path]

    def draft_mask(self, path: tuple[int, ...]) -> ndarray | None:
        """The mask behind a draft that is not fed yet; None as well where that takes too much."""
        if not path or self._ended or path in self._masks:
            return self.mask(path)
        if self.is_dear:
            return None
        mask, reason, stands = self._attempt(path)
        self._strained |= bool(reason)
        if reason or not stands:
            return None
        self._masks[path] = mask
        return mask

    def _computed(self, path: tuple[int, ...]) -> ndarray | None:
        """Compute a mask by the lexer at hand or a fresh one; one of ample limits decides."""
        mask, reason, stands = self._attempt(path)
        for ample in (True,) if self._lexer.ample else (False, True):
            if stands or reason.startswith(_OF_ALL):
                break
            self._renew(ample)
            mask, reason, _ = self._attempt(path)
            stands = not reason
        if not reason:
            return mask
        if not reason.startswith(_NOTHING):
            text = (*self._output, *path)
            self._failures[text] = f"it takes too much computing ({reason})"
        return self._none

    def _attempt(self, path: tuple[int, ...]) -> tuple[ndarray | None, str, bool]:
        """Compute a mask by the lexer at hand.

        Returns:
            The mask, the reason why it gives up, and True if a fresh lexer gives the same.
        """
        matcher = self._at(path)
        if matcher is None:
            if self._scout is not None and (reason := self._error(self._scout)):
                return None, reason, False
            return (self._none if self._let(path) else None), "", True
        written, stands = self._lexer.mask(matcher)
        mask = np.frombuffer(written, np.uint32)
        # a lexer that has given up, maybe for another text, takes tokens for forced ones
        unsure = matcher.is_error() or np.count_nonzero(mask) == 1
        reason = self._error(matcher) if unsure else ""
        return (None if reason else self._fitted(mask)), reason, stands and not reason

    def _error(self, matcher: Matcher) -> str:
        """The error of a matcher or its lexer, which refuses all tokens then; empty: none."""
        return first_line(matcher.get_error()) if matcher.is_error() else self._lexer.error()

    def _let(self, path: tuple[int, ...]) -> bool:
        """Return True if the path's last mask allowed it, wrongly: no token can follow there."""
        before = self.mask(path[:-1])
        return before is not None and allows(before, path[-1])

    def _fitted(self, mask: ndarray) -> ndarray:
        if len(mask) == self._words:
            return mask
        wide = np.zeros(self._words, np.uint32)  # the model has more tokens than the tokenizer
        wide[: len(mask)] = mask[: self._words]
        return wide

    def allowed(self, path: Sequence[int]) -> int:
        """The number of the path's tokens that the grammar allows behind the output."""
        return 0 if self._ended else self._matcher.validate_tokens(list(path))

    def forced(self, path: tuple[int, ...] = ()) -> list[int]:
        """The tokens that must come behind output and path, as the tokenizer writes them."""
        matcher = None if self._ended else self._at(path)
        return [] if matcher is None else matcher.compute_ff_tokens()

    def _at(self, path: tuple[int, ...]) -> Matcher | None:
        """The matcher behind output and path; None if it refuses the path."""
        if not path:
            return self._matcher
        scout = self._scout
        if scout is None or scout.is_error() or path[: len(self._ahead)] != self._ahead:
            scout, self._ahead = self._matcher.deep_copy(), ()
        self._scout, new = scout, path[len(self._ahead) :]
        count = self._lexer.read(scout, new, len(self._output) + len(self._ahead))
        self._ahead += new[:count]
        return scout if count == len(new) else None

    def _renew(self, ample: bool) -> None:
        """Read the output again by a fresh lexer, which no other text uses."""
        self._grammar.retire(self._lexer)
        self._lexer = self._grammar.fresh(ample=ample)
        self._matcher, self._scout, self._ahead = self._lexer.start(), None, ()
        self._lexer.read(self._matcher, self._output, 0)
        self._lexer.count_from(self._matcher)


GrammarStart = Callable[[], GrammarState]
"""Makes the state of a request at the beginning of its output."""


def allows(mask: ndarray, token: int) -> bool:
    """Return True if a mask has the token's bit."""
    return bool(mask[token // _WORD] >> token % _WORD & 1)


def _bits(ids: Sequence[int], vocab_size: int) -> ndarray:
    mask = np.zeros((vocab_size + _WORD - 1) // _WORD, np.uint32)
    for token in ids:
        mask[token // _WORD] |= np.uint32(1 << token % _WORD)
    return mask
