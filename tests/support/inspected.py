"""The description of a folder by `trtla inspect`, which is an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.command import there, trtla


def inspected(folder: Path) -> dict[str, Any]:
    """The document of `trtla inspect`; empty where that command is missing."""
    return trtla("inspect", folder, "--json").json if there("inspect") else {}
