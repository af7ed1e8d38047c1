"""The CSV of decodings: a row an arm and batch, appended as they end.

Each row has the key of its circumstances, so that the same command does not decode it again.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from trtla.errors import UsageError
from trtla.extras.bench.documents import Decoding
from trtla.files import written

COLUMNS = tuple(Decoding.model_fields)
_OTHER = "give another --output"


class DecodingTable:
    """The decodings of a file, by their keys in the order of its rows; one run has it at a time.

    A last line that a kill left half-written is cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with written(path, _OTHER):
            self._file = path.open("ab", buffering=0)
        try:
            self._lock()
            whole, rest = _whole_lines(path)
            self.rows = {row.key: row for row in _decodings(whole, path)}
            if rest:
                self._file.truncate(len(whole))
        except BaseException:
            self._file.close()
            raise
        self._is_new = not whole

    def __enter__(self) -> DecodingTable:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def append(self, rows: Sequence[Decoding]) -> None:
        """Write rows in one piece, before this returns."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        if self._is_new:
            writer.writerow(COLUMNS)
        writer.writerows(csv_cells(row.document(), COLUMNS) for row in rows)
        left = memoryview(out.getvalue().encode())
        with written(self.path, "free some space, and run the same command again"):
            while left:
                left = left[self._file.write(left) :]
        self._is_new = False
        self.rows.update((row.key, row) for row in rows)

    def _lock(self) -> None:
        """Lock the file where its disk has locks; devices and pipes have any number of writers."""
        if not self.path.is_file():
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another run appends to {self.path}",
                "wait until it ends, or give another --output",
            ) from None
        except OSError:
            pass


def check_decodings(path: Path) -> None:
    """Refuse a file that is no table of decodings, and leave it as it is."""
    if path.exists():
        _decodings(_whole_lines(path)[0], path)


def _whole_lines(path: Path) -> tuple[bytes, bytes]:
    """Return the lines of a file, and what follows the last of them; devices and pipes are
    empty."""
    if not path.is_file() and not path.is_dir():
        return b"", b""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", _OTHER) from None
    end = data.rfind(b"\n") + 1
    if not end and not ",".join(COLUMNS).encode().startswith(data):
        end = len(data)  # no beginning of a table
    return data[:end], data[end:]


def _decodings(whole: bytes, path: Path) -> list[Decoding]:
    lines = csv.DictReader(io.StringIO(whole.decode("utf-8-sig", "replace")))
    if whole and tuple(lines.fieldnames or ()) != COLUMNS:
        raise UsageError(f"{path} is not a table of decodings of this version", _OTHER)
    return list(_parsed(lines, path))


def _parsed(lines: Iterable[dict[str, str]], path: Path) -> Iterable[Decoding]:
    for number, line in enumerate(lines, 2):
        try:
            yield Decoding.model_validate({key: x for key, x in line.items() if x != ""})
        except ValidationError:
            raise UsageError(
                f"{path}: line {number} is no decoding", "delete it, or give another --output"
            ) from None


def csv_cells(values: Mapping[str, object], columns: Iterable[str]) -> list[object]:
    """Return the cells of a line; lists and objects are JSON."""
    cells = (values.get(name) for name in columns)
    return [json.dumps(x) if isinstance(x, list | dict) else x for x in cells]
