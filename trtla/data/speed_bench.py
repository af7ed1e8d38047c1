"""SPEED-Bench's files, as NVIDIA's scripts write them.

The scripts put in the prompts that the published data set may not copy. specdec_bench's
prepare_data.py writes Parquet with `turns`, NeMo-Skills' prepare.py JSONL with `messages`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from trtla.errors import TrtlaError, UsageError, first_line, install_hint, is_installed
from trtla.files import refuse_stand_in, validate

LineT = TypeVar("LineT", bound=BaseModel)
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"
"""The beginning of what the published data set has in place of a prompt."""


class _UserMessage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    role: Literal["user"]
    content: str


class SpeedBenchColumns(BaseModel):
    """The columns of SPEED-Bench; those that say where a prompt is from are ignored."""

    turns: list[str] | None = None
    messages: list[_UserMessage] | None = None
    sub_category: Any = None
    source: Any = None
    src_id: Any = None
    difficulty: Any = None
    multiturn: Any = None

    def asked(self) -> tuple[str, ...]:
        """What the user asks, turn by turn."""
        contents = (message.content for message in self.messages or ())
        return tuple(self.turns or contents)


def read_parquet(model: type[LineT], path: Path) -> list[tuple[str, LineT]]:
    """The rows of a Parquet file as models, each with `row N of NAME`.

    Raises:
        TrtlaError: pyarrow is not installed.
    """
    if not path.exists():
        raise UsageError(f"{path} does not exist", "check the path")
    if not is_installed("pyarrow"):
        raise TrtlaError(f"{path} needs pyarrow, which is not installed", install_hint("eval"))
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            rows = file.read().to_pylist()
    except (ArrowException, OSError, ValueError, OverflowError) as error:  # of bytes, of numbers
        refuse_stand_in(path)
        reason = first_line(error)
        raise UsageError(
            f"{path} cannot be read as a Parquet file: {reason}", "copy it again"
        ) from None
    places = (f"row {number} of {path}" for number in range(1, len(rows) + 1))
    return [
        (where, validate(model, row, where, "correct the row"))
        for where, row in zip(places, rows, strict=True)
    ]


def refuse_placeholder(turns: Sequence[str], where: str) -> None:
    """Raise `UsageError` for a prompt that NVIDIA's scripts have not put in yet."""
    if any(turn.startswith(_PLACEHOLDER) for turn in turns):
        raise UsageError(
            f"{where} has SPEED-Bench's placeholder in place of a prompt",
            "make the file with examples/specdec_bench/prepare_data.py of NVIDIA's Model-Optimizer",
        )
