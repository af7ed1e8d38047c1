#!/usr/bin/env python3
"""Tables of `trtla bench --json` files, an arm a row and a category a column.

    python scripts/spec_bench_table.py greedy.json [more.json ...]

Speed-ups are over plain decoding of the same category and round. Tokens per step, fed tokens and
tokens/s are of all categories together.
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
    whole = "all" if "all" in categories else categories[0]
    others = [name for name in categories if name != whole]
    print("| arm | S | fed | tokens/s | all |", " | ".join(others), "| texts as ar |")
    print("|---" * (6 + len(others)) + "|")
    for name in dict.fromkeys(map(_name, rows)):
        own = {row["category"]: row for row in rows if _name(row) == name}
        figures = [_figure(own[whole][key]) for key in ("tokens_per_step", "fed_per_step")]
        speeds = [_figure(own[one]["speedup_vs_ar"]) for one in (whole, *others)]
        equal, rate = own[whole]["equal_texts"], f"{own[whole]['tokens_per_s']:.0f}"
        same = "-" if equal is None else f"{equal} of {own[whole]['texts']}"
        print("|", " | ".join([name, *figures, rate, *speeds, same]), "|")


def _name(row: dict[str, Any]) -> str:
    """An arm with its setting, or a peer with its weights: lookups are set for each category."""
    if row["arm"].startswith(("hf", "llama.cpp")):
        return f"{row['arm']} ({row['weight_type']})"
    return " ".join(filter(None, (row["arm"], row["setting"])))


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
