"""Reading and writing of whole files, and parsing of JSON, JSONL and YAML into checked values.

A file is written completely or not at all: under a temporary name beside it, then renamed.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from trtla.errors import TrtlaError, UsageError, did_you_mean, first_line, needed
from trtla.leftovers import is_temporary, locked, remove_abandoned, temporary_name

if TYPE_CHECKING:
    import pydantic

ModelT = TypeVar("ModelT", bound="pydantic.BaseModel")
ASSETS = Path(__file__).parent / "assets"
"""Files shipped beside the code: tiny models, prompt sets."""
_MAX_DEPTH = 100  # far above any real file; later recursion over the values must not overflow
_NO_HOME = Path("/nonexistent")  # Debian's name for it in /etc/passwd
CACHE_HINT = "free some space, or set XDG_CACHE_HOME to a folder that can be written"
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk or an exhausted quota."""
_DISK = {*FULL, errno.EIO, errno.EFBIG}
_OWN_FILE = "correct the value, or make the file again with trtla"


_STAND_INS = {
    b"version https://git-lfs.github.com/": (
        "is git-lfs's pointer to a file, not the file",
        "run git lfs pull in its folder, or download the file itself",
    ),
    **dict.fromkeys(
        (b"<!doctype html", b"<html"),
        (
            "is a web page, not the file",
            "download the file itself: its address at the hub has /resolve/ in place of /blob/",
        ),
    ),
}
"""Beginnings of files that stand for another one: the problem, and how to get the other."""


def refuse_stand_in(path: Path) -> None:
    """Raise `UsageError` where a file is a pointer of git-lfs or a web page."""
    with suppress(OSError, ValueError):
        with path.open("rb") as file:
            head = file.read(100).lstrip().lower()
        for start, (problem, hint) in _STAND_INS.items():
            if head.startswith(start):
                raise UsageError(f"{path} {problem}", hint)


def read_text(path: Path) -> str:
    """Read a UTF-8 text file, without the byte order mark that it may begin with."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", "check the path") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})", "convert it") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check the path") from None
    except ValueError:  # a NUL
        raise UsageError(f"{str(path)!r} is not a path", "check the path") from None


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a JSON object as a file of an engine or a checkpoint."""
    path.write_text(json_text(data), encoding="utf-8")


def json_text(data: dict[str, Any]) -> str:
    """A JSON object as text, indented by 4 as TensorRT-LLM does."""
    return json.dumps(data, indent=4) + "\n"


