"""Finished lines, kept as they finish: a killed job resumes after them.

A record is a line: a checksum, the input line's number, 1 if it failed, its prompt and output
tokens, its steps and their tokens, then its line of output. Everything after the first record that
is incomplete is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from zlib import crc32

from trtla.files import written
from trtla.runtime.stats import tokens_per_step

FREE_SPACE = "free some space: the same command resumes then"


@dataclass(frozen=True, slots=True)
class Record:
    """A finished line."""

    number: int
    failed: bool
    prompt_tokens: int
    output_tokens: int
    steps: int
    decoded: int
    """Tokens of the steps."""
    data: bytes
    """Its line of output, without the line break."""


@dataclass(slots=True)
class Counts:
    """The counts of all records."""

    answered: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    decoded: int = 0

    @property
    def tokens_per_step(self) -> float:
        """S, the step compression."""
        return tokens_per_step(self.decoded, self.steps)

    @property
    def done(self) -> int:
        return self.answered + self.failed

    def add(self, record: Record) -> None:
        self.answered += not record.failed
        for name in ("failed", "prompt_tokens", "output_tokens", "steps", "decoded"):
            setattr(self, name, getattr(self, name) + getattr(record, name))


class Journal:
    """The journal of a job, opened to read and to append.

    Records are written at once, so that a killed process loses none. Memory holds their offsets
    only.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.counts = path, Counts()
        self._offsets: dict[int, int] = {}
        self._end = 0
        self._file = path.open("a+b", buffering=0)
        with path.open("rb") as file:
            for line in file:
                record = _unpacked(line)
                if record is None:
                    break
                self._note(record, len(line))
        self._file.truncate(self._end)

    def close(self) -> None:
        self._file.close()

    def __contains__(self, number: int) -> bool:
        return number in self._offsets

    def add(self, record: Record) -> None:
        """Keep a record."""
        left = data = _packed(record)
        with written(self._path, FREE_SPACE):
            while left:  # a disk that becomes full takes a part, and refuses the next one
                left = left[self._file.write(left) :]
        self._note(record, len(data))

    def _note(self, record: Record, size: int) -> None:
        self._offsets[record.number] = self._end
        self._end += size
        self.counts.add(record)

    def ordered(self, *, failed: bool) -> Iterator[Record]:
        """Yield the records of one kind, in the order of the input."""
        with self._path.open("rb") as file:
            for _, offset in sorted(self._offsets.items()):
                file.seek(offset)
                record = _unpacked(file.readline())
                assert record is not None
                if record.failed == failed:
                    yield record


def _packed(record: Record) -> bytes:
    content = b"%d %d %d %d %d %d %b" % astuple(record)
    return b"%08x %b\n" % (crc32(content), content)


def _unpacked(line: bytes) -> Record | None:
    """Parse a record; None if it is incomplete."""
    checksum, _, content = line.removesuffix(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % crc32(content):
        return None
    *counts, data = content.split(b" ", 6)
    number, failed, prompt, output, steps, decoded = map(int, counts)
    return Record(number, bool(failed), prompt, output, steps, decoded, data)
