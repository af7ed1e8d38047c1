"""Token ids of texts as TensorRT-LLM's run.py writes them: a row a text, prompt and output."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from trtla.files import write_whole, written
from trtla.results.documents import BeamSearch
from trtla.results.run import Decoded

Rows = Sequence[Sequence[int]]


def save_ids(
    result: Decoded | BeamSearch, pad_id: int, csv_file: str | None, npy_file: str | None
) -> None:
    """Write the files that have names; rows are padded at their ends to the longest."""
    rows = list(_rows(result))
    width = max(map(len, rows))
    padded = [[*row, *[pad_id] * (width - len(row))] for row in rows]
    files = ((csv_file, _csv, "--output-csv"), (npy_file, _npy, "--output-npy"))
    for name, data, flag in files:
        if name is not None:
            with written(Path(name), f"give another {flag}"):
                write_whole(Path(name), data(padded))


def _rows(result: Decoded | BeamSearch) -> Iterator[tuple[int, ...]]:
    """Prompt and output of every completion or beam, those of a prompt one after another."""
    if isinstance(result, Decoded):
        yield from ((*done.input_ids, *done.output_ids) for done in result.completions)
        return
    for search in result.results:
        yield from ((*search.input_ids, *beam.output_ids) for beam in search.beams)


def _csv(rows: Rows) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue().encode()


def _npy(rows: Rows) -> bytes:
    import numpy as np

    out = io.BytesIO()
    np.save(out, np.array(rows, dtype=np.int32))
    return out.getvalue()
