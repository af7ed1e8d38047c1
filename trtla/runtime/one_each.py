"""One prompt or several, and settings that are given once for all of them or once for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from trtla.errors import UsageError

Prompt = str | Sequence[int]
"""A text, or token ids for models without a tokenizer."""

T = TypeVar("T")


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list."""
    if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    if not len(prompts):
        raise UsageError("there is no prompt", "give at least one")
    return list(prompts)  # type: ignore[arg-type]


def one_each(value: T | Sequence[T], number: int, what: str) -> list[T]:
    """A setting for each of `number` prompts; `what` is how an error calls it."""
    if not isinstance(value, (list, tuple)):
        return [value] * number  # type: ignore[list-item]
    if len(value) != number:
        raise UsageError(
            f"{len(value)} {what} for {number} prompts", "give one for all prompts, or one for each"
        )
    return list(value)
