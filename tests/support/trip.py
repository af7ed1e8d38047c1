"""Counts the files and records that carry a prompt through a command.

A value carries the prompt if it is a text or bytes that hold the prompt or the answer, a list,
tuple or array of ids that begins with those of the prompt or is a stretch of the answer's (two at
least), the request's `SamplingParams`, or a container, dataclass or body that holds one of these. A
file counts where one of its functions takes such a value as an argument, `self` included, or
returns one. A record is a dataclass of trtla that was made during the run and carries the prompt.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from pydantic import BaseModel

import trtla
from trtla.settings.sampling import SamplingParams

_ROOT = f"{Path(trtla.__file__).parent}/"
_DEEPEST = 3
_MOST_ITEMS = 200
_SHORTEST = 4
"""Letters of a part of the answer that are no coincidence."""


class Trip:
    """Sees every call while it is a profiler, in all threads that begin meanwhile."""

    def __init__(self, prompt: str, ids: list[int], answer: str, answer_ids: list[int]) -> None:
        self._prompt, self._ids, self._answer, self._answer_ids = prompt, ids, answer, answer_ids
        self._busy = threading.local()
        self.files: defaultdict[str, set[str]] = defaultdict(set)
        self.records: set[str] = set()

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        if event not in ("call", "return") or getattr(self._busy, "on", False):
            return
        self._busy.on = True
        try:
            self._look(frame, event, result)
        finally:
            self._busy.on = False

    def _look(self, frame: FrameType, event: str, result: Any) -> None:
        code = frame.f_code
        if code.co_filename == "<string>" and code.co_name == "__init__" and event == "return":
            made = frame.f_locals.get("self")
            if type(made).__module__.startswith("trtla.") and self._carries(made):
                self.records.add(type(made).__name__)
        file = code.co_filename.removeprefix(_ROOT)
        if file == code.co_filename or code.co_name in self.files[file]:
            return
        values = [result] if event == "return" else _arguments(frame)
        if any(map(self._carries, values)):
            self.files[file].add(code.co_name)

    def _carries(self, value: Any, depth: int = _DEEPEST) -> bool:
        if isinstance(value, str):
            part = len(value) >= _SHORTEST and value in self._answer
            return self._prompt in value or self._answer in value or part
        if isinstance(value, bytes):
            return self._prompt.encode() in value or self._answer.encode() in value
        if isinstance(value, SamplingParams):
            return True
        if isinstance(value, np.ndarray):
            return value.dtype.kind == "i" and value.ndim == 1 and self._are_ids(value.tolist())
        if isinstance(value, (list, tuple)) and value and all(type(one) is int for one in value):
            return self._are_ids(list(value))
        inside = _inside(value) if depth else []
        return any(self._carries(one, depth - 1) for one in inside)

    def _are_ids(self, ids: list[int]) -> bool:
        if ids[: len(self._ids)] == self._ids:
            return True
        starts = range(len(self._answer_ids) - len(ids) + 1) if len(ids) > 1 else ()
        return any(self._answer_ids[start : start + len(ids)] == ids for start in starts)


def _arguments(frame: FrameType) -> list[Any]:
    code = frame.f_code
    more = bool(code.co_flags & 4) + bool(code.co_flags & 8)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + more]
    return [frame.f_locals.get(name) for name in names]


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value) if len(value) <= _MOST_ITEMS else []
    if isinstance(value, BaseModel):
        return list(vars(value).values())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return []


def main() -> None:
    """Run a command line of trtla, and write what it found to a file.

    The first arguments are the file, and JSON with the prompt, its ids, its answer and the answer's
    ids.
    """
    from trtla.cli import main as command

    found, known, *line = sys.argv[1:]
    trip = Trip(*json.loads(known))
    threading.setprofile(trip)
    sys.setprofile(trip)
    try:
        command(line)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        files = {file: sorted(names) for file, names in trip.files.items() if names}
        Path(found).write_text(json.dumps([files, sorted(trip.records)]))


if __name__ == "__main__":
    main()
