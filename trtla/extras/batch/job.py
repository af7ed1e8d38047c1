"""A job's folder: its lock, its identity, its progress, and its output at the end."""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trtla.errors import UsageError
from trtla.extras.batch.journal import FREE_SPACE, Counts, Journal, Record
from trtla.files import JsonError, json_text, parse_json, write_whole, written
from trtla.formats.gguf.folder import weight_file
from trtla.formats.gguf.header import MADE_OF, shards

JOURNAL, _JOB, _LOCK = "journal", "job.json", ".lock"
_LONGEST = 100
"""Characters of a change that an error shows: digests and chat templates are longer."""
_START_AGAIN = "choose another -o, or start again with --force"


@dataclass(frozen=True, slots=True)
class Job:
    """The state of a job, in memory and in its file, which is written before the first record."""

    folder: Path
    identity: dict[str, Any]
    """The digests of its input and of its model's files, and the settings that may change an
    answer: a job continues only if they are the same."""
    created: int
    """The time when it began, in seconds of Unix time."""
    finished: Counts | None = None
    """Its totals, once it is finished."""
    first_error: str | None = None
    """The message of the first line that failed, once the job is finished."""

    @property
    def key(self) -> str:
        """The digest of the identity."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()

    @property
    def output(self) -> Path:
        return self.folder / "output.jsonl"

    @property
    def errors(self) -> Path:
        return self.folder / "errors.jsonl"

    def finish(self, journal: Journal) -> Job:
        """Write the output from the journal, and delete that."""
        for path, failed in ((self.output, False), (self.errors, True)):
            lines = (record.data + b"\n" for record in journal.ordered(failed=failed))
            with written(path, FREE_SPACE):
                write_whole(path, lines, durable=True)
        first = next((_described(each) for each in journal.ordered(failed=True)), None)
        done = replace(self, finished=journal.counts, first_error=first)
        done.write()
        (self.folder / JOURNAL).unlink()
        return done

    def write(self) -> None:
        data = asdict(self)
        del data["folder"]
        with written(self.folder / _JOB, FREE_SPACE):
            write_whole(self.folder / _JOB, json_text(data), durable=True)


def _described(failed: Record) -> str:
    line = json.loads(failed.data)
    name, message = line["custom_id"], line["response"]["body"]["error"]["message"]
    return str(message) if name is None else f'custom_id "{name[:100]}": {message}'


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder, creating it if necessary; the lock ends with the process in any case."""
    with written(folder, "choose another -o"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another process is at work in {folder}", "wait for it, or choose another -o"
            ) from None
    with lock:
        yield


def open_job(folder: Path, identity: dict[str, Any], *, force: bool) -> Job:
    """Open the job in a locked folder, or begin a new one.

    Args:
        force: discard an existing job.
    """
    job = _read(folder)
    if job is None or force:
        return _begin(folder, identity, force=force)
    for name in identity | job.identity:
        old, value = job.identity.get(name), identity.get(name)
        if old != value:
            change = f"{name} {old}, not {value}"
            told = change if len(change) <= _LONGEST else f"another {name}"
            raise UsageError(f"{folder} holds a job with {told}", _START_AGAIN)
    if job.finished is not None:
        for path in (job.output, job.errors):
            if not path.is_file():
                raise UsageError(f"the job is finished, and {path} is gone", _START_AGAIN)
        (folder / JOURNAL).unlink(missing_ok=True)  # a kill may have prevented that
    return job


def _read(folder: Path) -> Job | None:
    path = folder / _JOB
    try:
        data = parse_json(path.read_bytes())
        finished = data.pop("finished")
        return Job(folder, finished=finished and Counts(**finished), **data)
    except FileNotFoundError:
        return None
    except (JsonError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} is no file of trtla batch", "choose another -o") from None


def _begin(folder: Path, identity: dict[str, Any], *, force: bool) -> Job:
    job = Job(folder, identity, int(time.time()))
    paths = (folder / JOURNAL, folder / _JOB, job.output, job.errors)
    for path in paths:
        if not force and path.exists() and path.stat().st_size:
            raise UsageError(f"{path} is of no job that is known here", _START_AGAIN)
    for path in paths:
        path.unlink(missing_ok=True)
    return job


_SAMPLES, _SAMPLE = 256, 1 << 16
"""Samples of a file and bytes of each: all of a file up to 16 MiB."""


def fingerprint(folders: list[Path]) -> str:
    """Return the digest of the files in a model's folder and its tokenizer's."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in _files(folder):
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with path.open("rb") as file:
                for start in range(0, size, max(_SAMPLE, size // _SAMPLES)):
                    file.seek(start)
                    digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    weights = weight_file(folder)
    yield from shards(weights) if weights else ()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name != MADE_OF and path.name[0] != ".":
            yield path
