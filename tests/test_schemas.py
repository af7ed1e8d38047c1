"""JSON schemas as grammars take them: which objects are closed, and which formats are dropped."""

from __future__ import annotations

from copy import deepcopy

import pytest

from trtla.settings.schemas import fitted

CLOSED = {"additionalProperties": False}
A = {"properties": {"a": {"type": "integer"}}}
B = {"properties": {"b": {"type": "integer"}}, "required": ["b"]}
KINDS = {"discriminator": {"propertyName": "kind"}}
CAT = {"properties": {"kind": {"const": "cat"}}}
DOG = {"properties": {"kind": {"enum": ["dog", "wolf"]}}}
LOOP = {"$ref": "#/$defs/A"}
TAGGED = CLOSED | {"required": ["kind"]}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (A, A | CLOSED),
        ({"type": "object"}, {"type": "object"}),
        ({"type": "array", "items": A}, {"type": "array", "items": A | CLOSED}),
        ({"prefixItems": [A, True]}, {"prefixItems": [A | CLOSED, True]}),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [A | CLOSED, {"type": "null"}]}),
        ({"properties": {"x": A}}, {"properties": {"x": A | CLOSED}} | CLOSED),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": A}},
            {"$ref": "#/$defs/A", "$defs": {"A": A | CLOSED}},
        ),
        ({"allOf": [A], "title": "A"}, {"allOf": [A | CLOSED], "title": "A"}),
        (A | {"x-order": 1, "nullable": True}, A | {"x-order": 1, "nullable": True} | CLOSED),
        ({"oneOf": [A]} | KINDS, {"oneOf": [A | CLOSED]} | KINDS),
        ({"oneOf": [CAT, DOG]} | KINDS, {"oneOf": [CAT | TAGGED, DOG | TAGGED]} | KINDS),
        (
            {"oneOf": [{"$ref": "#/$defs/A"}, {"oneOf": [CAT, CAT]} | KINDS], "$defs": {"A": DOG}}
            | KINDS,
            {
                "oneOf": [{"$ref": "#/$defs/A"}, {"oneOf": [CAT | TAGGED] * 2} | KINDS],
                "$defs": {"A": DOG | TAGGED},
            }
            | KINDS,
        ),
        (
            {"oneOf": [LOOP], "$defs": {"A": {"oneOf": [CAT, LOOP]} | KINDS}},
            {"oneOf": [LOOP], "$defs": {"A": {"oneOf": [CAT | TAGGED, LOOP]} | KINDS}},
        ),
        ({"enum": [A], "default": A}, {"enum": [A], "default": A}),
        ({"type": "string", "format": "binary"}, {"type": "string"}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"allOf": [{"format": "phone"}]}, {"allOf": [{}]}),
        (True, True),
    ],
)
def test_objects_with_properties_are_closed_and_unknown_formats_dropped(
    schema: object, expected: object
) -> None:
    before = deepcopy(schema)
    assert fitted(schema) == expected == fitted(expected)
    assert schema == before


@pytest.mark.parametrize(
    "schema",
    [
        A | {"additionalProperties": True},
        A | {"additionalProperties": {"type": "string"}},
        A | {"patternProperties": {"^x": True}},
        A | {"minProperties": 3},
        A | {"required": ["b"]},
        {"allOf": [A, B]},
        {"oneOf": [A, B]},
        {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": {"A": A, "B": B}},
        A | {"anyOf": [B, {"required": ["a"]}]},
        A | {"$ref": "#/$defs/B", "$defs": {"B": B}},
        {"anyOf": [A], "$ref": "#/$defs/B", "$defs": {"B": B}},
        A | {"if": A, "then": B},
        A | {"oneOf": [CAT, DOG]} | KINDS,
        {"oneOf": [A, B]} | KINDS,
        {"oneOf": [CAT, {"$ref": "#/$defs/A"}], "$defs": {"A": A}} | KINDS,
        {"properties": {"x": A}, "patternProperties": {"^x": B}},
        {"properties": {"x": A}, "const": {"x": {"a": 1, "b": 2}}},
        {"items": A, "enum": [[{"a": 1, "b": 2}]]},
        {"items": A, "anyOf": [{"items": B}]},
        {"anyOf": [A], "enum": [{"b": 1}]},
        {"$ref": "#/more/C", "more": {"C": {"allOf": [A, B]}}, "$defs": {"A": A}},
        {"properties": 5, "discriminator": 5, "oneOf": {}, "$ref": 5, "required": [[]]},
    ],
)
def test_open_schemas_and_those_that_others_hold_beside_stay_as_they_are(schema: object) -> None:
    assert fitted(schema) == schema
