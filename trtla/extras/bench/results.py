"""The results of a sweep: one JSON document, CSV lines, and a description of the circumstances."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trtla.console import counted
from trtla.extras.bench.decoding_table import csv_cells
from trtla.extras.bench.documents import CSV_ENVIRONMENT, Bench
from trtla.extras.bench.peers import LLAMA_CPP
from trtla.formats.gguf.folder import model_name
from trtla.results.documents import SCHEMA_VERSION, Part

if TYPE_CHECKING:
    from trtla.extras.bench.sweep import Results, Sweep


def document(results: Results, sweep: Sweep, environment: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON document of a sweep."""
    names = ("max_output_len", "seed", *sweep.sampling.beyond)
    settings = {
        "model": model_name(sweep.model),
        "executors": results.executors,
        "rounds": sweep.rounds,
        "ignore_eos": sweep.ignore_eos,
        **{name: getattr(sweep.sampling, name) for name in names},
    }
    filled = Bench.fill(
        results, schema_version=SCHEMA_VERSION, environment=environment, settings=settings
    )
    return filled.document()


def csv_text(results: Results, sweep: Sweep, environment: dict[str, Any]) -> str:
    """Return a line for each arm and cell, with model and environment in the last columns."""
    extra = {"model": model_name(sweep.model)}
    extra |= {key: environment[key] for key in CSV_ENVIRONMENT}
    return rows_text(results.rows, extra)


def rows_text(rows: Sequence[Part], extra: Mapping[str, object] = {}) -> str:
    """Return rows as CSV below the names of their columns; lists and objects are JSON."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    present = {name for row in rows for name in row.model_fields_set}
    columns = [name for name in type(rows[0]).model_fields if name in present]
    writer.writerow([*columns, *extra])
    for row in rows:
        values = {**row.document(), **extra}
        writer.writerow(csv_cells(values, (*columns, *extra)))
    return out.getvalue()


def _version(environment: dict[str, Any], package: str) -> str:
    version = environment[package]
    return f"{package} {version}" if version else f"no {package}"


def head(results: Results, sweep: Sweep, environment: dict[str, Any]) -> str:
    """Describe the circumstances of all cells in a few lines."""
    gpus = f", {', '.join(environment['gpus'])}" if environment["gpus"] else ""
    commit = environment["commit"] or "no checkout"
    ends = "ignored" if sweep.ignore_eos else "respected"
    speeds = ", ".join(
        f"{speed / 1e9:.1f} GB/s with {counted(n, 'thread')}"
        for n, speed in results.bandwidth.items()
    )
    cores, length = (
        counted(environment["cores"], "core"),
        counted(sweep.sampling.max_output_len, "token"),
    )
    llama_cpp = any(name in LLAMA_CPP for name in sweep.peers)
    peer = f", llama-cpp-python {environment['llama_cpp_python']}" if llama_cpp else ""
    return "\n".join(
        (
            f"`{environment['command']}`",
            "",
            f"- machine: {cores} of {environment['cpu']}{gpus}; read bandwidth {speeds}",
            f"- versions: trtla {environment['trtla']} ({commit}), Python {environment['python']}, "
            f"{_version(environment, 'torch')}, {_version(environment, 'transformers')}{peer}",
            f"- engine: {', '.join(results.executors)}; {length} a "
            f"prompt, end tokens {ends}, {counted(sweep.rounds, 'round')} alternating, medians",
        )
    )
