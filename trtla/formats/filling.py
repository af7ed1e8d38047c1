"""Finished files that are renamed into a folder that is there, with other files in it.

Its config.json is moved out first and the new one comes last, so nothing opens what a kill leaves
in between. The files that were still to come are in a hidden folder inside, with a list of the
names: `restore` completes the move.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from trtla.errors import UsageError
from trtla.files import flush, read_json, write_json
from trtla.leftovers import locked

_READY = ".trtla-ready-"
_NAMES, _OLD = ".names.json", ".old"
_LAST = "config.json"


def fill(finished: Path, target: Path, replaced: Sequence[str] = ()) -> None:
    """Move all that is in a folder into `target`, in place of the entries of `replaced`.

    Both are on one disk. An error leaves the target as it was.

    Raises:
        OSError: a name cannot be changed, or another process fills the target.
    """
    new = sorted(entry.name for entry in finished.iterdir())
    write_json(finished / _NAMES, {"new": new, "replaced": list(replaced)})
    flush(finished / _NAMES)
    (finished / _OLD).mkdir()
    ready = finished.rename(target / f"{_READY}{os.urandom(8).hex()}")
    flush(target)
    done: list[tuple[Path, Path]] = []
    try:
        for old, place in _moves(ready, target, new, replaced):
            old.rename(place)
            done.append((old, place))
    except BaseException:
        for old, place in reversed(done):
            place.rename(old)
        shutil.rmtree(ready, ignore_errors=True)
        raise
    shutil.rmtree(ready, ignore_errors=True)


def restore(target: Path) -> None:
    """Complete a move into `target` that a killed process had begun, if there is one.

    One that had not begun, or that lacks files by now, is undone. Nothing happens while the process
    is still running.
    """
    with suppress(OSError, ValueError):  # the caller reports the fault
        for ready in [path for path in target.iterdir() if path.name.startswith(_READY)]:
            with locked(ready):
                _complete(ready, target)


def is_half_filled(target: Path) -> bool:
    """Return True while a folder has files that are still to be moved into it."""
    return any(target.glob(f"{_READY}*"))


def _complete(ready: Path, target: Path) -> None:
    with suppress(UsageError, KeyError, TypeError):
        names = read_json(ready / _NAMES)
        new, replaced = names["new"], names["replaced"]
        there = [name for name in new if _there(ready / name) or _there(target / name)]
        if not _there(target / _LAST) and there == new:
            for old, place in _moves(ready, target, new, replaced):
                old.rename(place)
    shutil.rmtree(ready)


def _moves(
    ready: Path, target: Path, new: Sequence[str], replaced: Sequence[str]
) -> Iterator[tuple[Path, Path]]:
    """The renames that are still to be done, in their order.

    A name of `new` that is no longer in `ready` has been moved, so it is not the replaced one.
    """
    for name in sorted(replaced, key=lambda name: name != _LAST):
        if _there(target / name) and (name not in new or _there(ready / name)):
            yield target / name, ready / _OLD / name
    for name in sorted(new, key=lambda name: name == _LAST):
        if name == _LAST:
            flush(target)
        if _there(ready / name):
            yield ready / name, target / name
    flush(target)


def _there(path: Path) -> bool:
    return os.path.lexists(path)
