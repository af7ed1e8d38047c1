"""Reads the bodies of requests; the error for a wrong one names field, rule and similar names."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from trtla.api.declared import RULES, chosen_at_start
from trtla.api.errors import ApiError
from trtla.api.protocol import (
    LABELS,
    MOST_BIASES,
    PARTS,
    ChatBody,
    CompletionBody,
    Message,
    Predicted,
    Shared,
    StreamOptions,
    TextPart,
)
from trtla.api.tools import NAME_RULE, CalledFunction, Function, Tool, ToolCall
from trtla.errors import did_you_mean, needed
from trtla.files import JsonError, parse_json
from trtla.other_tools import counterpart, instead

_MOST_NESTED = 20_000
"""Lists and objects in a body: each of them costs as much as a long text."""
BodyT = TypeVar("BodyT", bound=Shared)


def read_body(kind: type[BodyT], data: bytes) -> BodyT:
    """Parse and check a request's body."""
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
    """Check a parsed body; raises `ApiError` if it is invalid."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
    raise body_error(errors, kind)


def _nested(data: bytes) -> int:
    """Count the lists and objects of a JSON text, without brackets in its strings."""
    if data.count(b"[") + data.count(b"{") <= _MOST_NESTED:
        return 0
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    return sum(part.count(b"[") + part.count(b"{") for part in bare.split(b'"')[::2])


_MODELS = (
    ChatBody, CompletionBody, Message, Predicted, StreamOptions, TextPart, Tool, Function, ToolCall,
    CalledFunction,
)  # fmt: skip
_CALL_ID = "at most 128 letters, digits, _, ., : and -"
_RULES = {
    **RULES,
    "name": "a name of at most 64 characters, none of them a space, <, |, \\, / or >",
    "lookahead": '[window, ngram, verification], such as [3,3,3], or "auto"',
    "call_id": _CALL_ID,
    "tool_call_id": _CALL_ID,
    "stop": "a text, or up to 16 texts, none of them empty",
    "stop_token_ids": f"a list of at most {MOST_BIASES} token ids",
}
"""The rules of fields that take several kinds of values."""
_TOOL_RULES = {
    "id": _CALL_ID,
    "name": NAME_RULE,
    "type": "function: other kinds of tools are not supported",
}
_PART_RULE = "text: contents are texts, or lists of parts of type text"
_LISTS = (["messages"], ["input"], ["content"], ["output"], ["tools"], ["tool_calls"])
_OF_KINDS = ("content", "input", "output")
"""Fields that are a text or a list of parts, each of one kind."""
FLAT, GROUPED = "flat", "grouped"
"""Kinds of a response's tools."""
_LONGEST_NAME = 100  # in an error


def body_error(errors: Iterable[Mapping[str, Any]], body: type[Shared]) -> ApiError:
    """Return the refusal of a body for the outermost of pydantic's errors."""
    first = min(errors, key=_rank, default={})
    kind, path = first.get("type"), [part for part in first.get("loc", ()) if part != "body"]
    path, fields = _without_tags(path), _fields(body)
    if kind == "json_invalid":
        return ApiError(400, "the body is not JSON", code="invalid_json")
    if kind == "extra_forbidden":
        return _unknown(".".join(map(str, path)), str(path[-1]), body)
    name = _field(path, fields)
    if kind == "missing":
        return ApiError(400, f"{name or 'the body'} is missing", name, "missing_parameter")
    if kind == "value_error":  # a rule of several fields, whose first word is one of them
        text = str(first["msg"]).removeprefix("Value error, ")
        word = text.partition(" ")[0]
        return ApiError(400, text, word if word in fields else name, "invalid_parameter")
    rule = _rule(name or "", body) or needed(first)
    return ApiError(400, f"{name or 'the body'} must be {rule}", name, "invalid_parameter")


def _rank(error: Mapping[str, Any]) -> tuple[int, bool]:
    """Return the place of an error: an unknown field may be a missing one by another name."""
    path = error["loc"]
    return len(path), len(path) > 1 or error["type"] != "extra_forbidden"


def _fields(body: type[Shared]) -> set[str]:
    """Return the names of a body's fields and of those of its parts."""
    models = (body, *body.nested) if body.nested else _MODELS
    return {*LABELS, *(name for model in models for name in model.model_fields)}


def _rule(name: str, body: type[Shared]) -> str | None:
    last = name.rpartition(".")[2]
    if name.startswith("tools.") or ".tool_calls." in name:
        return _TOOL_RULES.get(last)
    if last == "type":
        return _PART_RULE if ".content." in name and not body.nested else None
    return {**_RULES, **body.rules}.get(last)


def _without_tags(path: list[Any]) -> list[Any]:
    """Return the path without the tags of contents and items."""

    def is_tag(at: int) -> bool:
        before = path[max(0, at - 3) : at]
        if before[-1:] and before[-1] in _OF_KINDS:
            return path[at] in ("text", PARTS)
        if before[-2:-1] == ["tools"]:
            return path[at] in (FLAT, GROUPED)
        return len(before) == 3 and before[:2] == ["input", PARTS]

    return [part for at, part in enumerate(path) if not is_tag(at)]


def _elsewhere(name: str) -> str | None:
    """Return a hint to the route that has a field; None where neither has it."""
    for body, route in ((ChatBody, "chat/completions"), (CompletionBody, "completions")):
        if name in body.model_fields:
            return f"it is a field of /v1/{route}"
    return None


def _unknown(name: str, last: str, body: type[Shared]) -> ApiError:
    name, last = name[:_LONGEST_NAME], last[:_LONGEST_NAME]
    if flag := chosen_at_start(name):
        message = f"{name} is chosen for all requests, when the model is opened: start with {flag}"
        return ApiError(400, message, name, "unsupported_parameter")
    if name in LABELS:
        return ApiError(400, f"{name} must be a text", name, "invalid_parameter")
    fields = _fields(body)
    guess = body.instead.get(name) or instead(name) or _elsewhere(name)
    if guess is None and (meant := counterpart(name, fields)):
        guess = f"use {meant}"
    guess = guess or did_you_mean(last, fields - {last})
    return ApiError(
        400,
        f"{name} is not supported; {guess or 'omit it'}".rstrip(),
        name,
        "unsupported_parameter",
    )


def _field(location: list[Any], fields: Container[str]) -> str | None:
    """Return the path of the field, without the names of alternative kinds of values."""
    path: list[str] = []
    for part in location:
        in_list = path[-1:] in _LISTS
        if part not in fields and not (isinstance(part, int) and in_list):
            break
        path.append(str(part))
    return ".".join(path) or None
