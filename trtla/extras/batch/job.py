"""A job's folder: its lock, its identity, its progress, and its output at the end."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trtla.console import counted
from trtla.errors import TrtlaError, UsageError
from trtla.extras.batch.journal import FREE_SPACE, Counts, Journal
from trtla.files import JsonError, json_text, parse_json, write_whole, written
from trtla.formats.gguf.folder import weight_file
from trtla.formats.gguf.header import MADE_OF, shards

OUTPUT, ERRORS = "output.jsonl", "errors.jsonl"
_JOB, _JOURNAL, _LOCK = "job.json", "journal", ".lock"
_FORMAT = "trtla batch 1"
_LONGEST = 200
"""Characters of a changed setting that an error shows: chat templates may be longer."""
_START_AGAIN = "choose another -o, or start again with --force"


@dataclass(frozen=True, slots=True)
class Identity:
    """The input, model and settings of a job, which continues only if they are the same."""

    input: str
    """The digest of the input file."""
    model: str
    """The digest of the model's files."""
    settings: dict[str, Any]
    """Settings that may change an answer."""

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Job:
    """The state of a job, in memory and in its file."""

    folder: Path
    identity: Identity
    created: int
    """The time when it began, in seconds of Unix time."""
    finished: Counts | None = None
    """Its totals, once it is finished."""

    @property
    def output(self) -> Path:
        return self.folder / OUTPUT

    @property
    def errors(self) -> Path:
        return self.folder / ERRORS

    @property
    def is_empty(self) -> bool:
        """True if nothing was done; its model may not even have opened."""
        kept = self.folder / _JOURNAL
        return self.finished is None and not (kept.exists() and kept.stat().st_size)

    def journal(self, last: int) -> Journal:
        """Open the journal of finished lines, for line numbers up to `last`."""
        return Journal(self.folder / _JOURNAL, self.identity.key, last)

    def finish(self, journal: Journal) -> Job:
        """Write the output from the journal, and delete that."""
        for path, failed in ((self.output, False), (self.errors, True)):
            lines = (record.data + b"\n" for record in journal.ordered(failed=failed))
            with written(path, FREE_SPACE):
                write_whole(path, lines, durable=True)
        done = replace(self, finished=journal.counts)
        done.write()
        (self.folder / _JOURNAL).unlink(missing_ok=True)
        return done

    def write(self) -> None:
        data = {
            "format": _FORMAT,
            "created": self.created,
            **asdict(self.identity),
            "finished": None if self.finished is None else asdict(self.finished),
        }
        with written(self.folder / _JOB, FREE_SPACE):
            write_whole(self.folder / _JOB, json_text(data), durable=True)


def check_folder(folder: Path, source: Path) -> None:
    """Refuse a path that cannot be a folder, or whose files would overwrite the input."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", "choose another -o")
    for name in (OUTPUT, ERRORS, _JOB, _JOURNAL, _LOCK):
        if os.path.realpath(folder / name) == os.path.realpath(source):
            raise UsageError(f"{source} is the input, and would be replaced", "choose another -o")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder, creating it if necessary; the lock ends with the process in any case."""
    with written(folder, "choose another -o"):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another process is at work in {folder}", "wait for it, or choose another -o"
            ) from None
        except OSError as error:
            raise TrtlaError(
                f"{folder} cannot be locked: {error.strerror}", "choose an -o on a local disk"
            ) from None
        yield
    finally:
        os.close(descriptor)


def open_job(folder: Path, identity: Identity, source: Path, *, force: bool) -> Job:
    """Open the job in a locked folder, or begin a new one.

    Args:
        source: the input, for errors.
        force: discard an existing job.
    """
    job = _read(folder)
    for name in (OUTPUT, ERRORS, _JOB):  # leftovers of killed `write_whole`s
        for left in folder.glob(f".{name}.*"):
            left.unlink(missing_ok=True)
    if job is not None and job.is_empty and job.identity != identity:
        force = True
    if job is None or force:
        return _begin(folder, identity, force=force)
    _check_same(job, identity, source)
    if job.finished is not None:
        _check_whole(job)
    return job


