"""JSON schemas as grammars take them: objects are closed, and unknown formats dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_FORMATS = {
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri",
    "uuid",
}  # fmt: skip
"""Formats that a grammar can keep to; to a standard's reader all others are annotations."""
_SIMPLE = {
    "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description",
    "examples", "properties", "readOnly", "required", "title", "type", "writeOnly", "x-guidance",
}  # fmt: skip
"""Keywords of objects whose properties are all that they have."""
_TOGETHER = {"allOf", "dependentSchemas", "if", "not", "oneOf"}
"""Keywords under which a text is compared with several schemas, none of which may be changed."""
_OWN = {"properties", "required", "additionalProperties", "patternProperties"}
"""Keywords beside which other schemas hold for the same object."""
_ONE = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else")
_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf", "items")
_NAMED = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")


def fitted(schema: Any) -> Any:
    """Return the schema with its objects closed and without formats unknown to grammars.

    An object with `properties` gets no other keys, as llama.cpp and OpenAI's strict schemas have
    it: a text of that schema is one of the given schema as well. Open objects say so by
    `additionalProperties`; schemas that combine others, and those beside them, stay as they are.
    """
    return _changed(schema, _known if any(map(_combines, _parts(schema))) else _closed)


def _combines(schema: Mapping[str, Any]) -> bool:
    """Return True if several schemas hold for one object; a `discriminator` says which one does."""
    alone = {"oneOf"} if "discriminator" in schema else set()
    several = (not _OWN.isdisjoint(schema), "anyOf" in schema, "$ref" in schema, bool(alone))
    return sum(several) > 1 or not (_TOGETHER - alone).isdisjoint(schema)


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and those inside it, but for `true` and `false`."""
    if isinstance(schema, Mapping):
        yield schema
        for _, _, part in _inside(schema):
            yield from _parts(part)


def _inside(schema: Mapping[str, Any]) -> Iterator[tuple[str, int | str | None, Any]]:
    """Yield the schemas in a schema, each with its keyword and its key or index there."""
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, Mapping):
            yield from ((keyword, name, part) for name, part in value.items())
        elif keyword in _LISTS and isinstance(value, list):
            yield from ((keyword, index, part) for index, part in enumerate(value))
        elif keyword in _ONE and isinstance(value, Mapping):
            yield keyword, None, value


def _changed(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    new = dict(schema)
    for keyword, place, part in _inside(schema):
        if place is None:
            new[keyword] = _changed(part, change)
            continue
        if new[keyword] is schema[keyword]:
            new[keyword] = schema[keyword].copy()
        new[keyword][place] = _changed(part, change)
    return change(new)


def _known(schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("format")
    if isinstance(name, str) and name not in _FORMATS:
        del schema["format"]
    return schema


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    properties, required = schema.get("properties"), schema.get("required", [])
    named = schema.keys() <= _SIMPLE and isinstance(properties, Mapping)
    if named and isinstance(required, list) and set(properties or ()).issuperset(required):
        schema["additionalProperties"] = False
    return _known(schema)
