"""Reading the input: lines, what is wrong with them, and which share a custom_id."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.extras.batch.support import ask, write
from trtla.api.answers import dumps
from trtla.errors import UsageError
from trtla.extras.batch.lines import LineRequest, read_lines


def asks(path: Path) -> list[LineRequest]:
    lines = read_lines(path)
    return [lines.parse(number) for number in lines.data]


def test_blank_lines_are_passed_by_and_numbers_are_the_files(tmp_path: Path) -> None:
    found = asks(write(tmp_path / "in", ["", ask("a"), "  \t", ask("b"), ""]))
    assert [(one.number, one.custom_id) for one in found] == [(2, "a"), (4, "b")]


def test_the_last_line_needs_no_end_and_the_first_may_have_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ask("é")).encode() + b"\r\n")
    with path.open("ab") as file:
        file.write(json.dumps(ask("b")).encode())
    assert [(one.custom_id, one.error) for one in asks(path)] == [("é", None), ("b", None)]


def test_lines_that_share_a_custom_id_name_the_first(tmp_path: Path) -> None:
    lines = [*(ask(name) for name in ["a", "b", "a", "c", "b", "a"]), "1", "{}", "{}"]
    found = asks(write(tmp_path / "in", lines))
    said = [one.error and one.error.message.split(";")[0] for one in found]
    assert said[:6] == [
        None,
        None,
        "line 3 has the custom_id of line 1",
        None,
        "line 5 has the custom_id of line 2",
        "line 6 has the custom_id of line 1",
    ]


def test_a_line_that_is_not_utf8_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b'{"a": "\xff"}\n' + json.dumps(ask("b")).encode())
    wrong, good = asks(path)
    assert wrong.error is not None
    assert wrong.error.message == "line 1 is not UTF-8 text (its byte 7); convert the file"
    assert good.error is None


def test_a_line_is_refused_as_the_server_refuses_its_body(tmp_path: Path) -> None:
    bodies = ask("a", temperature=2.5), ask("b", temperature="hot"), ask("c", temperature=2)
    errors = [one.error and one.error.message for one in asks(write(tmp_path / "in", [*bodies]))]
    assert errors == ["temperature must be at most 2", "temperature must be a number", None]


@pytest.mark.parametrize(
    ("name", "said"),
    [("empty", "has no line"), (".", "cannot be read"), ("x", "does not exist")],
)
def test_files_that_are_no_input(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "empty").write_bytes(b"\n \n")
    with pytest.raises(UsageError, match=said) as error:
        read_lines(tmp_path / name)
    assert error.value.hint


def test_the_digest_is_of_every_byte(tmp_path: Path) -> None:
    one = write(tmp_path / "one", [ask("a"), ask("b")])
    two = write(tmp_path / "two", [ask("a"), "", ask("b")])
    assert read_lines(one).digest != read_lines(two).digest


def test_a_line_of_output_is_one_for_every_reader() -> None:
    text = "a\x85b\u2028c\u2029d\\u2028"
    line = dumps({"text": text}).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line) == {"text": text}
