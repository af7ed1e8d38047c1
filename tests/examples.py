"""How many examples Hypothesis makes: all of them in CI, a quarter on a developer's machine."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

_SHARE = 1 if os.environ.get("CI") == "true" else 4


def examples(most: int, **more: Any) -> settings:
    """Settings of a test that makes this many examples in CI; `more` are Hypothesis's own."""
    return settings(max_examples=-(-most // _SHARE), **more)
