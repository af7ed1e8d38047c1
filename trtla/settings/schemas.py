"""JSON schemas as grammars take them: objects are closed, and unknown formats dropped."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from typing import Any

_FORMATS = {
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri",
    "uuid",
}  # fmt: skip
"""Formats that a grammar can keep to; to a standard's reader all others are annotations."""
_OPEN = {
    "additionalProperties", "const", "dependencies", "dependentRequired", "enum", "maxProperties",
    "minProperties", "patternProperties", "propertyNames", "unevaluatedProperties",
}  # fmt: skip
"""Keywords of objects that are about other keys than those of `properties`."""
_TOGETHER = {"allOf", "dependentSchemas", "if", "not", "oneOf"}
"""Keywords under which a text is compared with several schemas, none of which may be changed."""
_OWN = {
    "properties", "required", "additionalProperties", "patternProperties", "minProperties",
    "maxProperties", "items", "prefixItems",
}  # fmt: skip
"""Keywords beside which other schemas hold for the same object or array."""
_VALUES = {"const", "enum"}
_ONE = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else")
_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf", "items")
_NEAR = re.compile(r"#(?:/(?:properties|items|anyOf|\$defs|definitions)/|$)")
"""References to schemas that are seen here."""
_DEFINED = re.compile(r"#/(\$defs|definitions)/([^/]+)")
_NAMED = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")


_NOTES = {
    "$comment", "default", "deprecated", "description", "examples", "readOnly", "title",
    "writeOnly",
}  # fmt: skip
"""Keywords that say nothing about which values are valid."""
_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}


def without_notes(schema: Any) -> Any:
    """Return the schema without titles, descriptions and the like."""

    def bare(part: dict[str, Any]) -> dict[str, Any]:
        return {keyword: value for keyword, value in part.items() if keyword not in _NOTES}

    return _changed(schema, bare)


def loosened(schema: Any, keeps: Callable[[Mapping[str, Any]], bool]) -> Any:
    """Return the schema without what no grammar can keep, so that more values are valid.

    That are patterns that `keeps` says no to for a schema with them alone, references to other
    documents, and unknown types.
    """

    def loose(part: dict[str, Any]) -> dict[str, Any]:
        unknown = {name for name in ("$ref",) if not str(part.get(name, "#")).startswith("#")}
        types = part.get("type", "object")
        if not _TYPES.issuperset(map(str, types if isinstance(types, list) else [types])):
            unknown.add("type")
        if "pattern" in part and not keeps({"type": "string", "pattern": part["pattern"]}):
            unknown.add("pattern")
        named = _mapping(part, "patternProperties")
        if not all(keeps({"type": "string", "pattern": pattern}) for pattern in named):
            unknown |= {"patternProperties", "additionalProperties"}
        return {keyword: value for keyword, value in part.items() if keyword not in unknown}

    return _changed(schema, loose)


def fitted(schema: Any) -> Any:
    """Return the schema with its objects closed and without formats unknown to grammars.

    An object with `properties` gets no other keys, as llama.cpp and OpenAI's strict schemas have
    it, and always has a constant that a `discriminator` tells it by: a text of that schema is one
    of the given schema as well. Open objects say so by `additionalProperties`; schemas that combine
    others, and those beside them, stay as they are.
    """
    parts = list(_parts(schema))
    if any(_combines(part, schema) for part in parts):
        return _changed(schema, _known)
    tags = {tag for part in parts if (tag := _tag(part))}
    return _changed(schema, partial(_closed, tags=tags))


def _combines(schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    """Return True if several schemas hold for one value, or may do so."""
    alone = {name for name in ("allOf", "oneOf") if len(_list(schema, name)) == 1}
    if _is_tagged(schema, _tag(schema), root):
        alone.add("oneOf")
    held = (_OWN, _VALUES, {"anyOf"}, {"$ref"}, alone & {"allOf"}, alone & {"oneOf"})
    several = sum(not keywords.isdisjoint(schema) for keywords in held) > 1
    several |= {"properties", "patternProperties"} <= schema.keys()
    several |= not (_TOGETHER - alone).isdisjoint(schema)
    return several or not _NEAR.match(str(schema.get("$ref", "#")))


def _tag(schema: Mapping[str, Any]) -> str:
    """The property that a `discriminator` tells alternatives by; empty: there is none."""
    return str(_mapping(schema, "discriminator").get("propertyName", ""))


def _is_tagged(schema: Mapping[str, Any], tag: str, root: Mapping[str, Any]) -> bool:
    """Return True if an object, or each alternative of `oneOf`, has constants as this property."""
    rest: list[Any] = [schema]
    seen = set[str]()  # definitions may refer to themselves
    while rest:
        one = rest.pop()
        if not isinstance(one, Mapping):
            return False
        if found := _DEFINED.fullmatch(str(one.get("$ref"))):
            rest += [] if found[0] in seen else [_mapping(root, found[1]).get(found[2])]
            seen.add(found[0])
        elif "oneOf" in one:
            rest += _list(one, "oneOf")
        elif _VALUES.isdisjoint(_mapping(_mapping(one, "properties"), tag)):
            return False
    return bool(tag)


def _mapping(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = schema.get(name)
    return value if isinstance(value, Mapping) else {}


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    value = schema.get(name)
    return value if isinstance(value, list) else []


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


def _closed(schema: dict[str, Any], tags: Set[str]) -> dict[str, Any]:
    required = [str(name) for name in _list(schema, "required")]
    named = _mapping(schema, "properties").keys() >= set(required)
    if named and "properties" in schema and _OPEN.isdisjoint(schema):
        schema["additionalProperties"] = False
        if more := [tag for tag in tags if tag not in required and _is_tagged(schema, tag, {})]:
            schema["required"] = [*required, *sorted(more)]
    return _known(schema)
