"""Files of token ids that TensorRT-LLM's run.py reads as prompts: .csv, .npy and .npz."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trtla.errors import UsageError, first_line
from trtla.files import read_text, refuse_stand_in

Row = tuple[str, tuple[int, ...]]
"""A prompt's ids, and where they stand."""

_ROWS = "write one prompt's token ids a row"


def id_rows(path: Path) -> Iterator[Row]:
    """The rows of a file of token ids, by its suffix; rows of arrays may be padded."""
    if path.suffix.lower() == ".csv":
        yield from _csv_rows(path)
        return
    for name, array in _arrays(path):
        if array.ndim not in (1, 2) or array.dtype.kind not in "iu":
            raise UsageError(
                f"{name} is a {array.ndim}-dimensional array of {array.dtype}",
                "store token ids as integers, in one row or in rows",
            )
        for number, row in enumerate(np.atleast_2d(array)):
            yield f"row {number} of {name}", tuple(map(int, row))


def _csv_rows(path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_text(path).splitlines()):
        where = f"row {number} of {path}"
        if line:
            yield where, tuple(_id(cell.strip().strip('"'), where) for cell in line.split(","))


def _id(cell: str, where: str) -> int:
    try:
        return int(cell)
    except ValueError:  # int refuses thousands of digits too
        raise UsageError(f"{where} holds {cell[:40]!r}, which is no token id", _ROWS) from None


def _arrays(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    refuse_stand_in(path)
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            yield str(path), loaded
            return
        with loaded:
            for name in loaded.files:
                yield f"{name} of {path}", np.asanyarray(loaded[name])
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", "check the path") from None
    except UsageError:
        raise
    except Exception as error:  # broken headers and archives raise a dozen kinds
        raise UsageError(
            f"{path} cannot be read as an array: {first_line(error)}", "store it with numpy.save"
        ) from None
