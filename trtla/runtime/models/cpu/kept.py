"""Packed weights in files: written once, mapped read-only, shared by all processes that read them.

A file holds a model's panels for one processor and arithmetic, and at its end an index of them. Its
name is a digest of all that they depend on. It counts as whole while its modification time is the
one that its writer gives it: whatever writes to it later changes that.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import math
import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
from numpy import ndarray

from trtla.files import user_cache, write_whole
from trtla.formats import blocks
from trtla.formats.engine import Engine
from trtla.formats.gguf.folder import model_inputs
from trtla.runtime.arrays import LINE
from trtla.runtime.models.cpu import packing
from trtla.runtime.models.cpu.packing import ModelPanels, Packed, Panels, packing_of

SUFFIX = ".panels"
_WRITTEN_NS = 978_307_200 * 10**9
"""The modification time of a whole file, in the past: 2001-01-01."""
_END = Struct("<QQ8s")
"""Where the index begins, its bytes, and `_MAGIC`: the end of a file."""
_MAGIC = b"trtla-1\n"
_SAMPLE = 1 << 16
"""Bytes of each end of a weight file that count for its digest: the header is among them."""
_SPARE = 0.1
"""Share of a disk that stays free."""
_WEIGHTS = (".safetensors", ".bin", ".gguf")
_log = logging.getLogger(__name__)


def kept_panels(
    engine: Engine, arithmetic: str, gigabytes: float, make: Callable[[], Panels]
) -> ModelPanels:
    """Mapped from their file; where there is none, it is written, or they stay in memory.

    An engine's folder may hold the file as well as the user's cache; it is only read.

    Args:
        gigabytes: of all files in the cache; those that were read longest ago go first.
    """
    cache, name = user_cache() / "panels", panels_name(engine, arithmetic)
    for folder in (cache,) if engine.manifest is None else (engine.path, cache):
        found = mapped(folder / name)
        if found is not None:
            return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        most, disk = int(gigabytes * 10**9), shutil.disk_usage(cache)
        write_panels(cache / name, make(), min(most, int(disk.free - _SPARE * disk.total)))
        _make_room(cache, most)
        found = mapped(cache / name)
    except OSError as error:
        _log.info("packed weights are not kept: %s", error.strerror or error)
        found = None
    return found or ModelPanels.of(make())


def _make_room(cache: Path, most_bytes: int) -> None:
    """Remove files until the others are small enough together, those read last."""
    found = [(one, one.stat()) for one in cache.glob(f"*{SUFFIX}")]
    left = most_bytes
    for path, stat in sorted(found, key=lambda item: item[1].st_atime_ns, reverse=True):
        left -= stat.st_size
        if left < 0:
            with suppress(FileNotFoundError):
                path.unlink()


def panels_name(engine: Engine, arithmetic: str) -> str:
    """The file's name: a digest of weights, configuration, arithmetic and layout."""
    layout = [inspect.getsource(module) for module in (packing, blocks)]
    facts = {
        "config": engine.config.pretrained_config.model_dump_json(),
        "layout": [hashlib.sha256("".join(layout).encode()).hexdigest(), _MAGIC.decode()],
        "packing": repr(packing_of(arithmetic)),
        "files": [_file_digest(path) for path in _weight_files(engine.path)],
    }
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24] + SUFFIX


def _weight_files(folder: Path) -> list[Path]:
    others = [path for path in folder.iterdir() if path.suffix in _WEIGHTS]
    inputs = [path for path in model_inputs(folder) if path.is_file()]
    return sorted({*others, *inputs})


def _file_digest(path: Path) -> list[Any]:
    """Changes where a file does: its size, its time, and what its header says."""
    stat = path.stat()
    with path.open("rb") as file:
        head = file.read(_SAMPLE)
        file.seek(max(0, stat.st_size - _SAMPLE))
        ends = hashlib.sha256(head + file.read(_SAMPLE)).hexdigest()
    return [stat.st_size, stat.st_mtime_ns, ends]


def write_panels(path: Path, panels: Panels, most_bytes: float = math.inf) -> None:
    """Write a file of panels, one after the other as they are made."""
    write_whole(path, _pieces(panels, most_bytes), durable=True)
    os.utime(path, ns=(time.time_ns(), _WRITTEN_NS))


def _pieces(panels: Panels, most_bytes: float) -> Iterator[bytes]:
    """A file's content: each array at the beginning of a line of the cache, then the index."""
    index: dict[str, Any] = {}
    at = 0
    for name, one in panels:
        arrays, entry = _described(one)
        for array in arrays:
            data = array.reshape(-1).view(np.uint8)
            entry["at"].append([at, len(data)])
            yield data.tobytes() + b"\0" * (-len(data) % LINE)
            at += len(data) + -len(data) % LINE
        if at > most_bytes:
            raise OSError(f"there is room for {most_bytes / 10**9:.1f} GB")
        index[name] = entry
    text = json.dumps(index).encode()
    yield text + _END.pack(at, len(text), _MAGIC)


def _described(one: Packed | ndarray) -> tuple[list[ndarray], dict[str, Any]]:
    if isinstance(one, ndarray):
        return [one], {"at": []}
    kinds = {"outputs": one.outputs, "inputs": one.inputs, "type": one.type, "stored": one.stored}
    return [one.weight, *([] if one.bias is None else [one.bias])], {"at": [], **kinds}


def mapped(path: Path) -> ModelPanels | None:
    """The panels of a file; None where it is not there, or not as it was written."""
    try:
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            if stat.st_mtime_ns != _WRITTEN_NS:
                return None
            data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        found = ModelPanels.of(_read(data))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with suppress(OSError):  # of another user
        os.utime(path, ns=(time.time_ns(), _WRITTEN_NS))
    return found


def _read(data: ndarray) -> Panels:
    start, size, magic = _END.unpack(data[-_END.size :].tobytes())
    if magic != _MAGIC or start + size + _END.size != len(data):
        raise ValueError(magic)
    for name, entry in json.loads(data[start : start + size].tobytes()).items():
        arrays = [data[at : at + length] for at, length in entry.pop("at")]
        if entry:
            bias = arrays[1].view(np.float32) if len(arrays) > 1 else None
            yield name, Packed(arrays[0], bias, **entry)
        else:
            yield name, arrays[0].view(np.float32)
