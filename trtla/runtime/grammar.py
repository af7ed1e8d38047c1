"""The tokens that may follow a text, by the grammar of its request.

The state follows the text, and runs ahead along paths of drafts and back: no mask is computed twice
in a step. Masks are computed by `llguidance`'s matcher, made where the tokenizer is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter, thread_time
from typing import Protocol

import numpy as np
from numpy import ndarray

from trtla.errors import first_line

_WORD = 32
"""Tokens in an integer of a mask."""
_MOST_S = 0.25
"""Of this processor for a mask: ambiguous rules take ever longer, while all other texts wait."""


class Matcher(Protocol):
    """`llguidance.LLMatcher`, as far as it is used."""

    def compute_bitmask(self) -> bytes: ...
    def compute_ff_tokens(self) -> list[int]: ...
    def try_consume_tokens(self, tokens: list[int]) -> int: ...
    def validate_tokens(self, tokens: list[int]) -> int: ...
    def rollback(self, num_tokens: int) -> bool: ...
    def is_error(self) -> bool: ...
    def get_error(self) -> str: ...
    def deep_copy(self) -> Matcher: ...


class CompiledGrammar:
    """A grammar's matcher at the beginning of an output, whose copies share one lexer.

    A lexer that has reached its limit of states, for any of its texts, cannot be used again.

    Args:
        compiled: compiles the grammar.
    """

    def __init__(self, compiled: Callable[[], Matcher]) -> None:
        self._compiled = compiled
        self.matcher = compiled()

    def renew(self, spent: Matcher) -> Matcher:
        """Return a fresh matcher in place of one whose copies have given up."""
        if self.matcher is spent:
            self.matcher = self._compiled()
        return self.matcher


class GrammarState:
    """The grammar of one request behind its output.

    If a matcher gives up, since drafts or other texts have filled its lexer, a new one reads the
    output again. So it depends on the path alone whether a mask can be computed.

    Args:
        grammar: the grammar of the whole output.
        end_ids: the tokens that may follow a text that has ended.
        vocab_size: of the model's logits.
    """

    def __init__(self, grammar: CompiledGrammar, end_ids: Sequence[int], vocab_size: int) -> None:
        self._grammar, self._original = grammar, grammar.matcher
        self._matcher = self._original.deep_copy()
        self._output: list[int] = []  # that was read
        self._ahead: list[int] = []  # tokens behind it that were read
        self._ended = False
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
    def gave_up(self) -> bool:
        """True if any mask was given up, be it a draft's."""
        return bool(self._failures)

    def follow(self, output_ids: Sequence[int]) -> GrammarState:
        """Read the new tokens of the output."""
        new = list(output_ids[len(self._output) :])
        if new:
            self._ended = self._refuses(new)  # behind an end token
            if self._ended and not allows(self._ends, new[-1]):
                self._ends = self._none  # the mask was wrong: no token is what must follow
            self._output, self._ahead = list(output_ids), self._ahead[len(new) :]
            self._masks = {
                path[len(new) :]: mask
                for path, mask in self._masks.items()
                if path[: len(new)] == tuple(new)
            }
        return self

    def mask(self, path: tuple[int, ...] = ()) -> ndarray | None:
        """The tokens that may follow output and path, a bit each, uint32 [words].

        Returns:
            None where a mask forbids the path itself. No bit is set where nothing may follow, or
            where that takes too much computing: `failure` has the reason behind the output.
        """
        if path not in self._masks:
            self._masks[path] = self._ends if self._ended else self._computed(path)
        return self._masks[path]

    def _computed(self, path: tuple[int, ...]) -> ndarray | None:
        for attempt in range(2):
            if attempt:
                self._renew()
            if self._refuses(path):
                return self._none if self._let(path) else None
            started = perf_counter()
            mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
            if perf_counter() - started > _MOST_S and self._mask_s() > _MOST_S:
                return self._too_much(path, f"more than {_MOST_S} s for a token")
            if not self._matcher.is_error():
                return self._fitted(mask)
            reason = first_line(self._matcher.get_error())
            if reason.lower().startswith("parser error"):  # which a new lexer does not change
                break
        return self._none if reason.startswith("NoExtension") else self._too_much(path, reason)

    def _mask_s(self) -> float:
        """Return the seconds of this processor for the mask, which other work cannot lengthen."""
        started = thread_time()
        self._matcher.compute_bitmask()
        return thread_time() - started

    def _too_much(self, path: tuple[int, ...], reason: str) -> ndarray:
        text = (*self._output, *path)
        self._failures[text] = f"it takes too much computing ({reason})"
        return self._none

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
        if self._ended:
            return 0
        self._moved(())
        return self._matcher.validate_tokens(list(path))

    def forced(self, path: tuple[int, ...] = ()) -> list[int]:
        """The tokens that must come behind output and path, as the tokenizer writes them."""
        return self._matcher.compute_ff_tokens() if not self._ended and self._moved(path) else []

    def _moved(self, path: Sequence[int]) -> bool:
        """Move the matcher behind output and path; False if the grammar forbids the path."""
        if self._matcher.is_error():
            self._renew()
        ahead, target = self._ahead, list(path)
        common = 0
        while common < min(len(ahead), len(target)) and ahead[common] == target[common]:
            common += 1
        if len(ahead) > common:
            self._matcher.rollback(len(ahead) - common)
            del ahead[common:]
        count = self._matcher.try_consume_tokens(target[common:])
        ahead += target[common : common + count]
        return len(ahead) == len(target)

    def _refuses(self, path: Sequence[int]) -> bool:
        """Return True if the grammar forbids the path; False as well if the matcher gives up."""
        if self._moved(path):
            return False
        self._matcher.compute_bitmask()  # a full lexer refuses everything: only a mask says why
        return not self._matcher.is_error()

    def _renew(self) -> None:
        self._original = self._grammar.renew(self._original)
        self._matcher, self._ahead = self._original.deep_copy(), []
        if self._matcher.try_consume_tokens(self._output) < len(self._output):
            self._matcher.compute_bitmask()  # it says that it gives up


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
