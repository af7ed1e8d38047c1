"""Reading the input: lines, what is wrong with them, and which share a custom_id."""

from __future__ import annotations

import json
from pathlib import Path

from tests.extras.batch.support import ask, write
from trtla.api.answers import dumps
from trtla.extras.batch.lines import LineRequest, read_lines


def asks(path: Path) -> list[LineRequest]:
    lines = read_lines(path)
    return [lines.parse(number) for number in lines.data]


def test_blank_lines_are_passed_by_and_numbers_are_the_files(tmp_path: Path) -> None:
    """The first may begin with a byte order mark, and the last needs no line break."""
    lines = [json.dumps(ask("é")), "", "  \t", json.dumps(ask("b"))]
    (tmp_path / "in").write_bytes("\r\n".join(lines).encode("utf-8-sig"))
    found = asks(tmp_path / "in")
    read = [(one.number, one.custom_id, one.error) for one in found]
    assert read == [(1, "é", None), (4, "b", None)]


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


def test_a_line_of_output_is_one_for_every_reader() -> None:
    text = "a\x85b\u2028c\u2029d\\u2028"
    line = dumps({"text": text}).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line) == {"text": text}
