"""Lines of a text that comes in pieces break between words, whatever the pieces are."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from trtla.extras.chat.wrapping import WordWrap

_STEER = re.compile(r"\x1b\[(\d+)G\x1b\[K|(\n)|(.)", re.DOTALL)


def screen(written: str) -> list[str]:
    """The rows of a terminal without a right edge."""
    rows = [""]
    for column, line_end, char in _STEER.findall(written):
        if column:
            rows[-1] = rows[-1][: int(column) - 1]
        elif line_end:
            rows.append("")
        else:
            rows[-1] += char
    return rows


def test_a_word_in_two_pieces_moves_to_the_next_line() -> None:
    words, shown = WordWrap(), ""
    for piece in ("The verif", "ication", " is done"):
        shown += words.add(piece, str, 12)
    assert screen(shown) == ["The ", "verification", "is done"]


def test_wide_characters_break_anywhere_and_colours_stay() -> None:
    shown = WordWrap().add("漢字漢字", str, 5)
    assert screen(shown) == ["漢字", "漢字"]
    words = WordWrap()
    first = words.add("one tw", str, 6)
    assert first + words.add("o", str.upper, 6) == "one tw\x1b[5G\x1b[K\ntwO"


@given(st.lists(st.text("ab \n", max_size=6)), st.integers(3, 12))
def test_no_word_is_broken_that_fits_a_line(pieces: list[str], width: int) -> None:
    words = WordWrap()
    rows = screen("".join(words.add(piece, str, width) for piece in pieces))
    text = "".join(pieces)
    assert " ".join(rows).split() == text.split()
    longest = max(map(len, text.split()), default=0)
    assert all(len(row) <= max(width, longest) for row in rows)