def _begin(folder: Path, identity: Identity, *, force: bool) -> Job:
    job = Job(folder, identity, int(time.time()))
    paths = (folder / _JOURNAL, job.output, job.errors)
    for path in paths:
        if path.exists() and not force:
            raise UsageError(f"{path} is of no job that is known here", _START_AGAIN)
    for path in paths:
        path.unlink(missing_ok=True)
    job.write()
    return job


def _read(folder: Path) -> Job | None:
    path = folder / _JOB
    foreign = UsageError(f"{path} is no file of trtla batch", "choose another -o")
    try:
        data = parse_json(path.read_bytes())
        if data["format"] != _FORMAT:
            raise foreign
        identity = Identity(data["input"], data["model"], dict(data["settings"]))
        finished = data["finished"] and Counts(**data["finished"])
        return Job(folder, identity, int(data["created"]), finished)
    except FileNotFoundError:
        return None
    except (JsonError, KeyError, TypeError, ValueError):
        raise foreign from None


def _check_same(job: Job, wanted: Identity, source: Path) -> None:
    before, folder = job.identity, job.folder
    if before.input != wanted.input:
        raise UsageError(
            f"{folder} holds a job of another input than {source} is now", _START_AGAIN
        )
    if before.model != wanted.model:
        raise UsageError(f"{folder} holds a job of another model", _START_AGAIN)
    for name in wanted.settings | before.settings:
        old, value = before.settings.get(name), wanted.settings.get(name)
        if old != value:
            change = f"{name} {old}, not {value}"
            told = change if len(change) <= _LONGEST else f"another {name}"
            raise UsageError(f"{folder} holds a job with {told}", _START_AGAIN)


def _check_whole(job: Job) -> None:
    with suppress(OSError):
        (job.folder / _JOURNAL).unlink(missing_ok=True)  # a kill may have prevented that
    for path in (job.output, job.errors):
        if not path.is_file():
            raise UsageError(f"the job is finished, and {path} is gone", _START_AGAIN)


def first_failure(job: Job) -> str:
    """Return the message of the first error."""
    try:
        with job.errors.open("rb") as file:
            failed = parse_json(file.readline())
        name = failed["custom_id"]
        message = str(failed["response"]["body"]["error"]["message"])
    except (JsonError, KeyError, TypeError):
        raise UsageError(f"{job.errors} is not as the job has written it", _START_AGAIN) from None
    return message if name is None else f'custom_id "{name[:100]}": {message}'


def failure(job: Job) -> TrtlaError | None:
    """Return the error of a finished job; None if all lines were answered."""
    counts = job.finished
    if counts is None or not counts.failed:
        return None
    lines = counted(counts.done, "line")
    return TrtlaError(
        f"{counts.failed} of {lines} failed; the first, {first_failure(job)}",
        f"all are in {job.errors}",
    )


_WHOLE = 16 << 20
"""Bytes of a file up to which all of it is read."""
_SAMPLES, _SAMPLE = 256, 1 << 14


def fingerprint(folders: tuple[Path, ...]) -> str:
    """Return the digest of a model's files: those of its folder, and of further ones such as its
    tokenizer's."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in _files(folder):
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            for piece in _content(path):
                digest.update(piece)
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    weights = weight_file(folder)
    yield from shards(weights) if weights else ()
    for path in sorted(folder.iterdir()):
        made_here = path.name == MADE_OF or path.name[0] == "."
        if path.is_file() and not made_here:
            yield path


def _content(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE:
            yield file.read()
            return
        for sample in range(_SAMPLES):
            file.seek(sample * (size - _SAMPLE) // (_SAMPLES - 1))
            yield file.read(_SAMPLE)
