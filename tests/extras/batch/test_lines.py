"""Reading the input: lines, what is wrong with them, and which share a custom_id."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.extras.batch.support import ask, write
from trtla.api.answers import dumps
from trtla.errors import UsageError
from trtla.extras.batch import lines
from trtla.extras.batch.lines import LineRequest, Reader, parse, survey


def asks(path: Path) -> list[LineRequest]:
    first = survey(path).first
    return [parse(line, first) for line in Reader(path)]


def test_blank_lines_are_passed_by_and_numbers_are_the_files(tmp_path: Path) -> None:
    path = write(tmp_path / "in", ["", ask("a"), "  \t", ask("b"), ""])
    found = survey(path)
    assert (found.count, found.last) == (2, 4)
    assert [(one.number, one.custom_id) for one in asks(path)] == [(2, "a"), (4, "b")]


def test_the_last_line_needs_no_end_and_the_first_may_have_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ask("é")).encode() + b"\r\n")
    with path.open("ab") as file:
        file.write(json.dumps(ask("b")).encode())
    assert [(one.custom_id, one.error) for one in asks(path)] == [("é", None), ("b", None)]


def test_lines_that_share_a_custom_id_name_the_first(tmp_path: Path) -> None:
    names = ["a", "b", "a", "c", "b", "a"]
    found = asks(write(tmp_path / "in", [ask(name) for name in names]))
    assert [one.is_named for one in found] == [True, True, False, True, False, False]
    said = [one.error and one.error.message.split(";")[0] for one in found]
    assert said[2:] == [
        "line 3 has the custom_id of line 1",
        None,
        "line 5 has the custom_id of line 2",
        "line 6 has the custom_id of line 1",
    ]


def test_a_line_without_a_custom_id_shares_none(tmp_path: Path) -> None:
    found = asks(write(tmp_path / "in", ["1", "{}", ask("a"), "nope"]))
    assert [one.is_named for one in found] == [False, False, True, False]


def test_a_line_that_is_too_long_is_an_error_of_that_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LONGEST", 1 << 20)
    path = write(tmp_path / "in", [ask("a"), ask("b", "x" * 3_000_000), ask("c")])
    first, second, third = asks(path)
    assert first.error is third.error is None
    assert second.error is not None
    assert second.error.message == "line 2 has more than 1 MiB; split it"


def test_a_line_is_refused_as_the_server_refuses_its_body(tmp_path: Path) -> None:
    bodies = ask("a", temperature=2.5), ask("b", temperature="hot"), ask("c", temperature=2)
    errors = [one.error and one.error.message for one in asks(write(tmp_path / "in", [*bodies]))]
    assert errors == ["temperature must be at most 2", "temperature must be a number", None]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no line"),
        (b"\n \n", "has no line"),
        (b'{"a": "\xff"}\n', "line 1 of {} is not UTF-8 text (its byte 7)"),
        (b"\n{}\n\x80", "line 3 of {} is not UTF-8 text (its byte 0)"),
    ],
)
def test_files_that_are_no_input(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "in"
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        survey(path)
    assert said.format(path) in error.value.message
    assert error.value.hint


def test_what_cannot_be_read_twice_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("pipe", "is not a file"), (".", "is not a file"), ("x", "does not exist")):
        with pytest.raises(UsageError, match=said):
            survey(tmp_path / name)


def test_the_digest_is_of_every_byte(tmp_path: Path) -> None:
    one = write(tmp_path / "one", [ask("a"), ask("b")])
    two = write(tmp_path / "two", [ask("a"), "", ask("b")])
    assert survey(one).digest != survey(two).digest
    assert survey(one).digest == survey(one).digest


def test_a_line_of_output_is_one_for_every_reader() -> None:
    text = "a\x85b\u2028c\u2029d\\u2028"
    line = dumps({"text": text}).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line) == {"text": text}
