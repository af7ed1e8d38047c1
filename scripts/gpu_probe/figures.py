"""The figures of scripts/gpu_check.sh: what each is, what is expected, what it decides.

    python scripts/gpu_probe table out/s1.json out/s2.json out/s3.json

prints the table of docs/gpu.md with what these documents measured. Sections of the probe `record`
figures by name; a stage judges them at its end. No import here needs more than Python.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GPUS = ("H100", "H200")
OK, SLOW, WRONG, UNMEASURED = "ok", "slow", "WRONG", "not measured"
RECORDS = "PROBE_RECORDS"
"""Environment name of the file that sections append their figures to, a JSON line each."""

Bound = float | Mapping[str, float] | None


@dataclass(frozen=True)
class Figure:
    """A number that a section measures, and the bound that it should keep."""

    section: str
    name: str
    unit: str
    decides: str
    least: Bound = None
    most: Bound = None
    exact: bool = False
    """A result that is right or wrong, also on a CPU; else a time, which can only be slow."""

    @property
    def expectation(self) -> str:
        """Such as `>= 0.80`, or `>= 2800 (H100), 4000 (H200)`."""
        bound = self.most if self.least is None else self.least
        sign = "<=" if self.least is None else ">="
        if not isinstance(bound, Mapping):
            return f"{sign} {bound:g}"
        return f"{sign} " + ", ".join(f"{number:g} ({gpu})" for gpu, number in bound.items())

    def verdict(self, value: float | None, gpu: str | None) -> str:
        """What to make of a value on a GPU by this name; None: in a dry run on a CPU."""
        if value is None or (gpu is None and not self.exact):
            return UNMEASURED
        least, most = (_on(bound, gpu or "") for bound in (self.least, self.most))
        if least is None and most is None:
            return "nothing expected of this GPU"
        kept = (least is None or value >= least) and (most is None or value <= most)
        return OK if kept else WRONG if self.exact or math.isnan(value) else SLOW


def _on(bound: Bound, gpu: str) -> float | None:
    if isinstance(bound, Mapping):
        return next((number for name, number in bound.items() if name in gpu), None)
    return bound


def _errors() -> Iterable[Figure]:
    for dtype, most in (("bfloat16", 1.5e-2), ("float16", 2e-3), ("float32", 2e-5)):
        yield Figure(
            f"check:{dtype}", f"attention over pages, {dtype}", "relative error",
            "whether the attention kernels may run", most=most, exact=True,
        )  # fmt: skip
    yield Figure(
        "check:bfloat16", "attention over an FP8 cache", "relative error",
        "whether FP8 caches may use the kernels", most=1.5e-2, exact=True,
    )  # fmt: skip
    for dtype, most in (("bfloat16", 5e-2), ("float32", 1e-4)):
        yield Figure(
            f"check:{dtype}", f"logits of graphs, {dtype}", "relative error",
            "whether graphs and fused kernels may run", most=most, exact=True,
        )  # fmt: skip


def _steps(size: str, share: float, wide: float, fused: float) -> Iterable[Figure]:
    section = f"step:{size}"
    yield Figure(section, f"step of one token, {size}", "of the copy rate",
                 "how far kernels and host are from the memory's limit", least=share)  # fmt: skip
    yield Figure(section, f"84 tokens over one, {size}", "times",
                 "what 7,7,7 can gain: products, attention or host", most=wide)  # fmt: skip
    yield Figure(section, f"120 tokens over one, {size}", "times",
                 "what 15,5,15 can gain", most=wide + 0.06)  # fmt: skip
    yield Figure(section, f"fused over unfused, {size}", "times",
                 "whether the fused kernels stay", most=fused)  # fmt: skip
    yield Figure(section, f"graph over PyTorch's operations, {size}", "times",
                 "whether the graph path stays the default", most=0.9)  # fmt: skip
    yield Figure(section, f"kernels a layer, {size}", "",
                 "whether a kernel runs that should be fused", most=12)  # fmt: skip
    yield Figure(section, f"attention of 84 tokens, {size}", "us a layer",
                 "tiles and splits of the attention kernel", most=10)  # fmt: skip
    yield Figure(section, f"host beside a step, {size}", "ms",
                 "whether the next step has to be prepared earlier", most=0.25)  # fmt: skip
    yield Figure(section, f"captures at the start, {size}", "s",
                 "how many sizes are captured at the start", most=30)  # fmt: skip


def _benches() -> Iterable[Figure]:
    for size, share, efficiency in (("1B", 0.6, 0.8), ("8B", 0.8, 0.9)):
        section = f"bench:{size}"
        yield Figure(section, f"plain decoding, {size}", "of the copy rate",
                     "whether speed-ups over it count", least=share)  # fmt: skip
        yield Figure(section, f"efficiency of 7,7,7, {size}", "speed-up over S",
                     "what 84 tokens cost in a decoding", least=efficiency)  # fmt: skip
        yield Figure(section, f"efficiency of 15,5,15, {size}", "speed-up over S",
                     "the same of 120 tokens", least=efficiency - 0.05)  # fmt: skip
        yield Figure(section, f"auto over the best triple, {size}", "times",
                     "whether auto's costs are those of the graphs", least=0.95)  # fmt: skip
    yield Figure("bench:8B", "plain decoding, tokens/s, 8B", "tokens/s",
                 "the figure that others publish", least={"H100": 160, "H200": 229})  # fmt: skip
    yield Figure("peers:1B", "plain decoding over transformers, 1B", "times",
                 "whether there is anything to show beside drafts", least=3)  # fmt: skip
    yield Figure("peers:1B", "graphs over PyTorch's operations, 1B", "times",
                 "what the fallback costs", least=1.5)  # fmt: skip
    for kind, least in (("temperature", 0.9), ("top-p", 0.85)):
        yield Figure("sampled:1B", f"sampled over greedy, {kind}, 1B", "times",
                     "whether drawing has to leave the host's way", least=least)  # fmt: skip


FIGURES: tuple[Figure, ...] = (
    Figure("env", "copy rate", "GB/s", "the roof of all shares below",
           least={"H100": 2800, "H200": 4000}),
    Figure("env", "read rate", "GB/s", "whether reading is faster than copying",
           least={"H100": 2800, "H200": 4000}),
    Figure("env", "trtla bench's own rate", "of the copy rate",
           "whether bench's share of bandwidth can be believed", least=0.95),
    Figure("env", "products of 8192", "TFLOP/s", "the roof of prompts",
           least={"H100": 600, "H200": 600}),
    *_errors(),
    Figure("stall", "SDPA at a new key length, cuDNN off", "ms",
           "whether PyTorch's operations can serve as the fallback", most=0.1),
    Figure("gemm", "84 tokens over one, products of 8B", "times",
           "whether own matrix products are needed", most=1.1),
    Figure("gemm", "weights [out, in] over [in, out]", "times",
           "the layout of weights", most=1.03),
    Figure("sample", "one row drawn", "ms", "whether draws delay a step", most=0.3),
    Figure("sample", "43 rows drawn with top-p", "ms", "whether draws may sort", most=1),
    Figure("sample", "draws as on the CPU", "share", "whether a seed means the same on a GPU",
           least=0.99, exact=True),
    Figure("sample", "draws of a row alone", "share equal",
           "whether a draw depends on the rows beside it", least=1, exact=True),
    *_steps("1B", 0.6, 1.25, 0.85),
    *_steps("8B", 0.8, 1.12, 0.93),
    Figure("steady", "rows of a fixed order, alone and among others", "share equal",
           "whether products of a fixed order may be used", least=1, exact=True),
    Figure("steady", "fixed order over cuBLAS, one token", "times",
           "what texts that no draft changes cost", most=1.1),
    Figure("steady", "fixed order over cuBLAS, 84 tokens", "times",
           "the same for 7,7,7", most=1.45),
    Figure("texts", "texts in float32 as the CPU's", "share",
           "whether the graph path is right", least=1, exact=True),
    Figure("texts", "texts in float32, PyTorch's operations", "share",
           "whether the fallback is right", least=1, exact=True),
    Figure("texts", "texts in bfloat16 as plain decoding's", "share",
           "whether rounding alone makes texts differ", least=0.95, exact=True),
    Figure("texts", "largest margin of a differing text", "logits",
           "the same: a large margin is a fault", most=0.5, exact=True),
    Figure("doctor", "trtla doctor names the graph path", "1: yes",
           "whether the self-test chose the path that is measured", least=1, exact=True),
    Figure("doctor", "self-test", "s", "whether the first start is quick enough", most=10),
    *_benches(),
    Figure("memory:8B", "memory beyond weights and cache, 8B", "GB",
           "how many graphs and logits are kept", most=3, exact=True),
    Figure("memory:8B", "opening, 8B", "s", "whether the start needs work", most=90),
    Figure("serve:1B", "32 clients, tokens/s, 1B", "tokens/s",
           "whether the server's host work is the limit", least=dict.fromkeys(GPUS, 3000.0)),
    Figure("serve:1B", "32 clients, p99 between tokens, 1B", "ms",
           "whether prompts stall running texts", most=50),
    Figure("serve:1B", "32 clients, failed requests, 1B", "", "whether the server holds",
           most=0, exact=True),
    Figure("tests", "tests that need a GPU", "failed", "what is wrong", most=0, exact=True),
    Figure("sanitizer", "compute-sanitizer", "errors", "which load is out of bounds",
           most=0, exact=True),
    Figure("tune", "cuBLAS over autotuned, 84 rows", "times",
           "whether own matrix products pay", most=1.08),
)  # fmt: skip
BY_NAME = {figure.name: figure for figure in FIGURES}


def record(name: str, value: float, note: str = "") -> None:
    """Print a figure, and keep it for the stage's table; the last value of a name counts."""
    figure = BY_NAME[name]
    print(f"* {name}: {number(value)} {figure.unit} {note}".rstrip(), flush=True)
    if path := os.environ.get(RECORDS):
        with open(path, "a") as file:
            file.write(json.dumps({"name": name, "value": value, "note": note}) + "\n")


