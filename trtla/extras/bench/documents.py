"""The JSON documents of bench: of a sweep, and of a batch in one round."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import FiniteFloat

from trtla.results.rows import Cell, Document, Row, Shares

CSV_ENVIRONMENT = ("cpu", "cores", "torch", "transformers", "trtla", "commit")
"""Keys of the environment in the last columns of a CSV."""
EVERY_CATEGORY = "all"
"""The category of all categories together."""


def whole_category(rows: Sequence[Row]) -> str | None:
    """Return the category that stands for the whole: that of all, or the only one, or None."""
    names = {row.category for row in rows}
    return EVERY_CATEGORY if EVERY_CATEGORY in names else names.pop() if len(names) == 1 else None


class Decoding(Row):
    """A row of one batch in one round."""

    round: int
    seed: int
    """The seed of its first prompt."""
    prompt: int
    """Position of the batch in its category, from 0."""
    prompt_tokens: int
    finish_reason: str | None = None
    """The finish reason of its first text."""
    output_sha256: str
    machine: str = ""
    """Processor, cores and GPUs."""
    model: str = ""
    key: str = ""
    """The fingerprint of everything that the row depends on, the machine included."""


class MeasuredCell(Cell):
    """The circumstances of a cell, with the samples behind its medians and the arms' order."""

    prompts: int
    mean_prompt_tokens: FiniteFloat
    weight_bytes: int
    read_bandwidth_gb_per_s: FiniteFloat
    order: tuple[str, ...]
    tokens_per_s: dict[str, Shares]


class Bench(Document):
    """`trtla bench --json`; a row is also a line of its CSV."""

    cells: tuple[MeasuredCell, ...] = ()
