"""Tables of pages in docs that are made from declarations."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path


def assert_tables(page: Path, tables: Iterable[str]) -> None:
    """A page has these tables, each known by its first line; TRTLA_UPDATE_DOCS=1 writes them."""
    known = list(tables)
    if os.environ.get("TRTLA_UPDATE_DOCS"):
        page.write_text(_with(page.read_text(encoding="utf-8"), known), encoding="utf-8")
    text = page.read_text(encoding="utf-8")
    assert _with(text, known) == text, "set TRTLA_UPDATE_DOCS=1 to regenerate"
    assert all(table in text for table in known)


def _with(text: str, tables: Iterable[str]) -> str:
    for table in tables:
        head = re.escape(table.partition("\n")[0])
        new = table.replace("\\", r"\\") + "\n"
        text = re.sub(rf"^{head}\n(\|.*\n)+", new, text, flags=re.MULTILINE)
    return text