def number(value: float | None) -> str:
    """With as many digits as mean something."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def judge(
    records: Path, sections: Iterable[str], gpu: str | None, without: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Rows of a stage's table, with null for what was not measured.

    Args:
        gpu: as of `verdict`.
        without: why some sections did not run.
    """
    lines = records.read_text().splitlines() if records.exists() else []
    found = {row["name"]: row for row in map(json.loads, lines)}
    wanted = set(sections)
    rows = []
    for figure in FIGURES:
        if figure.section in wanted:
            row = found.get(figure.name, {})
            value = row.get("value")
            finite = value if value is None or math.isfinite(value) else None
            rows.append({
                "section": figure.section, "figure": figure.name, "unit": figure.unit,
                "value": finite, "expectation": figure.expectation,
                "verdict": figure.verdict(value, gpu), "decides": figure.decides,
                "note": row.get("note") or without.get(figure.section, ""),
            })  # fmt: skip
    return rows


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Figure, value, expectation and verdict in columns."""
    lines = [("figure", "measured", "expected", "verdict")]
    for row in rows:
        measured = f"{number(row['value'])} {row['unit']}" if row["value"] is not None else "-"
        why = row["note"].partition(":")[0] if row["value"] is None else ""
        verdict = f"{row['verdict']}: {why}" if why else row["verdict"]
        lines.append((row["figure"], measured, row["expectation"], verdict))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def docs_table(documents: Iterable[Mapping[str, Any]] = ()) -> str:
    """The table of docs/gpu.md, with what documents of stages measured."""
    values = {
        (row["figure"], gpu): number(row["value"])
        for document in documents
        if not document["dry"]
        for row in document["figures"]
        for gpu in GPUS
        if gpu in (document["gpu"] or "")
    }
    head = ("figure", "unit", "expected", *GPUS, "decides")
    lines = [head, ("---",) * len(head)]
    for one in FIGURES:
        cells = (values.get((one.name, gpu), "-") for gpu in GPUS)
        lines.append((one.name, one.unit, one.expectation, *cells, one.decides))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(names: Iterable[str]) -> int:
    """Print the table; 2 after one sentence where a document cannot be read."""
    documents = []
    for name in names:
        try:
            document = json.loads(Path(name).read_text())
            documents.append({key: document[key] for key in ("gpu", "dry", "figures")})
        except (OSError, ValueError, TypeError, KeyError) as error:
            hint = "give the s1.json, s2.json and s3.json that scripts/gpu_check.sh wrote"
            print(f"{name} is no document of a stage ({error}): {hint}", file=sys.stderr)
            return 2
    print(docs_table(documents))
    return 0
