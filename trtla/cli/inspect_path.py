"""`trtla inspect`: what a folder is, its shape and limits, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trtla.cli.command import Command
from trtla.cli.options import json_flag
from trtla.console import Console
from trtla.errors import CheckFailed

SCHEMA_VERSION = 1


@click.command(
    "inspect",
    cls=Command,
    short_help="What a model, checkpoint or engine folder is.",
    config=False,
    examples=["trtla inspect engine", "trtla inspect llama-3-8b --json"],
)
@click.argument("path", type=click.Path())
@json_flag("Print one JSON document.")
@click.pass_obj
def inspect_path(console: Console, path: str) -> None:
    """Tell what a folder is: Hugging Face model, checkpoint or engine.

    Prints shape, dtype, sizes, limits and the lookahead triple, and what is wrong with it (exit
    code 3).
    """
    from trtla.doctor.folder import inspect

    found = inspect(Path(path))
    problems = found["problems"]
    if console.json:
        console.document({"schema_version": SCHEMA_VERSION, **found})
    else:
        console.table(("what", "value"), _flat({**found, "problems": len(problems)}))
        for problem in problems:
            console.out(f"problem: {problem}")
    if problems:
        raise CheckFailed(
            f"{path} has {len(problems)} problem{'s' if len(problems) > 1 else ''}",
            "make the folder again, or copy the files again",
        )


def _flat(value: Any, prefix: str = "") -> list[tuple[str, object]]:
    """Nested dictionaries as rows of dotted names."""
    rows: list[tuple[str, object]] = []
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, dict):
            rows += _flat(item, f"{name}.")
        elif isinstance(item, list | tuple):
            rows.append((name, ", ".join(map(str, item))))
        else:
            rows.append((name, item))
    return rows
