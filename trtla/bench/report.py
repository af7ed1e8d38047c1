"""How results are told: the environment, one JSON document, CSV rows, or Markdown tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any

from trtla.bench.peer_names import LLAMA_CPP
from trtla.bench.rounds import Cell
from trtla.bench.sweep import Results, Sweep
from trtla.console import cell, counted, markdown
from trtla.settings.sampling import filters_text

SCHEMA_VERSION = 1
AXES = tuple(one.name for one in fields(Cell))
"""What tells cells apart, in the order of the columns."""
_FIGURES = {
    "arm": "arm",
    "tokens_per_s": "tokens/s",
    "range": "min-max",
    "ttft_ms": "TTFT ms",
    "ms_per_token": "ms/token",
    "tokens_per_step": "S",
    "speedup_vs_ar": "speed-up",
    "efficiency": "efficiency",
    "fed_per_step": "fed/step",
    "host_ms_per_step": "host ms/step",
    "read_gb_per_s": "GB/s",
    "share_of_bandwidth": "of bandwidth",
    "peak_memory_mb": "peak MB",
    "distinct_4grams": "distinct 4-grams",
    "agreement": "texts as ar",
}
_EXACT = ("tokens_per_s", "peak_memory_mb", "ttft_ms")  # shown with fewer digits


def document(results: Results, sweep: Sweep, found: dict[str, Any]) -> dict[str, Any]:
    """The JSON document."""
    return {
        "schema_version": SCHEMA_VERSION,
        "environment": found,
        "settings": {
            "model": sweep.model,
            "executors": results.executors,
            "rounds": sweep.rounds,
            "max_output_len": sweep.sampling.max_output_len,
            "seed": sweep.sampling.seed,
            "ignore_eos": sweep.ignore_eos,
        },
        "cells": results.cells,
        "rows": results.rows,
    }


def csv_text(results: Results, found: dict[str, Any]) -> str:
    """One line an arm and cell, with the environment in the last columns."""
    extra = {
        key: found[key] for key in ("cpu", "cores", "torch", "transformers", "trtla", "commit")
    }
    lines = [{**row, **extra} for row in results.rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def markdown_text(results: Results, sweep: Sweep, found: dict[str, Any]) -> str:
    """The circumstances in a few lines, then a table for each cell."""
    parts = [_head(results, sweep, found)]
    for axes, members in groupby(results.rows, key=lambda row: [row[axis] for axis in AXES]):
        parts.append(f"{_title(axes)}\n\n{_table(list(members))}")
    return "\n\n".join(parts)


def _head(results: Results, sweep: Sweep, found: dict[str, Any]) -> str:
    gpus = f", {', '.join(found['gpus'])}" if found["gpus"] else ""
    ends = "ignored" if sweep.ignore_eos else "respected"
    bandwidth = {c["threads"]: c["read_bandwidth_gb_per_s"] for c in results.cells}
    told = ", ".join(f"{gb:.1f} GB/s with {counted(n, 'thread')}" for n, gb in bandwidth.items())
    llama_cpp = any(name in LLAMA_CPP for name in sweep.peers)
    peer = f", llama-cpp-python {found['llama_cpp_python']}" if llama_cpp else ""
    return "\n".join(
        (
            f"`{found['command']}`",
            "",
            f"- machine: {found['cores']} cores of {found['cpu']}{gpus}; read bandwidth {told}",
            f"- versions: trtla {found['trtla']} ({found['commit'] or 'no checkout'}), Python "
            f"{found['python']}, torch {found['torch']}, transformers {found['transformers']}"
            f"{peer}",
            f"- engine: {', '.join(results.executors)}; {sweep.sampling.max_output_len} tokens a "
            f"prompt, end tokens {ends}, {counted(sweep.rounds, 'round')} in turns, medians",
        )
    )


def _title(axes: Sequence[Any]) -> str:
    device, dtype, threads, batch_size, prompt_len, temperature, category, *rest = axes
    length = f", prompts of {prompt_len} tokens" if prompt_len else ""
    return (
        f"**{category}, {filters_text(temperature, *rest)}, batch {batch_size}** "
        f"({device}, {dtype}, {counted(threads, 'thread')}{length})"
    )


def _table(members: Sequence[dict[str, Any]]) -> str:
    shown = [[_shown(row, key) for key in _FIGURES] for row in members]
    return markdown(list(_FIGURES.values()), shown)


def _shown(row: dict[str, Any], key: str) -> str:
    if key == "arm":
        return f"{row['arm']} ({row['setting']})" if row["setting"] else row["arm"]
    if key == "range":
        return f"{row['tokens_per_s_min']:.0f}-{row['tokens_per_s_max']:.0f}"
    if key == "agreement":
        return "-" if row["equal_texts"] is None else _agreement(row)
    if key in _EXACT and row[key] is not None:
        return f"{row[key]:.0f}" if row[key] >= 100 else f"{row[key]:.1f}"
    return cell(row[key])


def _agreement(row: dict[str, Any]) -> str:
    equal = f"{row['equal_texts']} of {row['texts']}"
    at = row["first_divergence"]
    return equal if at is None else f"{equal} (from {at})"
