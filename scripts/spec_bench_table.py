#!/usr/bin/env python3
"""Tables of `trtla bench --json` files, an arm a row and a category a column.

    python scripts/spec_bench_table.py greedy.json [more.json ...]

Speed-ups are over plain decoding of the same category and round. Tokens per step, fed tokens and
tokens/s are of all categories together: weighed by tokens, so that long answers count more.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Print a table for each circumstance of each file."""
    for name in sys.argv[1:]:
        rows = json.loads(Path(name).read_text(encoding="utf-8"))["rows"]
        for key in dict.fromkeys((row["temperature"], row["batch_size"]) for row in rows):
            own = [row for row in rows if (row["temperature"], row["batch_size"]) == key]
            print(f"\ntemperature {key[0]:g}, batch size {key[1]}\n")
            _table(own)


def _table(rows: list[dict[str, Any]]) -> None:
    categories = list(dict.fromkeys(row["category"] for row in rows))
    print("| arm | S | fed | tokens/s | all |", " | ".join(categories), "| texts as ar |")
    print("|---" * (6 + len(categories)) + "|")
    plain = [row for row in rows if row["arm"] == "ar"]
    for name in dict.fromkeys(map(_name, rows)):
        own = {row["category"]: row for row in rows if _name(row) == name}
        speeds = [_figure(own[c]["speedup_vs_ar"]) for c in categories]
        figures = [_mean(own, "tokens_per_step"), _mean(own, "fed_per_step")]
        rate = _rate(list(own.values()))
        texts = sum(row["texts"] or 0 for row in own.values())
        equal = [row["equal_texts"] for row in own.values()]
        same = "-" if None in equal else f"{sum(equal)} of {texts}"
        cells = [name, *figures, f"{rate:.0f}", f"{rate / _rate(plain):.2f}", *speeds, same]
        print("|", " | ".join(cells), "|")


def _name(row: dict[str, Any]) -> str:
    """An arm with its setting, or a peer with its weights: lookups are set for each category."""
    if row["arm"].startswith(("hf", "llama.cpp")):
        return f"{row['arm']} ({row['weight_type']})"
    return " ".join(filter(None, (row["arm"], row["setting"])))


def _rate(rows: list[dict[str, Any]]) -> float:
    """Tokens per second over all categories."""
    tokens = sum(row["output_tokens"] for row in rows)
    return tokens / sum(row["output_tokens"] / row["tokens_per_s"] for row in rows)


def _mean(rows: dict[str, dict[str, Any]], key: str) -> str:
    """The mean over steps of a figure per step."""
    known = [row for row in rows.values() if row[key] is not None]
    if not known or any(row["tokens_per_step"] is None for row in known):
        return "-"
    steps = [row["output_tokens"] / row["tokens_per_step"] for row in known]
    return f"{sum(n * row[key] for n, row in zip(steps, known, strict=True)) / sum(steps):.2f}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
