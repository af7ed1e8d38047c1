"""Directories that appear complete or not at all.

Everything is written into a hidden folder beside the target, or inside it if it is there, and
flushed to disk. A new target is that folder, renamed; in one that is there, `fill` renames the
finished files into it, config.json last. Errors and Ctrl-C remove the hidden folder; a killed
process leaves it, and the next run removes it. Nothing is replaced without force, with it only the
files of a checkpoint or an engine, and what has other names stays: the target may hold the input.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from trtla.errors import TrtlaError, UsageError
from trtla.files import flush, read_json
from trtla.formats.chat_templates import MORE_TEMPLATES
from trtla.formats.engine import MANIFEST
from trtla.formats.filling import fill, is_half_filled, restore
from trtla.formats.folder import HEAD_FOLDER, TOKENIZER_FILES
from trtla.formats.heads.copying import is_copied_head
from trtla.formats.model_folder import CONFIG
from trtla.formats.special_tokens import GENERATION_CONFIG
from trtla.leftovers import locked, remove_abandoned

_FILES = (CONFIG, MANIFEST, GENERATION_CONFIG, MORE_TEMPLATES, HEAD_FOLDER, *TOKENIZER_FILES)
_OWN = re.compile(rf"rank\d+\.(safetensors|engine)|{'|'.join(map(re.escape, _FILES))}")
_REASONS = {
    errno.ENOSPC: ("the disk is full", "free some space, or choose an --output-dir elsewhere"),
    errno.ENOTEMPTY: ("another process filled it meanwhile", "choose another --output-dir"),
    errno.EAGAIN: ("another process is writing into it", "wait until it has ended, and try again"),
    errno.EDQUOT: ("the disk quota is used up", "free some space, or choose another --output-dir"),
    errno.EFBIG: ("the file would exceed the size limit", "raise the limit (ulimit -f)"),
    errno.EACCES: ("no permission", "choose an --output-dir that you may write to"),
    errno.EPERM: ("no permission", "choose an --output-dir that you may write to"),
    errno.EROFS: ("the disk is read-only", "choose an --output-dir elsewhere"),
}


def check_target(target: Path, *, force: bool, sources: Sequence[Path] = ()) -> None:
    """Refuse a target directory that must not be written, before any work."""
    resolved = _real(target)
    restore(resolved)
    _check_sources(target, resolved, sources)
    try:
        if not os.path.lexists(resolved):
            return
        if not resolved.is_dir():
            raise UsageError(f"{target} is a file", "choose another --output-dir")
        if not os.access(resolved, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        _check_replaceable(target, resolved, force)
    except OSError as error:
        raise os_failure(error, target) from None


def _check_sources(target: Path, resolved: Path, sources: Sequence[Path]) -> None:
    """Refuse an input's own folder; the folders above it are allowed."""
    for source in sources:
        real = _real(source)
        folder = real.parent if real.is_file() else real
        if resolved == folder:
            raise UsageError(
                f"output folder {target} is that of the input {source}",
                "choose another --output-dir",
            )


def _real(path: Path) -> Path:
    """Follow links; `Path.resolve` raises RuntimeError for those that lead in a circle."""
    return Path(os.path.realpath(path))


def _check_replaceable(target: Path, resolved: Path, force: bool) -> None:
    """Refuse to replace files; what has other names stays as it is.

    Without its config.json, a folder that another process fills looks like one of someone's own.
    """
    busy = is_half_filled(resolved)
    names = _own_names(resolved)
    if not names:
        return
    kind = _kind(resolved / CONFIG)
    foreign = [name for name in names if not _is_replaceable(resolved / name)]
    if kind is None or foreign:
        if busy or is_half_filled(resolved):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        theirs = CONFIG if CONFIG in names and not kind else [*foreign, *names][0]
        raise UsageError(
            f"output folder {target} has a {theirs} that belongs to no checkpoint or engine",
            f"move {theirs} elsewhere, or choose another --output-dir",
        )
    if not force:
        raise UsageError(
            f"output folder {target} is not empty: it holds {kind}",
            f"add --force to replace the files of {kind}, or choose another --output-dir",
        )


def _own_names(folder: Path) -> list[str]:
    """The entries with names of a checkpoint's or an engine's files."""
    return sorted(entry.name for entry in folder.iterdir() if _OWN.fullmatch(entry.name))


def _is_replaceable(path: Path) -> bool:
    if path.name == HEAD_FOLDER:
        return is_copied_head(path)
    if path.name != MORE_TEMPLATES:
        return path.is_file() or path.is_symlink()
    return path.is_dir() and all(entry.suffix == ".jinja" for entry in path.iterdir())


def _kind(config: Path) -> str | None:
    """Checkpoints have a mapping, engines a build_config; Hugging Face's config.json neither."""
    try:
        data = read_json(config)
    except UsageError:
        return None
    kinds = {"build_config": "an engine", "mapping": "a checkpoint"}
    known = [kind for key, kind in kinds.items() if isinstance(data, dict) and key in data]
    return known[0] if known else None


@contextmanager
def atomic_directory(
    target: Path, *, force: bool = False, sources: Sequence[Path] = ()
) -> Iterator[Path]:
    """Give a folder to write into; its files are in `target` when the block ends without an error.

    A new target is the folder itself, renamed; one that is there gets the files one by one.
    """
    check_target(target, force=force, sources=sources)
    resolved = _real(target)
    created: list[Path] = []
    folder: Path | None = None
    try:
        created = [path for path in resolved.parents if not path.exists()]
        resolved.parent.mkdir(parents=True, exist_ok=True)
        inside = resolved.is_dir()
        home = resolved if inside else resolved.parent
        start = f".{resolved.name}.tmp-"
        remove_abandoned(path for path in home.iterdir() if path.name.startswith(start))
        folder = home / f"{start}{os.urandom(8).hex()}"
        folder.mkdir()
        with locked(folder):
            yield folder
            for path in (*folder.rglob("*"), folder):
                flush(path)
            if inside:
                _move_into(folder, target, resolved, force)
            else:
                folder.rename(resolved)  # fails if someone filled the target meanwhile
    except BaseException as error:
        _clean_up(folder, created)
        if isinstance(error, OSError):
            raise os_failure(error, target) from None
        raise


def _move_into(folder: Path, target: Path, resolved: Path, force: bool) -> None:
    """Move the files of a folder, unless someone has made others meanwhile."""
    with locked(resolved):
        _check_replaceable(target, resolved, force)
        fill(folder, resolved, _own_names(resolved))


def os_failure(error: OSError, target: Path) -> TrtlaError:
    """The error of a failed write as one sentence and a hint."""
    reason, hint = _REASONS.get(
        error.errno or 0, (error.strerror or str(error), "choose another --output-dir")
    )
    return TrtlaError(f"cannot write {target}: {reason}", hint)


def _clean_up(folder: Path | None, created: Sequence[Path]) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    for parent in created:
        with suppress(OSError):
            parent.rmdir()
