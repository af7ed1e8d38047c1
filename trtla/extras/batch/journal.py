"""Finished lines, kept as they finish: a killed job resumes after them.

A record is a line: the input line's number, `a` (answered) or `f` (failed), its prompt and output
tokens, its steps, accepted drafts and the tokens of the steps, a checksum, then the line of output.
Everything after the first record that is incomplete, or of another job, is dropped.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from trtla.files import flush, written
from trtla.runtime.stats import tokens_per_step

_SYNC_EVERY_S = 0.5
_READ_BYTES = 2**20
_NEW = -1  # the offset of a line without a record


@dataclass(frozen=True, slots=True)
class Record:
    """A finished line."""

    number: int
    failed: bool
    prompt_tokens: int
    output_tokens: int
    data: bytes
    """Its line of output, without the line break."""
    steps: int = 0
    accepted: int = 0
    decoded: int = 0
    """Tokens of the steps."""


FREE_SPACE = "free some space: the same command resumes then"


@dataclass(slots=True)
class Counts:
    """The counts of all records."""

    answered: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    accepted: int = 0
    decoded: int = 0

    @property
    def tokens_per_step(self) -> float:
        """S, the step compression."""
        return tokens_per_step(self.decoded, self.steps)

    @property
    def done(self) -> int:
        return self.answered + self.failed

    def add(self, record: Record) -> None:
        self.failed += record.failed
        self.answered += not record.failed
        for name in ("prompt_tokens", "output_tokens", "steps", "accepted", "decoded"):
            setattr(self, name, getattr(self, name) + getattr(record, name))


class Journal:
    """The journal of a job, for lines up to the number `last`; a context manager.

    Records are written at once, so that a killed process loses none, and are on the disk within a
    second. Memory holds their offsets only.
    """

    def __init__(self, path: Path, key: str, last: int) -> None:
        self._path, self._key, self.counts = path, key.encode(), Counts()
        self._offsets = array("q", [_NEW]) * (last + 1)
        self._file = path.open("a+b", buffering=0)
        self._dirty = False
        self._failure: OSError | None = None
        self._closing = threading.Event()
        self._syncing = threading.Thread(target=self._sync, name="trtla-journal", daemon=True)
        self._end = self._load()
        self._file.truncate(self._end)
        flush(path.parent)
        self._syncing.start()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        self._syncing.join()
        with suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()

    def __contains__(self, number: int) -> bool:
        return self._offsets[number] != _NEW

    def add(self, record: Record) -> None:
        """Keep a record."""
        data = _packed(record, self._key)
        with written(self._path, FREE_SPACE):
            if self._failure is not None:
                raise self._failure
            size = self._file.write(data)
            if size != len(data):  # the disk may be full, which the next write reports
                self._file.write(data[size:])
        self._dirty = True
        self._note(record, len(data))

    def kept(self) -> int:
        """Count the records in the file: a signal may come between a write and its count."""
        try:
            with self._path.open("rb") as file:
                return sum(
                    block.count(b"\n") for block in iter(lambda: file.read(_READ_BYTES), b"")
                )
        except OSError:  # the job is finished, or the file is out of reach
            return self.counts.done

    def _note(self, record: Record, size: int) -> None:
        self._offsets[record.number] = self._end
        self._end += size
        self.counts.add(record)

    def _load(self) -> int:
        self._end = 0
        with self._path.open("rb") as file:
            for line in file:
                record = _unpacked(line, self._key)
                if record is None or not 0 < record.number < len(self._offsets):
                    break
                if record.number not in self:
                    self._note(record, len(line))
        return self._end

    def _sync(self) -> None:
        while not self._closing.wait(_SYNC_EVERY_S):
            if self._dirty:
                self._dirty = False
                try:
                    os.fsync(self._file.fileno())
                except OSError as error:
                    self._failure = error
                    return

    def ordered(self, *, failed: bool) -> Iterator[Record]:
        """Yield the records of one kind, in the order of the input."""
        with self._path.open("rb") as file:
            for offset in self._offsets:
                if offset != _NEW:
                    file.seek(offset)
                    record = _unpacked(file.readline(), self._key)
                    assert record is not None
                    if record.failed == failed:
                        yield record


def _packed(record: Record, key: bytes) -> bytes:
    kind = b"f" if record.failed else b"a"
    steps = (record.steps, record.accepted, record.decoded)
    counts = (record.number, kind, record.prompt_tokens, record.output_tokens, *steps)
    content = b"%d %b %d %d %d %d %d" % counts
    return b"%b %08x %b\n" % (content, _checksum(key, content, record.data), record.data)


def _unpacked(line: bytes, key: bytes) -> Record | None:
    """Parse a record; None if it is incomplete or of another job."""
    with suppress(ValueError):
        number, kind, *counts, checksum, data = line.split(b" ", 8)
        content, whole = b" ".join((number, kind, *counts)), data.endswith(b"\n")
        if whole and checksum == b"%08x" % _checksum(key, content, data[:-1]):
            read, written, *steps = map(int, counts)
            return Record(int(number), kind == b"f", read, written, data[:-1], *steps)
    return None


def _checksum(key: bytes, content: bytes, data: bytes) -> int:
    return crc32(data, crc32(content, crc32(key)))
