"""`trtla doctor`: what this machine can run, and whether a model runs on it.

The facts come from `trtla.doctor`; `cli.doctor_rows` makes the tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtla.cli.command import Command
from trtla.cli.options import json_flag
from trtla.console import Console
from trtla.errors import CheckFailed

if TYPE_CHECKING:
    from trtla.doctor.model import ModelCheck
    from trtla.doctor.report import Report

SCHEMA_VERSION = 1


@click.command(
    cls=Command,
    short_help="What this machine can run, and with which backend.",
    config=False,
    examples=["trtla doctor", "trtla doctor engine", "trtla doctor --json > machine.json"],
)
@click.argument("model", type=click.Path(), required=False)
@json_flag("Print one JSON document.")
@click.pass_obj
def doctor(console: Console, model: str | None) -> None:
    """Tell versions, GPUs, whether TensorRT-LLM has its TensorRT backend, and what to do about it.

    With MODEL, a Hugging Face model, checkpoint or engine folder, also whether it can run here with
    lookahead decoding; exit code 3 when not.
    """
    from trtla.doctor.report import examine

    if model is not None:
        _require_folder(model)
    report = examine()
    check = _check(model, report) if model is not None else None
    _show(console, report, check)
    if check is not None and check.problems:
        number = len(check.problems)
        raise CheckFailed(
            f"{model} cannot run here with {check.backend}: "
            f"{number} problem{'s' if number > 1 else ''}",
            _way_out(check),
        )


def _require_folder(model: str) -> None:
    """Tell of a wrong path at once, before the slow imports."""
    from trtla.formats.folder import folder_kind

    folder_kind(Path(model))


def _check(model: str, report: Report) -> ModelCheck:
    from trtla.doctor.model import check_model

    return check_model(model, report)


def _show(console: Console, report: Report, check: ModelCheck | None) -> None:
    from trtla.cli import doctor_rows as rows
    from trtla.doctor.report import document

    if console.json:
        found = {"schema_version": SCHEMA_VERSION, **document(report)}
        console.document({**found, "model": check and rows.check_document(check)})
        return
    console.table(("what", "value"), list(rows.machine_rows(report)))
    if check is not None:
        console.out()
        console.table(("model", "value"), list(rows.model_rows(check)))
        for problem in check.problems:
            console.out(f"problem: {problem}")
    for warning in (*report.warnings, *(check.warnings if check else ())):
        console.out(f"warning: {warning}")


def _way_out(check: ModelCheck) -> str:
    if check.backend != "tensorrt-llm":
        return "correct what is told above, or make the folder again; trtla inspect tells more"
    if check.kind == "engine":
        return "build an engine for this machine; --backend torch runs everywhere"
    return "build it with --backend torch, which runs everywhere"
