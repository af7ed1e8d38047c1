"""Calls of functions in messages of the assistant, whose arguments are objects or their JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trtla.errors import UsageError
from trtla.settings.fields import check_text, shown

FUNCTION_NAME = r"^[A-Za-z0-9_.-]{1,64}$"
CALL_ID = r"^[A-Za-z0-9_.:-]{1,128}$"
_FORM = 'write {"id": "...", "type": "function", "function": {"name": "...", "arguments": {...}}}'
_MOST_NESTED = 500
"""Lists and objects in a text of arguments; one with more stays a text."""
Calls = Sequence[Mapping[str, Any]]


def check_calls(calls: object, name: str) -> list[dict[str, Any]]:
    """The calls as they are; errors say `name`."""
    if isinstance(calls, (str, bytes)) or not isinstance(calls, Sequence):
        raise UsageError(f"{name} has the tool_calls {shown(calls)}, which is no list", _FORM)
    try:
        return [_call(call, f"{name} has a call that") for call in calls]
    except RecursionError:
        raise UsageError(f"{name} has arguments that are nested too deeply", _FORM) from None


def check_id(value: object, name: str) -> str:
    """The id of a call."""
    if not isinstance(value, str) or not re.fullmatch(CALL_ID, value):
        raise UsageError(
            f"{name} has the call id {shown(value)}", "use letters, digits, _, ., : and -"
        )
    return value


def _call(call: object, name: str) -> dict[str, Any]:
    if not isinstance(call, Mapping) or call.keys() - {"id", "type", "function"}:
        raise UsageError(f"{name} is {shown(call)}", _FORM)
    function = call.get("function")
    if call.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise UsageError(f"{name} is of no function: {shown(call)}", _FORM)
    called = function.get("name")
    if not isinstance(called, str) or not re.fullmatch(FUNCTION_NAME, called):
        raise UsageError(f"{name} has the function name {shown(called)}", _FORM)
    arguments = as_object(function.get("arguments"))
    if not isinstance(arguments, (Mapping, str)) or function.keys() - {"name", "arguments"}:
        raise UsageError(f"{name} has the function {shown(function)}", _FORM)
    for text in _texts(arguments):
        check_text(text, name)
    if "id" in call:
        check_id(call["id"], name)
    return {**call, "function": dict(function)}


def as_object(arguments: Any) -> Any:
    """The object that arguments are the JSON of; others are as they are."""
    if isinstance(arguments, str) and arguments.count("{") + arguments.count("[") < _MOST_NESTED:
        try:
            parsed = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return arguments
        return parsed if isinstance(parsed, dict) else arguments
    return arguments


def as_text(arguments: Any) -> str:
    """The JSON of arguments."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def with_arguments(calls: Calls, change: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """The calls with other arguments."""
    return [
        {
            **call,
            "function": {**call["function"], "arguments": change(call["function"]["arguments"])},
        }
        for call in calls
    ]


def call_texts(calls: Calls) -> Iterator[str]:
    """All texts in arguments, keys included."""
    for call in calls:
        yield from _texts(call["function"]["arguments"])


def changed_calls(calls: Calls, change: Callable[[str], str]) -> list[dict[str, Any]]:
    """The calls with every text in their arguments changed."""
    return with_arguments(calls, lambda arguments: _changed(arguments, change))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (key, *_texts(item))
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _changed(item, change) for key, item in value.items()}
    return [_changed(item, change) for item in value] if isinstance(value, list) else value
