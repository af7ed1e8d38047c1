"""Reads the bodies of requests; the error for a wrong one names field, rule and similar names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from trtla.api.declared import RULES, chosen_at_start
from trtla.api.errors import ApiError
from trtla.api.protocol import (
    LABELS,
    MOST_BIASES,
    PARTS,
    Body,
    ChatBody,
    CompletionBody,
    Message,
    Predicted,
    StreamOptions,
    TextPart,
)
from trtla.api.tools import CalledFunction, Function, Tool, ToolCall
from trtla.errors import did_you_mean, needed
from trtla.files import JsonError, parse_json
from trtla.other_tools import counterpart, instead

_MOST_NESTED = 20_000
"""Lists and objects in a body: each of them costs as much as a long text."""
BodyT = TypeVar("BodyT", bound=Body)


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
    raise body_error(errors)


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
_FIELDS = {*LABELS, *(name for model in _MODELS for name in model.model_fields)}
_RULES = {
    **RULES,
    "content": "a text, or a list of parts of type text",
    "name": "a name of at most 64 characters, none of them a space, <, |, \\, / or >",
    "lookahead": '[window, ngram, verification], such as [3,3,3], or "auto"',
    "prompt": "a text, token ids, or a list of several of either, none of them empty",
    "stop": "a text, or up to 16 texts, none of them empty",
    "tool_choice": 'none, auto, required, or {"type": "function", "function": {"name": "..."}}',
    "stop_token_ids": f"a list of at most {MOST_BIASES} token ids",
}
"""The rules of fields that take several kinds of values."""
_TOOL_RULES = {
    "name": "a name of at most 64 letters, digits, _, - and .",
    "type": "function: other kinds of tools are not supported",
}
_PART_RULE = "text: contents are texts, or lists of parts of type text"
_LISTS = (["messages"], ["content"], ["tools"], ["tool_calls"])
_LONGEST_NAME = 100  # in an error


def body_error(errors: Iterable[Mapping[str, Any]]) -> ApiError:
    """Return the refusal of a body for the outermost of pydantic's errors."""
    first = min(errors, key=lambda error: len(error["loc"]), default={})
    kind, path = first.get("type"), [part for part in first.get("loc", ()) if part != "body"]
    path = _without_tags(path)
    if kind == "json_invalid":
        return ApiError(400, "the body is not JSON", code="invalid_json")
    if kind == "extra_forbidden":
        return _unknown(".".join(map(str, path)), str(path[-1]))
    name = _field(path)
    if kind == "missing":
        return ApiError(400, f"{name or 'the body'} is missing", name, "missing_parameter")
    if kind == "value_error":  # a rule of several fields, whose first word is one of them
        text = str(first["msg"]).removeprefix("Value error, ")
        word = text.partition(" ")[0]
        return ApiError(400, text, word if word in _FIELDS else name, "invalid_parameter")
    rule = _rule(name or "") or needed(first)
    return ApiError(400, f"{name or 'the body'} must be {rule}", name, "invalid_parameter")


def _rule(name: str) -> str | None:
    last = name.rpartition(".")[2]
    if name.startswith("tools.") or ".tool_calls." in name:
        return _TOOL_RULES.get(last)
    return _PART_RULE if last == "type" and ".content." in name else _RULES.get(last)


def _without_tags(path: list[Any]) -> list[Any]:
    """Return the path without the tags of content kinds."""
    return [
        part
        for before, part in zip((None, *path), path, strict=False)
        if before != "content" or part not in ("text", PARTS)
    ]


def _elsewhere(name: str) -> str | None:
    """Return a hint to the route that has a field; None where neither has it."""
    for body, route in ((ChatBody, "chat/completions"), (CompletionBody, "completions")):
        if name in body.model_fields:
            return f"it is a field of /v1/{route}"
    return None


def _unknown(name: str, last: str) -> ApiError:
    name, last = name[:_LONGEST_NAME], last[:_LONGEST_NAME]
    if flag := chosen_at_start(name):
        message = f"{name} is chosen for all requests, when the model is opened: start with {flag}"
        return ApiError(400, message, name, "unsupported_parameter")
    guess = instead(name) or _elsewhere(name)
    if guess is None and (meant := counterpart(name, _FIELDS)):
        guess = f"use {meant}"
    guess = guess or did_you_mean(last, _FIELDS)
    return ApiError(
        400,
        f"{name} is not supported; {guess or 'omit it'}".rstrip(),
        name,
        "unsupported_parameter",
    )


def _field(location: list[Any]) -> str | None:
    """Return the path of the field, without the names of alternative kinds of values."""
    path: list[str] = []
    for part in location:
        in_list = path[-1:] in _LISTS
        if part not in _FIELDS and not (isinstance(part, int) and in_list):
            break
        path.append(str(part))
    return ".".join(path) or None
