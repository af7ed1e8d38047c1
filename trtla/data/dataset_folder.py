"""A data set in a local folder: parquet files, those that the package datasets saves, or JSONL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, create_model

from trtla.errors import TrtlaError, UsageError, first_line, install_hint
from trtla.files import parse_jsonl, read_text
from trtla.settings.eval_tasks import EvalTask

if TYPE_CHECKING:
    import pyarrow

Row = dict[str, Any]
_KINDS = (".parquet", ".arrow", ".jsonl")
_SPLIT = re.compile(r"(?<![a-z])(train|validation|test)(?![a-z])")


def read_folder(folder: Path, task: EvalTask, count: int, seed: int) -> list[Row]:
    """The first `count` rows of a task's split, shuffled by the seed as `datasets` shuffles.

    Args:
        folder: the data set's, or one above it.
    """
    import numpy as np

    files = _files(_dataset_root(folder, task), task)
    if files[0].suffix == ".jsonl":
        rows = [row for file in files for row in read_lines(file, task.columns)]
        return [rows[at] for at in np.random.default_rng(seed).permutation(len(rows))[:count]]
    if find_spec("pyarrow") is None:
        raise TrtlaError(
            f'{files[0]} needs the "pyarrow" package',
            f"{install_hint('eval')}, or give a .jsonl file with {task.lines}",
        )
    table = _table(files, task)
    order = np.random.default_rng(seed).permutation(table.num_rows)[:count]
    found: list[Row] = table.take(order).to_pylist()
    return found


def read_lines(path: Path, columns: Sequence[str]) -> list[Row]:
    """The rows of a .jsonl file, each with these columns as strings; others are left out."""
    wanted: dict[str, Any] = dict.fromkeys(columns, (str, ...))
    line = create_model("Line", __config__=ConfigDict(extra="ignore", strict=True), **wanted)
    return [one.model_dump() for _, one in parse_jsonl(line, read_text(path), str(path))]


def _dataset_root(folder: Path, task: EvalTask) -> Path:
    """The data set's folder, in which only one configuration is."""
    named = [folder / name for name in task.folders]
    root = next((path for path in named if path.is_dir()), folder)
    one = root / task.configuration if task.configuration else root
    return one if one.is_dir() else root


def _files(root: Path, task: EvalTask) -> list[Path]:
    """The files of the split, of the first kind that has any; names tell the split, if any do."""
    every = sorted(path for path in root.rglob("*") if _is_data(path.relative_to(root), path))
    if not every:
        raise UsageError(
            f"{root} holds no .parquet, .arrow or .jsonl files",
            f"give the folder of the data set, or a .jsonl file with {task.lines}",
        )
    splits = {path: _split(path.relative_to(root)) for path in every}
    if not any(splits.values()):
        splits = dict.fromkeys(every, task.split)
    for kind in _KINDS:
        if files := [path for path in every if path.suffix == kind and splits[path] == task.split]:
            return files
    others = ", ".join(sorted({name for name in splits.values() if name}))
    raise UsageError(
        f"{root} holds no {task.split} split, only {others}",
        f"save its {task.split} split there, or give a .jsonl file with {task.lines}",
    )


def _is_data(inside: Path, path: Path) -> bool:
    """Leave out hidden files, and the caches that `datasets` keeps beside its files."""
    hidden = any(part.startswith(".") for part in inside.parts)
    cached = path.suffix == ".arrow" and path.name.startswith("cache-")
    return path.suffix in _KINDS and not hidden and not cached and path.is_file()


def _split(path: Path) -> str | None:
    """The split that a file's name tells, or else a folder's above it."""
    found = (_SPLIT.search(part) for part in reversed(path.parts))
    return next((match[1] for match in found if match), None)


def _table(files: Sequence[Path], task: EvalTask) -> pyarrow.Table:
    import pyarrow

    tables = []
    for path in files:
        try:
            table = _read(path)
            _check_columns(path, table, task)
            table = table.select(list(task.columns))
            table.validate(full=True)  # taking rows of broken columns would end the process
        except (pyarrow.ArrowException, OSError) as error:
            raise UsageError(
                f"{path} cannot be read: {first_line(error)}", "copy the file again"
            ) from None
        tables.append(table)
    return pyarrow.concat_tables(tables, promote_options="permissive")


def _read(path: Path) -> pyarrow.Table:
    """Read a file; arrow files of `datasets` are streams."""
    from pyarrow import ipc, parquet

    if path.suffix == ".parquet":
        return parquet.ParquetFile(path).read()
    return ipc.open_stream(path.read_bytes()).read_all()


def _check_columns(path: Path, table: pyarrow.Table, task: EvalTask) -> None:
    for name in _absent(table, task):
        raise UsageError(
            f'{path} has no single column "{name}" with a string in each row; its columns are '
            f"{', '.join(table.column_names)}",
            f"give a data set with the columns {' and '.join(task.columns)}",
        )


def _absent(table: pyarrow.Table, task: EvalTask) -> Iterator[str]:
    """Columns that are missing or there twice, hold something else than strings, or have gaps."""
    from pyarrow import types

    for name in task.columns:
        column = table[name] if table.column_names.count(name) == 1 else None
        strings = column is not None and (
            types.is_string(column.type) or types.is_large_string(column.type)
        )
        if column is None or not strings or column.null_count:
            yield name
