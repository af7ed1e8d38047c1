"""scripts/step_costs.py, with the tiny shape, and scripts/product_costs.sh, with little to read."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.support.compiled import needs_compiler


@needs_compiler
@pytest.mark.deep(first=1)
def test_a_row_for_each_type_and_its_ratios() -> None:
    flags = ("--shapes", "tiny", "--types", "Q4_0,Q4_1,bfloat16", "--fed", "1,4", "--rounds", "1")
    command = (sys.executable, "scripts/step_costs.py", *flags)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if "|" in line]
    figures, ratios = rows[2::2], rows[3::2]
    assert [row[:2] for row in figures] == [
        ["tiny, 2", kind] for kind in ("Q4_0", "Q4_1", "bfloat16")
    ]
    assert all(re.fullmatch(r"\d+\.\d\d", number) for row in figures for number in row[2:4])
    assert len(ratios) == len(figures)


@needs_compiler
@pytest.mark.deep
def test_products_are_timed_by_tokens() -> None:
    less = {**os.environ, "CXXFLAGS": "-O0", "MEGABYTES": "1"}
    command = ("scripts/product_costs.sh", "Q4_0")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=less)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if "| Q4_0" in line]
    assert [row[1] for row in rows][:3] == ["1", "2", "3"]
    assert all(float(number) > 0 for row in rows for number in row[2:])
