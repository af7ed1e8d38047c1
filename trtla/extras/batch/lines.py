"""The input: one request a line in OpenAI's batch format, read as a stream and never held."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from trtla.api.errors import ApiError
from trtla.api.protocol import ChatBody, CompletionBody
from trtla.api.reading import check_body
from trtla.errors import UsageError
from trtla.files import JsonError, parse_texts

LONGEST = 64 << 20
"""Most bytes of a line; a longer one is an error of that line, and is not held either."""
URLS: dict[str, type[ChatBody] | type[CompletionBody]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
}
_KEYS = ("custom_id", "method", "url", "body")
_FORM = '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}'
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank; its number in the file begins at 1."""

    number: int
    data: bytes | None
    """None: it was too long."""
    start: int = 0
    """Bytes of the file before it."""

    @property
    def sum(self) -> int:
        """A digest that detects changes of the line."""
        return int.from_bytes(hashlib.blake2b(self.data or b"", digest_size=8).digest(), "big")


@dataclass(frozen=True, slots=True)
class LineRequest:
    """A line's request: a body, or the error to answer with."""

    number: int
    custom_id: str | None
    body: ChatBody | CompletionBody | None = None
    error: ApiError | None = None
    is_named: bool = False
    """It is the only line, or the first one, with its custom_id."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of a first pass over the input."""

    digest: str
    """The digest of all its bytes."""
    count: int
    """Lines that are not blank."""
    last: int
    """The number of the last line."""
    first: array[int]
    """By line number: the first line with its custom_id; 0: it has none."""
    sums: array[int]
    """By line number: its digest."""


class Reader:
    """The lines of a file, once from beginning to end; `digest` is known then."""

    def __init__(self, path: Path) -> None:
        self._path, self._sum = path, hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._sum.hexdigest()

    def __iter__(self) -> Iterator[Line]:
        with _opened(self._path) as file:
            number = end = 0
            while data := file.readline(LONGEST):
                number, start, end = number + 1, end, end + len(data)
                self._sum.update(data)
                line = _line(number, data, start)
                if line.data is None:
                    end += self._skip(file)
                if line.data is None or line.data.strip():
                    yield line

    def _skip(self, file: IO[bytes]) -> int:
        passed = 0
        while data := file.readline(LONGEST):
            self._sum.update(data)
            passed += len(data)
            if data.endswith(b"\n"):
                break
        return passed


def _line(number: int, data: bytes, start: int) -> Line:
    if len(data) >= LONGEST and not data.endswith(b"\n"):
        return Line(number, None, start)
    return Line(number, data.removeprefix(_BOM) if number == 1 else data, start)


def lines_at(path: Path, starts: Iterable[tuple[int, int]]) -> Iterator[Line]:
    """Yield some lines of a file, given by number and offset."""
    with _opened(path) as file:
        for number, start in starts:
            file.seek(start)
            yield _line(number, file.readline(LONGEST), start)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        if not path.exists():
            raise UsageError(f"{path} does not exist", "check the path")
        if not path.is_file():
            raise UsageError(
                f"{path} is not a file, and the input is read twice", "write it to a file first"
            )
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check the path") from None


def survey(path: Path) -> Survey:
    """Pass over all lines: count them, and find those that share a custom_id."""
    reader, names, numbers, last = Reader(path), array("Q"), array("q"), 0
    count, sums = 0, array("Q", [0])
    for line in reader:
        count, last = count + 1, line.number
        _check_text(line, path)
        sums.extend([0] * (last - len(sums)))
        sums.append(line.sum)
        name = _custom_id(line)
        if name is not None:
            digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
            names.frombytes(digest)
            numbers.append(line.number)
    if not count:
        raise UsageError(f"{path} has no line", f"write a request a line: {_FORM}")
    return Survey(reader.digest, count, last, _firsts(names, numbers, last), sums)


def _check_text(line: Line, path: Path) -> None:
    try:
        (line.data or b"").decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"line {line.number} of {path} is not UTF-8 text (its byte {error.start})", "convert it"
        ) from None


def _firsts(names: array[int], numbers: array[int], last: int) -> array[int]:
    """Return by line number the first line with its name; millions of names fit, as digests."""
    import numpy as np

    pairs = np.frombuffer(names, np.uint64).reshape(-1, 2)
    lines = np.frombuffer(numbers, np.int64)
    order = np.lexsort((lines, pairs[:, 1], pairs[:, 0]))
    ordered = pairs[order]
    begins = np.ones(len(order), bool)
    begins[1:] = (ordered[1:] != ordered[:-1]).any(1)
    heads = lines[order][begins][np.cumsum(begins) - 1] if len(order) else lines
    first = np.zeros(last + 1, np.int64)
    first[lines[order]] = heads
    return array("q", first.tobytes())


def _custom_id(line: Line) -> str | None:
    try:
        data = _object(line)
    except ApiError:
        return None
    name = data.get("custom_id")
    return name if isinstance(name, str) and name else None


Firsts = Sequence[int] | Mapping[int, int]
"""By line number, as in `Survey`; at least that of the line in question."""


def parse(line: Line, first: Firsts) -> LineRequest:
    """Parse a line's request."""
    name = None
    is_named = first[line.number] == line.number
    try:
        data = _object(line)
        custom_id = data.get("custom_id")
        name = custom_id if isinstance(custom_id, str) else None
        return LineRequest(line.number, name, _body(data, line.number, first), is_named=is_named)
    except ApiError as error:
        return LineRequest(line.number, name, error=error, is_named=is_named)


def _object(line: Line) -> dict[str, Any]:
    where = f"line {line.number}"
    if line.data is None:
        raise _wrong(f"{where} has more than {LONGEST >> 20} MiB; split it")
    try:
        data = parse_texts(line.data.decode())
    except JsonError as error:
        raise _wrong(f"{where} is not JSON: {error}; write {_FORM}") from None
    if not isinstance(data, dict):
        raise _wrong(f"{where} is not a JSON object; write {_FORM}")
    return data


def _wrong(text: str, param: str | None = None, code: str = "invalid_line") -> ApiError:
    return ApiError(400, text, param, code)


def _body(data: dict[str, Any], number: int, first: Firsts) -> ChatBody | CompletionBody:
    _check_envelope(data, number)
    if first[number] != number:
        raise _wrong(
            f"line {number} has the custom_id of line {first[number]}; give each its own",
            "custom_id",
            "duplicate_custom_id",
        )
    body = check_body(URLS[data["url"]], data["body"])
    if body.stream:
        raise ApiError(400, "stream is not for batches; omit it", "stream", "no_stream")
    return body


def _check_envelope(data: dict[str, Any], number: int) -> None:
    where = f"line {number}"
    for key in _KEYS:
        if key not in data:
            raise _wrong(f"{where} has no {key}; write {_FORM}", key)
    unknown = next((key for key in data if key not in _KEYS), None)
    if unknown is not None:
        raise _wrong(f"{where} has the unknown key {unknown[:100]!r}; omit it", unknown[:100])
    if not isinstance(data["custom_id"], str) or not data["custom_id"]:
        raise _wrong(f"{where} has a custom_id that is no text; write one in quotes", "custom_id")
    if data["method"] != "POST":
        raise _wrong(f"{where} has a method that is not POST; write POST", "method")
    if not isinstance(data["url"], str) or data["url"] not in URLS:
        raise _wrong(f"{where} has a url that is none of {', '.join(URLS)}; use one", "url")
