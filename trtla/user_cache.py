"""The user's folder for what is made once and kept: cost tables, the CPU's compiled forward."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """`$XDG_CACHE_HOME/trtla`, else `~/.cache/trtla`; it need not be there."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtla"
