"""Directories that appear complete or not at all.

Everything is written into a hidden sibling of the target, flushed to disk and renamed. Errors and
Ctrl-C remove the sibling; a killed process leaves it, never a half target, and the next run removes
it. An existing target is replaced only with force, only at the end, and only if it is a folder that
trtla or TensorRT-LLM made: the system exchanges the two folders in one step, or where it cannot,
the old one is renamed first and `restore` brings it back after a kill.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from trtla.errors import TrtlaError, UsageError
from trtla.files import flush, read_json
from trtla.interrupts import INTERRUPTS
from trtla.leftovers import locked, remove_abandoned

_NEW, _OLD = "tmp", "old"  # kinds of siblings: .NAME.tmp-RANDOM, .NAME.old-RANDOM
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux, fcntl.h and fs.h
_REASONS = {
    errno.ENOSPC: ("the disk is full", "free some space, or choose an --output-dir elsewhere"),
    errno.ENOTEMPTY: ("another process filled it meanwhile", "choose another --output-dir"),
    errno.EDQUOT: ("the disk quota is used up", "free some space, or choose another --output-dir"),
    errno.EFBIG: ("the file would exceed the size limit", "raise the limit (ulimit -f)"),
    errno.EACCES: ("no permission", "choose an --output-dir that you may write to"),
    errno.EPERM: ("no permission", "choose an --output-dir that you may write to"),
    errno.EROFS: ("the disk is read-only", "choose an --output-dir elsewhere"),
}


def check_target(target: Path, *, force: bool, sources: Sequence[Path] = ()) -> None:
    """Refuse a target directory that must not be written, before any work."""
    restore(target)
    resolved = _real(target)
    for source in sources:
        if resolved == _real(source) or resolved in _real(source).parents:
            raise UsageError(
                f"output folder {target} holds the input {source}", "choose another --output-dir"
            )
    try:
        if not os.path.lexists(resolved):
            return
        if not resolved.is_dir():
            raise UsageError(f"{target} is a file", "choose another --output-dir")
        if not any(resolved.iterdir()):
            return
        if not force:
            raise UsageError(
                f"output folder {target} is not empty",
                "add --force to replace it, or choose another",
            )
        _check_replaceable(target, resolved)
    except OSError as error:
        raise os_failure(error, target) from None


def _real(path: Path) -> Path:
    """Follow links; `Path.resolve` raises RuntimeError for those that lead in a circle."""
    return Path(os.path.realpath(path))


def _check_replaceable(target: Path, resolved: Path) -> None:
    foreign = next((entry.name for entry in resolved.iterdir() if not entry.is_file()), None)
    if foreign is None and _is_ours(resolved / "config.json"):
        return
    note = f" (it holds {foreign}/)" if foreign else ""
    raise UsageError(
        f"output folder {target} is no checkpoint or engine{note}, so --force does not replace it",
        "remove it yourself, or choose another --output-dir",
    )


def _is_ours(config: Path) -> bool:
    """Checkpoints have a mapping, engines a build_config; Hugging Face's config.json neither."""
    try:
        data = read_json(config)
    except UsageError:
        return False
    return isinstance(data, dict) and ("mapping" in data or "build_config" in data)


@contextmanager
def atomic_directory(
    target: Path, *, force: bool = False, sources: Sequence[Path] = ()
) -> Iterator[Path]:
    """Give a folder to write into; rename it to `target` when the block ends without an error."""
    check_target(target, force=force, sources=sources)
    resolved = _real(target)
    created: list[Path] = []
    folder: Path | None = None
    try:
        created = [path for path in resolved.parents if not path.exists()]
        resolved.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned([*_siblings(resolved, _NEW), *_siblings(resolved, _OLD)])
        folder = _sibling(resolved, _NEW)
        folder.mkdir()
        with INTERRUPTS.undone(partial(_clean_up, folder, created)), locked(folder):
            yield folder
            for path in (*folder.iterdir(), folder):
                flush(path)
            _move_into_place(folder, resolved, force)
    except BaseException as error:
        _clean_up(folder, created)
        if isinstance(error, OSError):
            raise os_failure(error, target) from None
        raise


def os_failure(error: OSError, target: Path) -> TrtlaError:
    """The error of a failed write as one sentence and a hint."""
    reason, hint = _REASONS.get(
        error.errno or 0, (error.strerror or str(error), "choose another --output-dir")
    )
    return TrtlaError(f"cannot write {target}: {reason}", hint)


def _sibling(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}.{kind}-{os.urandom(8).hex()}")


def _siblings(target: Path, kind: str) -> list[Path]:
    start = f".{target.name}.{kind}-"
    return [path for path in target.parent.iterdir() if path.name.startswith(start)]


def restore(target: Path) -> None:
    """Bring a folder back that a killed process had renamed in order to replace it.

    Nothing happens where the target is there, or where the process is still running.
    """
    with suppress(OSError, ValueError):  # the caller reports the fault
        resolved = _real(target)
        if os.path.lexists(resolved):
            return
        for sibling in _siblings(resolved, _OLD):
            with locked(sibling):
                sibling.rename(resolved)
            return


def _move_into_place(folder: Path, target: Path, force: bool) -> None:
    """Rename; with force an old folder changes places with the new one, and is deleted last."""
    if not force or not target.is_dir() or not any(target.iterdir()):
        # Atomic, also onto an empty folder; fails if someone filled the target meanwhile.
        folder.rename(target)
    elif _exchange(folder, target):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        _replace(folder, target)


def _exchange(first: Path, second: Path) -> bool:
    """Let two folders change places in one step; False where the system or the disk cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    paths = _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second)
    return bool(rename(*paths, _RENAME_EXCHANGE) == 0)


def _replace(folder: Path, target: Path) -> None:
    """Replace it in two steps; while the target is locked, `restore` leaves it alone."""
    aside = _sibling(target, _OLD)
    with locked(target):
        try:
            target.rename(aside)
            folder.rename(target)
        except BaseException:
            if not os.path.lexists(target):
                aside.rename(target)
            raise
        shutil.rmtree(aside, ignore_errors=True)


def _clean_up(folder: Path | None, created: Sequence[Path]) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    for parent in created:
        with suppress(OSError):
            parent.rmdir()
