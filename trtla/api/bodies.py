"""From a request's bytes to a checked body, in time that its length bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from trtla.api.errors import ApiError
from trtla.api.protocol import (
    LABELS,
    Body,
    ChatBody,
    CompletionBody,
    Message,
    Predicted,
    StreamOptions,
    TextPart,
)
from trtla.errors import did_you_mean
from trtla.files import JsonError, parse_json

BodyT = TypeVar("BodyT", bound=Body)
_MOST_NESTED = 10_000
"""Lists and objects in a body: each of them costs as much as a long text."""


def read_body(kind: type[BodyT], data: bytes) -> BodyT:
    """A request's body.

    Raises:
        ApiError: it is not JSON, or not such a body.
    """
    nested = _nested(data)
    if nested > _MOST_NESTED:
        raise ApiError(
            400,
            f"the body has {nested} lists and objects, above {_MOST_NESTED}; send fewer messages, "
            "parts or prompts at a time",
            code="body_too_large",
        )
    try:
        value = parse_json(data, unique=True)
    except JsonError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    return check_body(kind, value)


def check_body(kind: type[BodyT], value: Any) -> BodyT:
    """A body that was parsed; `ApiError` where it is not such a body."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
    raise body_error(errors)


def _nested(data: bytes) -> int:
    """The lists and objects of a JSON text; brackets in its strings are none."""
    if data.count(b"[") + data.count(b"{") <= _MOST_NESTED:
        return 0
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    return sum(part.count(b"[") + part.count(b"{") for part in bare.split(b'"')[::2])


_MODELS = (ChatBody, CompletionBody, Message, Predicted, StreamOptions, TextPart)
_FIELDS = {*LABELS, *(name for model in _MODELS for name in model.model_fields)}
_RULES = {
    "content": "a text, or a list of parts of type text",
    "name": "a name of at most 64 characters, none of them a space, <, |, \\, / or >",
    "lookahead": '[window, ngram, verification], such as [3,3,3], or "auto"',
    "prompt": "a text, token ids, or a list of several of either, none of them empty",
    "stop": "a text, or up to 16 texts, none of them empty",
}
"""Of fields that take several kinds of values."""
_LONGEST_NAME = 100  # in an error


def body_error(errors: Iterable[Mapping[str, Any]]) -> ApiError:
    """The refusal of a body, from pydantic's errors: the outermost one."""
    first = min(errors, key=lambda one: len(one["loc"]), default={})
    kind, places = first.get("type"), [one for one in first.get("loc", ()) if one != "body"]
    if kind == "json_invalid":
        return ApiError(400, "the body is not JSON", code="invalid_json")
    if kind == "extra_forbidden":
        return _unknown(".".join(map(str, places)), str(places[-1]))
    name = _field(places)
    if kind == "missing":
        return ApiError(400, f"{name or 'the body'} is missing", name, "missing_parameter")
    text = str(first.get("msg", "it does not fit")).removeprefix("Value error, ")
    if kind == "value_error":  # a rule of several fields, the first word being one of them
        word = text.partition(" ")[0]
        return ApiError(400, text, word if word in _FIELDS else name, "invalid_parameter")
    rule = _RULES.get((name or "").rpartition(".")[2])
    problem = f"must be {rule}" if rule else text.removeprefix("Input ")
    return ApiError(400, f"{name or 'the body'} {problem}", name, "invalid_parameter")


def _unknown(name: str, last: str) -> ApiError:
    name, last = name[:_LONGEST_NAME], last[:_LONGEST_NAME]
    guess = did_you_mean(last, _FIELDS)
    return ApiError(
        400,
        f"{name} is not supported; {guess or 'leave it out'}".rstrip(),
        name,
        "unsupported_parameter",
    )


def _field(places: list[Any]) -> str | None:
    """The path of the field, without the names of the kinds of values that were tried."""
    path: list[str] = []
    for place in places:
        if place not in _FIELDS and not (isinstance(place, int) and path == ["messages"]):
            break
        path.append(str(place))
    return ".".join(path) or None
