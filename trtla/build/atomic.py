"""Directories that appear complete or not at all.

Everything is written into a hidden sibling of the target, flushed to disk and renamed. Errors and
Ctrl-C remove the sibling; a killed process leaves it, never a half target, and the next run sweeps
it away. An existing target is replaced only with force, only at the end, and only if it is a folder
that trtla or TensorRT-LLM made.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from trtla.config import read_json
from trtla.errors import TrtlaError, UsageError

_STALE_SECONDS = 60.0  # a sibling this old and not locked belongs to a killed process
_REASONS = {
    errno.ENOSPC: ("the disk is full", "free some space, or choose an --output-dir elsewhere"),
    errno.ENOTEMPTY: ("another process has filled it meanwhile", "choose another --output-dir"),
    errno.EDQUOT: ("the disk quota is used up", "free some space, or choose another --output-dir"),
    errno.EFBIG: ("the file would exceed the size limit", "raise the limit (ulimit -f)"),
    errno.EACCES: ("no permission", "choose an --output-dir that you may write to"),
    errno.EPERM: ("no permission", "choose an --output-dir that you may write to"),
    errno.EROFS: ("the disk is read-only", "choose an --output-dir elsewhere"),
}


def check_target(target: Path, *, force: bool, sources: Sequence[Path] = ()) -> None:
    """Refuse a target directory that must not be written, before any work.

    Raises:
        UsageError: the target is a file, is or holds a source, is not empty (without force), or
            is not a checkpoint or engine folder (with force).
    """
    resolved = target.resolve()
    for source in sources:
        if resolved == source.resolve() or resolved in source.resolve().parents:
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


def _check_replaceable(target: Path, resolved: Path) -> None:
    foreign = next((entry.name for entry in resolved.iterdir() if not entry.is_file()), None)
    if foreign is None and _is_ours(resolved / "config.json"):
        return
    found = f" (it holds {foreign}/)" if foreign else ""
    raise UsageError(
        f"output folder {target} is no checkpoint or engine{found}, so --force does not replace it",
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
    """Give a folder to write into, and rename it to `target` when the block ends without an error.

    Raises:
        UsageError: see `check_target`.
        TrtlaError: the disk is full or read-only, or permission is missing.
    """
    check_target(target, force=force, sources=sources)
    resolved = target.resolve()
    created: list[Path] = []
    folder: Path | None = None
    try:
        created = _make_parents(resolved.parent)
        _sweep(resolved)
        folder = Path(tempfile.mkdtemp(prefix=f".{resolved.name}.tmp-", dir=resolved.parent))
        folder.chmod(0o777 & ~_umask())
        with _locked(folder):
            yield folder
            _flush(folder)
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


def _make_parents(folder: Path) -> list[Path]:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock that ends with the process: what is left without one belongs to nobody.

    Raises:
        BlockingIOError: another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _sweep(target: Path) -> None:
    """Remove what killed processes left beside the target."""
    for left in target.parent.glob(f".{target.name}.tmp-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                with _locked(left):
                    shutil.rmtree(left)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _flush(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _move_into_place(folder: Path, target: Path, force: bool) -> None:
    """Rename; with force an old folder steps aside first and is deleted last."""
    if not force or not target.is_dir() or not any(target.iterdir()):
        # Atomic, also onto an empty folder; fails if someone filled the target meanwhile.
        folder.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
    target.rename(aside)
    try:
        folder.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _clean_up(folder: Path | None, created: Sequence[Path]) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    for parent in created:
        with suppress(OSError):
            parent.rmdir()
