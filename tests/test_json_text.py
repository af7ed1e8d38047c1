"""JSON from outside: what parses, and the one phrase for what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtla.errors import UsageError
from trtla.files import JsonError, parse_json, parse_texts, read_json, read_yaml


@pytest.mark.parametrize(
    "value", [None, 3, "text", [], {}, {"a": [1, 2.5, {"b": None}]}, 10**400, "\N{LLAMA}"]
)
def test_what_json_holds_comes_back(value: Any) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value).encode()) == value


def test_levels_that_anyone_needs_are_read() -> None:
    parse_json("[" * 100 + "]" * 100)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("{", "Expecting property name"),
        ("", "Expecting value"),
        ("[1,]", "trailing comma|Expecting value"),
        ('{"a": NaN}', "NaN"),
        ("[-Infinity]", "-Infinity"),
        ("9" * 5000, "thousands of digits"),
        ("[" * 102 + "]" * 102, "levels"),
        ('{"a":' * 100_000, "levels"),
        ("[" * 100_000, "levels"),
        (b"\xff\xfe\x80", "UTF-8|UTF-16|utf"),
        (b'"\xe9"', "UTF-8"),
    ],
)
def test_what_is_no_json_is_one_phrase(text: str | bytes, phrase: str) -> None:
    with pytest.raises(JsonError, match=phrase) as caught:
        parse_json(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ['"a\\ud800b"', '{"\\uDFFF": 1}', '["\\udce9"]'])
def test_half_a_pair_is_refused_in_texts_only(text: str) -> None:
    """Names of files that are no UTF-8 are stored so, in trtla.json for one."""
    assert parse_json(text) is not None
    with pytest.raises(JsonError, match=r"\\ud..., half of a surrogate pair"):
        parse_texts(text)


def test_a_whole_pair_is_a_character() -> None:
    assert parse_texts('"\\ud83e\\udd99"') == "\N{LLAMA}"
    assert parse_json('"\\ud83e\\udd99"') == "\N{LLAMA}"


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf{}")
    assert read_json(path) == {}


def test_files_name_themselves_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for content, part in (("{\n\n,", "line 3"), ("9" * 5000, "digits"), ("\0", "not JSON")):
        path.write_text(content)
        with pytest.raises(UsageError, match=part) as caught:
            read_json(path)
        assert str(path) in caught.value.message
    for wrong in (tmp_path, tmp_path / "absent", tmp_path / "\0"):
        with pytest.raises(UsageError):
            read_json(wrong)


@pytest.mark.parametrize("content", ["a: " + "[" * 100_000, "a: " + "9" * 5000, "a: 2001-99-99"])
def test_settings_that_yaml_stumbles_over(content: str, tmp_path: Path) -> None:
    path = tmp_path / "preset.yaml"
    path.write_text(content)
    with pytest.raises(UsageError, match="is not YAML") as caught:
        read_yaml(path)
    assert "\n" not in caught.value.message
