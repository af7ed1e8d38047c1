"""`trtla doctor`: what this machine can run, and whether a model does; `trtla inspect`: a folder.

The facts come from `trtla.doctor`; `cli.doctor_rows` makes the tables.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.shared.command import Command
from trtla.cli.shared.options import PATH, json_flag, model_argument, model_flag
from trtla.console import Console, counted, size
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
@model_argument()
@model_flag(type=PATH, required=False)
@json_flag("Print one JSON document.")
@click.pass_obj
def doctor(console: Console, engine_dir: str | None) -> None:
    """Show versions, GPUs, whether TensorRT-LLM has its TensorRT backend, and what to do about it.

    With MODEL, a Hugging Face model, checkpoint or engine folder or a GGUF file, also whether it
    can run here with lookahead decoding; exit code 3 when not.
    """
    check, model = None, engine_dir
    if model is not None:
        from trtla.formats.folder import folder_kind
        from trtla.formats.gguf.folder import model_folder

        folder_kind(model_folder(model))  # refuses a wrong path before the slow imports
    from trtla.doctor.report import examine

    report = examine()
    if model is not None:
        from trtla.doctor.model import check_model

        check = check_model(model, report)
    _show(console, report, check)
    if check is not None and check.problems:
        raise CheckFailed(
            f"{model} cannot run here with {check.backend}: "
            f"{counted(len(check.problems), 'problem')}",
            _way_out(check),
        )


def _show(console: Console, report: Report, check: ModelCheck | None) -> None:
    from trtla.cli.build import doctor_rows as rows
    from trtla.doctor.report import document

    if console.json:
        found = {"schema_version": SCHEMA_VERSION, **document(report)}
        console.document({**found, "model": check and asdict(check)})
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
        return "correct the problems above, or make the folder again; trtla inspect shows more"
    if check.kind == "engine":
        return "build an engine for this machine; --backend torch runs everywhere"
    return "build it with --backend torch, which runs everywhere"


@click.command(
    "inspect",
    cls=Command,
    short_help="What a model, checkpoint or engine folder is.",
    config=False,
    examples=["trtla inspect engine", "trtla inspect llama-3-8b --json"],
)
@model_argument(required=True)
@model_flag(type=PATH, required=False)
@json_flag("Print one JSON document.")
@click.pass_obj
def inspect_path(console: Console, engine_dir: str) -> None:
    """Show what a folder is: Hugging Face model, checkpoint or engine; or a GGUF file.

    Prints shape, dtype, sizes, limits and the lookahead triple, and what is wrong with it (exit
    code 3).
    """
    from trtla.doctor.folder import inspect

    found = inspect(engine_dir)
    problems = found["problems"]
    if console.json:
        console.document({"schema_version": SCHEMA_VERSION, **found})
    else:
        console.table(("what", "value"), _flat(_readable(found)))
        for problem in problems:
            console.out(f"problem: {problem}")
    if problems:
        raise CheckFailed(
            f"{engine_dir} has {counted(len(problems), 'problem')}",
            "make the folder again, or copy the files again",
        )


def _readable(found: dict[str, Any]) -> dict[str, Any]:
    """What people want to know of it, with units."""
    types = {
        kind: f"{counted(each['tensors'], 'tensor')}, {size(each['bytes'])}, "
        f"{each['bits_per_weight']:g} bits per weight"
        for kind, each in found.get("weight_types", {}).items()
    }
    omitted = ("bytes", "problems", "tensor_types")
    return {
        **{key: value for key, value in found.items() if key not in omitted},
        **({"weight_types": types} if types else {}),
        "size": size(found["bytes"]),
        **({"parameters": f"{found['parameters'] / 1e6:,.1f} M"} if "parameters" in found else {}),
        **({"problems": len(found["problems"])} if found["problems"] else {}),
    }


def _flat(value: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    """Nested dictionaries as rows of dotted names; what there is none of is omitted."""
    rows: list[tuple[str, object]] = []
    for key, item in value.items():
        if isinstance(item, dict):
            rows += _flat(item, f"{prefix}{key}.")
        elif isinstance(item, bool):
            rows.append((f"{prefix}{key}", "yes" if item else "no"))
        elif item is not None:
            shown = ", ".join(map(str, item)) if isinstance(item, list | tuple) else item
            rows.append((f"{prefix}{key}", shown))
    return rows