def write_whole(path: Path, data: str | bytes | Iterable[bytes], *, durable: bool = False) -> Path:
    """Replace a file's content; a failure leaves the old content, and nothing else.

    Devices and pipes are written to, never replaced. A file's permissions follow the umask, and
    never grant more than those of the replaced file.

    Args:
        data: all of it, or piece by piece.
        durable: when this returns, it is on the disk under its name.

    Raises:
        OSError: the disk is full, or permission is missing.
    """
    data = data.encode("utf-8") if isinstance(data, str) else data
    if path.exists() and not path.is_file():
        with path.open("wb") as other:
            other.writelines((data,) if isinstance(data, bytes) else data)
        return path
    _sweep(path.parent, path.name)
    part = path.with_name(temporary_name(path.name))
    file = part.open("xb")
    try:
        with file, locked(part, OSError):
            with suppress(FileNotFoundError):
                os.fchmod(file.fileno(), part.stat().st_mode & path.stat().st_mode & 0o777)
            file.writelines((data,) if isinstance(data, bytes) else data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
        if durable:
            flush(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path


@contextmanager
def written(path: Path, hint: str) -> Iterator[None]:
    """Name the file that could not be written: `TrtlaError` where the disk is full or has failed,
    `UsageError` where the path cannot be written to."""
    try:
        yield
    except OSError as error:
        kind = TrtlaError if error.errno in _DISK else UsageError
        raise kind(f"{path} cannot be written: {error.strerror or error}", hint) from None


@contextmanager
def temporary_folder(parent: Path, name: str = "new") -> Iterator[Path]:
    """A temporary folder in another one, removed when the block ends, however it ends."""
    _sweep(parent, name)
    folder = parent / temporary_name(name)
    folder.mkdir(0o700)
    try:
        with locked(folder, OSError):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(folder: Path, name: str) -> None:
    """Remove what killed writers of this name left there, in the user's cache of all names."""
    with suppress(OSError):
        left = (path for path in folder.iterdir() if path.name.startswith(f".{name}."))
        remove_abandoned(filter(is_temporary, left))
    cache = user_cache()
    if folder == cache or cache in folder.parents:
        _swept(cache, folder)


@lru_cache  # once in a process
def _swept(cache: Path, folder: Path) -> None:
    with suppress(OSError):
        inner = {path for path in cache.iterdir() if path.is_dir() and not is_temporary(path)}
        for each in {cache, folder, *inner}:
            remove_abandoned(filter(is_temporary, each.iterdir()))


def flush(path: Path) -> None:
    """Flush a file's content, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def user_cache() -> Path:
    """`$XDG_CACHE_HOME/trtla`, else `~/.cache/trtla`; it may not exist.

    A relative path in the variable is ignored, as its specification says. For a user without a home
    directory it is a folder that cannot be written to.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (named if named.is_absolute() else Path.home() / ".cache") / "trtla"
    except RuntimeError:
        return _NO_HOME / ".cache" / "trtla"


class JsonError(ValueError):
    """The problem of a JSON text, in one phrase, and the line where that is known."""

    def __init__(self, phrase: str, line: int | None = None) -> None:
        super().__init__(phrase)
        self.line = line


def parse_json(text: str | bytes, *, unique: bool = False) -> Any:
    """Parse a JSON text; the last of duplicate keys counts. Bytes are UTF-8.

    Args:
        unique: refuse duplicate keys.

    Raises:
        JsonError: it is not JSON, or holds NaN or Infinity, a number of thousands of digits, or
            more than 100 levels.
    """

    def refuse(constant: str) -> NoReturn:
        raise JsonError(f"it holds {constant}, which is not a number")

    try:
        text = _utf8(text) if isinstance(text, bytes) else text
        value = json.loads(
            text, parse_constant=refuse, object_pairs_hook=_unique if unique else None
        )
    except JsonError:
        raise
    except json.JSONDecodeError as error:
        raise JsonError(error.msg, error.lineno) from None
    except UnicodeDecodeError as error:
        raise JsonError(f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise JsonError(f"it has more than {_MAX_DEPTH} levels") from None
    except ValueError:  # Python refuses to convert integers of more than 4300 digits
        raise JsonError("it holds a number with thousands of digits") from None
    _check_depth(value)
    return value


def _utf8(data: bytes) -> str:
    """Decode UTF-8, where `json` would guess the encoding."""
    if b"\0" in data:
        raise JsonError("it holds a NUL, as UTF-16 and UTF-32 do, and must be UTF-8")
    return data.decode("utf-8-sig")


def parse_texts(text: str) -> Any:
    """Parse JSON whose strings are for a tokenizer, unlike names of files, which may be anything.

    Raises `JsonError` as `parse_json` does, for a duplicate key, and half a surrogate pair.
    """
    value = parse_json(text, unique=True)
    if _HALF_PAIR.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start]).strip("'")
            raise JsonError(f"it holds {half}, half of a surrogate pair") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items = dict(pairs)
    if len(items) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise JsonError(f"it has the key {twice[:100]!r} twice")
    return items


def _check_depth(value: Any) -> None:
    """Check level by level: the values may be nested more deeply than Python's stack allows."""
    level: list[Any] = [[value]]
    for _ in range(_MAX_DEPTH + 1):
        inside = (item.values() if isinstance(item, dict) else item for item in level)
        level = [item for values in inside for item in values if isinstance(item, (dict, list))]
        if not level:
            return
    raise JsonError(f"it has more than {_MAX_DEPTH} levels")


def parse_jsonl(model: type[ModelT], text: str, name: str) -> list[tuple[str, ModelT]]:
    """The lines of a JSONL text as models, each with `line N of NAME`; blank lines are skipped."""
    lines = [(f"line {i} of {name}", line) for i, line in enumerate(text.split("\n"), 1)]
    return [
        (where, validate(model, _parse_line(line, where), where, "correct the line"))
        for where, line in lines
        if line.strip()
    ]


def _parse_line(line: str, where: str) -> dict[str, Any]:
    try:
        data = parse_texts(line)
    except JsonError as error:
        raise UsageError(f"{where} is not JSON: {error}", "write one JSON object a line") from None
    if not isinstance(data, dict):
        raise UsageError(f"{where} is not a JSON object", 'write {"text": "..."} lines')
    return data


def read_json(path: Path) -> Any:
    """Parse a JSON file, as `parse_json` does."""
    try:
        return parse_json(read_text(path))
    except JsonError as error:
        refuse_stand_in(path)
        position = f" in line {error.line}" if error.line else ""
        raise UsageError(f"{path} is not JSON: {error}{position}", "copy the file again") from None


_YAML_LINES = "write key: value lines, nested keys below theirs with one indent"


def read_yaml(path: Path) -> dict[str, Any]:
    """Parse a YAML file that holds a mapping."""
    import yaml

    try:
        data = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = first_line(error)  # ValueError: a number or date that Python cannot represent
        mark = getattr(error, "problem_mark", None)
        position = f" in line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path} is not YAML: {reason}{position}", _YAML_LINES) from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no settings", _YAML_LINES)
    return {str(key).replace("-", "_"): value for key, value in data.items()}


def validate(model: type[ModelT], data: Any, where: str, hint: str = _OWN_FILE) -> ModelT:
    """Build a pydantic model; its first error becomes a `UsageError` naming key and value.

    `where` names the data in errors, `hint` suggests a correction of a wrong value."""
    import pydantic

    try:
        return model.model_validate(data)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "extra_forbidden":
            *outer, key = first["loc"]
            known = [field.alias or name for name, field in model.model_fields.items()]
            names = {} if outer else getattr(model, "instead", {})
            guess = f'use "{names[key]}", or ' if key in names else ""
            guess = guess or did_you_mean(str(key), () if outer else known)
            hint = f"{guess}remove the key, or check its spelling"
        raise UsageError(f"{where}: {_describe(first)}", hint) from None


def _describe(first: Mapping[str, Any]) -> str:
    """One sentence on pydantic's first error: the key path, the problem, and the value."""
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f'"{key}" is missing'
    if first["type"] == "extra_forbidden":
        return f'unknown key "{key}"'
    if first["type"] == "value_error":
        return str(first["msg"]).removeprefix("Value error, ")
    value = first["input"]
    shown = value if isinstance(value, float) and not math.isfinite(value) else repr(value)
    return f'"{key}" is {shown}: it must be {needed(first)}'
