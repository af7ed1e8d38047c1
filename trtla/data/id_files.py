"""Files of token ids that TensorRT-LLM's run.py reads as prompts: .csv, .npy and .npz."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from trtla.errors import UsageError
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
        if array.ndim not in (1, 2) or not np.issubdtype(array.dtype, np.integer):
            raise UsageError(
                f"{name} is a {array.ndim}-dimensional array of {array.dtype}",
                "store token ids as integers, in one row or in rows",
            )
        for number, row in enumerate(np.atleast_2d(array)):
            yield f"row {number} of {name}", tuple(map(int, row))


def _csv_rows(path: Path) -> Iterator[Row]:
    for number, cells in enumerate(csv.reader(read_text(path).splitlines())):
        where = f"row {number} of {path}"
        try:
            ids = tuple(int(cell) for cell in cells)
        except ValueError:
            wrong = next(cell for cell in cells if not cell.strip().isdecimal())
            raise UsageError(f"{where} holds {wrong!r}, which is no token id", _ROWS) from None
        if ids:
            yield where, ids


def _arrays(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    refuse_stand_in(path)
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            yield str(path), loaded
            return
        with loaded:
            for name in loaded.files:
                yield f"{name} of {path}", loaded[name]
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", "check the path") from None
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise UsageError(f"{path} cannot be read as an array: {error}", _ROWS) from None
