"""The grammar of a request's body, under OpenAI's, vLLM's and trtla's names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trtla.api.errors import ApiError
from trtla.errors import UsageError, did_you_mean
from trtla.settings.fields import shown
from trtla.settings.grammar import Grammar

_GUIDED = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "lark",
}
_STRUCTURED = {
    "json": "json_schema",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choice",
    "grammar": "lark",
}
_DESCRIBED = {"name": str, "description": str, "strict": bool}
"""Keys beside a schema, and their types."""
_WITHOUT_BLANKS = "disable_any_whitespace"
_WITHOUT_EFFECT = ("disable_additional_properties", "disable_fallback")
FIELDS = ("response_format", "structured_outputs", "grammar", *_GUIDED)
"""Fields with rules for an output; a body has at most one of them."""


def grammar_of(fields: Mapping[str, Any]) -> Grammar | None:
    """Make the grammar of a body's fields; None without any.

    Raises:
        ApiError: two of them are given, or one has no rule that can be kept.
    """
    present = [name for name in FIELDS if fields.get(name) is not None]
    if not present:
        return None
    if len(present) > 1:
        first, second = present[:2]
        raise ApiError(400, f"{first} and {second} exclude each other; omit one of them", second)
    (name,) = present
    try:
        return replace(_READERS.get(name, _guided)(name, fields[name]), given_as=name)
    except UsageError as error:
        raise ApiError(400, f"{name}: {error.message}; {error.hint}", name) from None


def _guided(name: str, value: Any) -> Grammar:
    return Grammar.of({_GUIDED[name]: value})


def _own(name: str, value: Any) -> Grammar:
    return Grammar.of(value)


def _structured(name: str, value: Any) -> Grammar:
    rules = {key: item for key, item in value.items() if item is not None}
    _take_defaults(rules)
    blanks = _blanks(rules)
    for key in rules:
        if key not in _STRUCTURED:
            guess = did_you_mean(key, _STRUCTURED) or f"use one of {', '.join(_STRUCTURED)}"
            raise UsageError(f"{shown(key)} is not supported", guess)
    if len(rules) != 1:
        raise UsageError(
            f"it has {len(rules)} of {', '.join(_STRUCTURED)}", "give exactly one of them"
        )
    ((key, item),) = rules.items()
    return Grammar.of({_STRUCTURED[key]: item, **blanks})


def _take_defaults(rules: dict[str, Any]) -> None:
    """Take settings of vLLM out that request what is the case anyway."""
    for name in _WITHOUT_EFFECT:
        if isinstance(rules.get(name), bool):
            del rules[name]
    if rules.get("json_object") is False:
        del rules["json_object"]


def _blanks(rules: dict[str, Any]) -> dict[str, Any]:
    """Take vLLM's settings of blanks in JSON out of its rules."""
    pattern, without = rules.pop("whitespace_pattern", None), rules.pop(_WITHOUT_BLANKS, False)
    if not isinstance(without, bool):
        raise UsageError(f"{_WITHOUT_BLANKS} is {shown(without)}", "give true or false")
    if without:
        pattern = ""
    return {} if pattern is None else {"whitespace_pattern": pattern}


def _format(name: str, value: Any) -> Grammar:
    kind = value.get("type")
    if kind not in ("json_object", "json_schema"):
        raise UsageError(
            f"the type {shown(kind)} is not supported", "use text, json_object or json_schema"
        )
    given = {key: item for key, item in value.items() if key != "type" and item is not None}
    for key in given:
        if key not in ("schema", kind):
            raise UsageError(f"{key} is not supported with the type {kind}", "omit it")
    if "schema" in given or kind == "json_object":  # llama.cpp has the schema here
        return Grammar.of({"json_schema": given.get("schema", {"type": "object"})})
    described = given.get("json_schema")
    if not isinstance(described, Mapping) or "schema" not in described:
        raise UsageError(
            "json_schema has no schema",
            'give {"type": "json_schema", "json_schema": {"name": "...", "schema": {...}}}',
        )
    _check_described(described)
    grammar = Grammar.of({"json_schema": described["schema"]})
    return _lenient(grammar) if described.get("strict") is False else grammar


def _check_described(described: Mapping[str, Any]) -> None:
    """Refuse what OpenAI's types do not have beside a schema."""
    for key, value in described.items():
        if key == "schema" or value is None:
            continue
        if (kind := _DESCRIBED.get(str(key))) is None:
            guess = did_you_mean(str(key), ("schema", *_DESCRIBED)) or "omit it"
            raise UsageError(f"{shown(key)} is not supported beside a schema", guess)
        if not isinstance(value, kind):
            wanted = "true or false" if kind is bool else "a text"
            raise UsageError(f"{key} beside a schema is {shown(value)}", f"give {wanted}")


def _lenient(grammar: Grammar) -> Grammar:
    """A grammar of a schema that ignores its keywords that are not supported."""
    schema = json.loads(grammar.text)
    given = schema.get("x-guidance")
    how = {"lenient": True, **(given if isinstance(given, dict) else {})}
    return replace(grammar, text=json.dumps({**schema, "x-guidance": how}, ensure_ascii=False))


_READERS = {"response_format": _format, "structured_outputs": _structured, "grammar": _own}
