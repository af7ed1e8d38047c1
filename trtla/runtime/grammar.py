"""The tokens that may follow a text, by the grammar of its request.

The state follows the text, and runs ahead along paths of drafts and back: no mask is computed twice
in a step. Masks are computed by `llguidance`'s matcher, made where the tokenizer is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy import ndarray

from trtla.errors import TrtlaError, first_line

_WORD = 32
"""Tokens in an integer of a mask."""


class Matcher(Protocol):
    """`llguidance.LLMatcher`, as far as it is used."""

    def compute_bitmask(self) -> bytes: ...
    def compute_ff_tokens(self) -> list[int]: ...
    def try_consume_tokens(self, tokens: list[int]) -> int: ...
    def validate_tokens(self, tokens: list[int]) -> int: ...
    def rollback(self, num_tokens: int) -> bool: ...
    def is_error(self) -> bool: ...
    def get_error(self) -> str: ...


class GrammarState:
    """The grammar of one request behind its output.

    Args:
        matcher: at the beginning of the output.
        end_ids: the tokens that may follow a text that has ended.
        vocab_size: of the model's logits.
    """

    def __init__(self, matcher: Matcher, end_ids: Sequence[int], vocab_size: int) -> None:
        self._matcher = matcher
        self._length = 0  # output tokens that were read
        self._ahead: list[int] = []  # tokens behind them that were read
        self._ended = False
        self._ends = _bits(end_ids, vocab_size)
        self._words = len(self._ends)
        self._masks: dict[tuple[int, ...], ndarray | None] = {}
        """Masks by path, since the output last grew."""

    def follow(self, output_ids: Sequence[int]) -> GrammarState:
        """Read the new tokens of the output."""
        new = list(output_ids[self._length :])
        if new:
            if not self._moved(new):
                self._ended = True  # an end token has come, and more behind it
            self._length, self._ahead = len(output_ids), self._ahead[len(new) :]
            self._masks = {
                path[len(new) :]: mask
                for path, mask in self._masks.items()
                if path[: len(new)] == tuple(new)
            }
        return self

    def mask(self, path: tuple[int, ...] = ()) -> ndarray | None:
        """The tokens that may follow output and path, a bit each, uint32 [words].

        Returns:
            None where the grammar does not allow the path itself.

        Raises:
            TrtlaError: the grammar takes too much computing here.
        """
        if path not in self._masks:
            self._masks[path] = self._computed(path)
        return self._masks[path]

    def _computed(self, path: tuple[int, ...]) -> ndarray | None:
        if self._ended:
            return self._ends
        if not self._moved(path):
            return None
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        if self._matcher.is_error():
            raise TrtlaError(
                f"the grammar cannot go on: {first_line(self._matcher.get_error())}",
                "simplify it",
            )
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


GrammarStart = Callable[[], GrammarState]
"""Makes the state of a request at the beginning of its output."""


def _bits(ids: Sequence[int], vocab_size: int) -> ndarray:
    mask = np.zeros((vocab_size + _WORD - 1) // _WORD, np.uint32)
    for token in ids:
        mask[token // _WORD] |= np.uint32(1 << token % _WORD)
    return mask


def allowed_tokens(mask: ndarray, vocab_size: int) -> ndarray:
    """A mask as booleans, [vocab]."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little", count=vocab_size)
    booleans: ndarray = bits.view(bool)
    return booleans
