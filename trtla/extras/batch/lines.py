"""The input: one request a line in OpenAI's batch format, read once and held in memory."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtla.api.errors import ApiError
from trtla.api.protocol import ChatBody, CompletionBody
from trtla.api.reading import check_body
from trtla.errors import UsageError
from trtla.files import JsonError, parse_texts

if TYPE_CHECKING:
    from trtla.api.responses.body import ResponseBody

Asked = ChatBody | CompletionBody
_RESPONSES = "/v1/responses"
_KINDS: dict[str, type[ChatBody] | type[CompletionBody]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
}
URLS = (*_KINDS, _RESPONSES)
_KEYS = ("custom_id", "method", "url", "body")
_FORM = '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}'


@dataclass(frozen=True, slots=True)
class LineRequest:
    """A line's request: a body, or the error to answer with."""

    number: int
    custom_id: str | None
    body: Asked | None = None
    response: ResponseBody | None = None
    """The body of a response, whose chat is `body`."""
    error: ApiError | None = None


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of an input that are not blank."""

    digest: str
    """The digest of all bytes of the input."""
    data: dict[int, bytes]
    """The lines by their numbers in the file, which begin at 1."""
    repeats: dict[int, int]
    """By the number of a line with the custom_id of an earlier one: the number of the first."""

    def parse(self, number: int) -> LineRequest:
        """Parse a line's request."""
        name = None
        try:
            data = _object(number, self.data[number])
            custom_id = data.get("custom_id")
            name = custom_id if isinstance(custom_id, str) else None
            return LineRequest(number, name, *_bodies(data, number, self.repeats.get(number)))
        except ApiError as error:
            return LineRequest(number, name, error=error)


def read_lines(path: Path) -> Lines:
    """Read an input, and find the lines that share a custom_id."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check the path") from None
    lines = {number: line for number, line in enumerate(data.split(b"\n"), 1) if line.strip()}
    if not lines:
        raise UsageError(f"{path} has no line", f"write a request a line: {_FORM}")
    return Lines(hashlib.sha256(data).hexdigest(), lines, _repeats(lines))


def _repeats(lines: dict[int, bytes]) -> dict[int, int]:
    first: dict[str, int] = {}
    repeats = {}
    for number, line in lines.items():
        with suppress(ApiError):
            name = _object(number, line).get("custom_id")
            if isinstance(name, str) and first.setdefault(name, number) != number:
                repeats[number] = first[name]
    return repeats


def _object(number: int, line: bytes) -> dict[str, Any]:
    try:
        data = parse_texts(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        text = f"line {number} is not UTF-8 text (its byte {error.start}); convert the file"
        raise _wrong(text) from None
    except JsonError as error:
        raise _wrong(f"line {number} is not JSON: {error}; write {_FORM}") from None
    if not isinstance(data, dict):
        raise _wrong(f"line {number} is not a JSON object; write {_FORM}")
    return data


def _wrong(text: str, param: str | None = None, code: str = "invalid_line") -> ApiError:
    return ApiError(400, text, param, code)


def _bodies(
    data: dict[str, Any], number: int, first: int | None
) -> tuple[Asked, ResponseBody | None]:
    _check_envelope(data, number)
    if first is not None:
        raise _wrong(
            f"line {number} has the custom_id of line {first}; give each its own",
            "custom_id",
            "duplicate_custom_id",
        )
    body, response = _checked(data["url"], data["body"])
    if body.stream:
        raise ApiError(400, "stream is not for batches; omit it", "stream", "no_stream")
    return body, response


def _checked(url: str, body: Any) -> tuple[Asked, ResponseBody | None]:
    """Return a body as a chat or a completion, and the response that asks for it."""
    if url != _RESPONSES:
        return check_body(_KINDS[url], body), None
    from trtla.api.responses.body import ResponseBody

    response = check_body(ResponseBody, body)
    return response.chat, response


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
