"""How many examples Hypothesis makes: all of them in CI, a quarter on a developer's machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import settings

T = TypeVar("T")
_SHARE = 1 if os.environ.get("CI") == "true" else 4


def share(count: int) -> int:
    """Of so many repetitions all in CI, a quarter on a developer's machine."""
    return -(-count // _SHARE)


def examples(most: int, **more: Any) -> settings:
    """Settings of a test that makes this many examples in CI; `more` are Hypothesis's own."""
    return settings(max_examples=share(most), **more)


def some(cases: Sequence[T]) -> Sequence[T]:
    """All cases in CI, every fourth on a developer's machine."""
    return cases[::_SHARE]
