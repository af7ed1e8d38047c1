"""--json-schema, --regex and --grammar, and the key `grammar` of prompt files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.command import refused, trtla
from tests.support.served import SHIPPED

pytest.importorskip("llguidance")


def test_flags_and_keys_make_the_same_grammar(tmp_path: Path) -> None:
    rules = 'root ::= "a" "b"'
    (tmp_path / "rules.gbnf").write_text(rules)
    (tmp_path / "schema.json").write_text('{"const": "ab"}')
    lines = [
        {"text": "x"},
        {"text": "x", "grammar": rules},
        {"text": "x", "grammar": {"lark": rules}},
    ]
    asked = ("run", SHIPPED, "--input-file", "-", "--json")
    for flag, value, text in (
        ("--grammar", tmp_path / "rules.gbnf", "ab"),
        ("--grammar", rules, "ab"),
        ("--regex", "ab", "ab"),
        ("--json-schema", tmp_path / "schema.json", '"ab"'),
    ):
        ran = trtla(*asked, flag, value, stdin="\n".join(map(json.dumps, lines)))
        assert [one["text"] for one in ran.json["results"]] == [text, "ab", "ab"], ran.err


def test_null_is_no_grammar_whatever_the_flags_say() -> None:
    def texts(grammar: object, *flags: str) -> list[str]:
        line = json.dumps({"text": "def f(", "grammar": grammar, "max_output_len": 4})
        ran = trtla("run", SHIPPED, "--input-file", "-", "--json", *flags, stdin=line)
        return [one["text"] for one in ran.json["results"]]

    assert texts(None, "--regex", "ab") == texts(None) != texts({"regex": "ab"}) == ["ab"]


@pytest.mark.parametrize(
    ("flag", "value", "message", "hint"),
    [
        ("--regex", "", "--regex: the regular expression is empty", "such as [0-9]+"),
        ("--grammar", "", "--grammar: the grammar is empty", "the rules themselves"),
        ("--json-schema", "", "--json-schema: the JSON schema is empty", "the schema itself"),
        (
            "--json-schema",
            "[1]",
            "--json-schema: the JSON schema is '[1]', not an object",
            "such as",
        ),
        ("--json-schema", "[1", "--json-schema: the JSON schema is not JSON", "give one such as"),
        ("--json-schema", "null", "the JSON schema is 'null', not an object", "give one such as"),
        ("--json-schema", "false", "the JSON schema is false, which allows no text", "give one"),
        ("--json-schema", "none.json", "none.json does not exist", "or give the schema itself"),
        ("--grammar", "none.gbnf", "none.gbnf does not exist", "or give the rules themselves"),
        ("--json-schema", "{", "--json-schema: the JSON schema is not JSON", "give one such as"),
    ],
)
def test_what_is_no_grammar_says_what_to_give(
    no_weights: Path, flag: str, value: str, message: str, hint: str
) -> None:
    refused(trtla("run", no_weights, "-p", "x", flag, value), 2, message, hint)


@pytest.mark.parametrize(
    ("key", "instead"), [("prompt", "text"), ("regex", "grammar"), ("json_schema", "grammar")]
)
def test_names_that_others_use_lead_to_those_of_prompt_files(
    no_weights: Path, key: str, instead: str
) -> None:
    line = json.dumps({key: "x", "grammar": {"regex": "a"}})
    ran = trtla("run", no_weights, "--input-file", "-", stdin=line)
    refused(ran, 2, f'unknown key "{key}"', f'use "{instead}"')


def test_blanks_are_those_of_the_pattern(tmp_path: Path) -> None:
    schema = '{"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}'
    asked = ("run", SHIPPED, "-p", "x", "--json", "--json-schema", schema, "--whitespace-pattern")
    for pattern in ("", r"\n"):
        (answer,) = trtla(*asked, pattern).json["results"]
        assert re.fullmatch(r"\[B1B,B1B\]".replace("B", f"(?:{pattern})?"), answer["text"])


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        ((), "--whitespace-pattern is for --json-schema", "omit it, or give both"),
        (("--regex", "a"), "is for JSON, not the regular expression", "omit it"),
        (("--json-schema", "{}"), "is 'x', not an expression for blanks of JSON", "[ \\n]{0,2}"),
    ],
)
def test_a_pattern_of_something_else_is_refused(
    no_weights: Path, flags: tuple[str, ...], message: str, hint: str
) -> None:
    ran = trtla("run", no_weights, "-p", "x", "--whitespace-pattern", "x", *flags)
    refused(ran, 2, message, hint)


def test_presets_have_objects_as_they_are(tmp_path: Path) -> None:
    preset = tmp_path / "preset.yaml"
    preset.write_text("json_schema: {const: ab}\nchat_template_kwargs:\n  enable_thinking: false\n")
    ran = trtla("run", SHIPPED, "-p", "x", "--json", "--config", preset)
    assert [one["text"] for one in ran.json["results"]] == ['"ab"'], ran.err
