"""Values of arguments in tags: texts as they are, all others as JSON, told apart by a schema.

A value without a schema, or with one that says nothing about its type, is a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from trtla.api.strict import Object

_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Values as templates write them by Jinja's filter `string`, and their JSON."""
_LONG = 640  # digits, the least that Python may be told to read at most
_LISTS = ("allOf", "anyOf", "oneOf")


def properties_of(schema: Any, root: Object) -> Object:
    """The schemas of an object's keys, also those that its alternatives or references have."""
    found: Object = {}
    for part in parts_of(schema, root):
        own = part.get("properties")
        found = {**(own if isinstance(own, Mapping) else {}), **found}
    return found


def parts_of(schema: Any, root: Object) -> Iterator[Object]:
    """A schema, and what it refers to or combines that is for the same value, each once."""
    rest, seen = [schema], set[str]()
    while rest:
        part = rest.pop(0)
        reference = str(part.get("$ref", "")) if isinstance(part, Mapping) else ""
        if isinstance(part, Mapping) and reference not in seen - {""}:
            seen.add(reference)
            yield dict(part)
            rest += [_target(reference, root)] if reference else []
            rest += [one for name in _LISTS for one in list_of(part, name)]


def resolved(schema: Any, root: Object) -> Object:
    """The schema that references inside the document lead to; one of no object says nothing."""
    seen = set[str]()
    while isinstance(schema, Mapping) and (reference := str(schema.get("$ref", ""))) not in seen:
        seen |= {reference, ""}
        own = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**(_target(reference, root) if reference else {}), **own}
    return dict(schema) if isinstance(schema, Mapping) else {}


def _target(reference: str, root: Object) -> Object:
    found: Any = root
    for name in reference.removeprefix("#").split("/")[1:]:
        key = name.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return dict(found) if isinstance(found, Mapping) and reference.startswith("#") else {}


def types_of(schema: Any, root: Object) -> frozenset[str]:
    """The types of a schema's values; that of a text where it says nothing."""
    types = set[str]()
    for part in parts_of(schema, root):
        types.update(map(str, _named(part.get("type"))))
        types.update(map(_type, () if "type" in part else values_of(part) or ()))
    return frozenset(types or {"string"})


def _named(types: Any) -> list[Any]:
    return types if isinstance(types, list) else [types] if types else []


def values_of(schema: Any) -> list[Any] | None:
    """The values that a schema lists, itself or by alternatives; None: it lists none."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    parts = [values_of(part) for name in ("anyOf", "oneOf") for part in list_of(schema, name)]
    lists = [part for part in parts if part is not None]
    return list(chain(*lists)) if parts and len(lists) == len(parts) else None


def as_argument(text: str, schema: Any, root: Object) -> str:
    """The JSON of a value that was written so."""
    types, listed = types_of(schema, root), values_of(resolved(schema, root)) or ()
    json_, value = _parsed(text) if types != {"string"} and text not in listed else ("", None)
    if json_ and (fits(value, types) or "string" not in types):
        return json_
    return json.dumps(text, ensure_ascii=False)


def fits(value: Any, types: frozenset[str]) -> bool:
    """Return True for a value of one of these types, a text excepted."""
    kind = _type(value)
    return kind != "string" and (kind in types or (kind == "integer" and "number" in types))


def _parsed(text: str) -> tuple[str, Any]:
    """The JSON that a text is, and its value; empty: it is none."""
    text = text.strip()
    text = _PYTHON.get(text, text)
    try:
        return text, json.loads(text, parse_constant=_refuse, parse_int=_whole)
    except (ValueError, RecursionError):
        return "", None


def _whole(digits: str) -> int:
    """A whole number; 0 for one of so many digits that Python does not read it."""
    return int(digits) if len(digits) < _LONG else 0


def _refuse(name: str) -> Any:
    raise ValueError(name)  # NaN and the like are no JSON


def _type(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def list_of(schema: Mapping[str, Any], name: str) -> list[Any]:
    """A schema's keyword whose value is a list; empty if it is none."""
    value = schema.get(name)
    return value if isinstance(value, list) else []
