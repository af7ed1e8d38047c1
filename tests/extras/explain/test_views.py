"""What people read: the text view and the strip line by line, odd tokens, and the SVG picture."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.extras.explain.support import numbers, recorded, unpainted
from tests.support.traces import C4, FIB7, M17, T4_PROMPT
from trtla import UsageError
from trtla.extras.explain.picture import step_picture
from trtla.extras.explain.step_outcome import busiest
from trtla.extras.explain.text_view import step_lines, strip_lines
from trtla.extras.explain.words import Words, clip, escaped, fit, summary
from trtla.runtime.draft import Draft

ODD = [
    "\n",
    "'",
    '"',
    "<",
    "&",
    "$x_1$",
    "$",
    "é",
    "\u202e",
    "\t",
    " a",
    "]]>",
    "\\",
    "日本",
    "🙂",
    "%",
]
DEEP_STEP_7 = """\
Step 7 of 11: 0 of 6 drafted tokens accepted
Fed in one forward: 15 tokens = 1 input + 8 of the window + 6 of candidates.

Text   112351606
Input  '6' at position 9

Window: W = 3 columns, N-1 = 3 levels: guesses about what comes. Level l, column j stands at
position 9 + l + j.
               column 0    column 1    column 2
  level 0      6           6           4
  level 1      6           0           4
  level 2      0           6           1
  new level    6           6           5
The new level is the target's most probable token after each cell of the newest one. Level 0 goes,
the others move up.

Collected into the pool: 3 n-grams, one a column
  column 0     6           -> 6           0           6
  column 1     6           -> 0           6           6
  column 2     4           -> 4           1           5

Candidates: the pool has 2 continuations of '6', 2 fed (G = 2)
  position     10          11          12          13          seen in
  target drew  5
  candidate 1  1 ✗         6           0                       window
  candidate 2  0 ✗         6           6                       output

Attention mask: a row sees the columns that are filled, one for each position before it.
  ▒ cached  █ input  █ lookahead branch, L level.column  ▓ verification branch, C candidate.place
                          in L0   L1     L2     C1     C2
input 9     6          ▒▒ ██ ···· ······ ······ ······ ······
L0.1  10    6          ▒▒ ██ ██·· ······ ······ ······ ······
L0.2  11    4          ▒▒ ██ ████ ······ ······ ······ ······
L1.0  10    6          ▒▒ ██ ···· ██···· ······ ······ ······
L1.1  11    0          ▒▒ ██ ██·· ··██·· ······ ······ ······
L1.2  12    4          ▒▒ ██ ████ ····██ ······ ······ ······
L2.0  11    0          ▒▒ ██ ···· ██···· ██···· ······ ······
L2.1  12    6          ▒▒ ██ ██·· ··██·· ··██·· ······ ······
L2.2  13    1          ▒▒ ██ ████ ····██ ····██ ······ ······
C1.1  10    1          ▒▒ ██ ···· ······ ······ ▓▓···· ······
C1.2  11    6          ▒▒ ██ ···· ······ ······ ▓▓▓▓·· ······
C1.3  12    0          ▒▒ ██ ···· ······ ······ ▓▓▓▓▓▓ ······
C2.1  10    0          ▒▒ ██ ···· ······ ······ ······ ▓▓····
C2.2  11    6          ▒▒ ██ ···· ······ ······ ······ ▓▓▓▓··
C2.3  12    6          ▒▒ ██ ···· ······ ······ ······ ▓▓▓▓▓▓

Added by the target: '5'
Why it ended: First mismatch: drafted '1' and '0', the target drew '5'."""


def test_a_step_of_the_deep_trace_reads_like_this():
    told, _ = recorded(FIB7, [1, 1, 2], (3, 4, 2), 12)
    assert "\n".join(step_lines(told, told.steps[7], numbers(told), unpainted)) == DEEP_STEP_7


def test_the_strip_has_a_row_a_step_and_its_tokens_are_the_output():
    told, fed = recorded(C4, [0, 1, 2, 3, 0, 1], (3, 3, 3), 10)
    assert list(strip_lines(told, numbers(told), unpainted))[2:] == [
        "step   fed  tokens" + " " * 66 + "ended by",
        "   0     6  2" + " " * 71 + "prefill",
        "   1     6  [3] [0] 1" + " " * 63 + "whole candidate",
        "   2     8  [2] [3] 0" + " " * 63 + "whole candidate",
        "   3     8  [1] [2] 3" + " " * 63 + "length",
    ]
    assert summary(told) == "3 steps after the prefill, 10 tokens, S = 3.00 tokens a step " + (
        "(W,N,G = 3,3,3)"
    )
    assert [
        int(line.split()[1]) for line in list(strip_lines(told, numbers(told), unpainted))[3:]
    ] == fed


@pytest.mark.parametrize("triple", [(1, 2, 1), (3, 3, 2), (7, 7, 7), (15, 5, 15), (40, 3, 2)])
def test_no_line_is_wider_than_100_columns(triple):
    told, _ = recorded(M17, T4_PROMPT, triple, 48)
    words = Words(lambda ids: "".join(ODD[i % len(ODD)] * 3 for i in ids), T4_PROMPT)
    for step in told.steps:
        lines = step_lines(told, step, words, unpainted)
        assert max(map(cell_len, lines)) <= 100, max(lines, key=cell_len)
        assert not any(char in line for line in lines for char in "\n\t\u202e")
    assert max(map(cell_len, strip_lines(told, words, unpainted))) <= 100


def test_colours_change_nothing_but_colours():
    told, _ = recorded(M17, T4_PROMPT, (7, 7, 7), 48)
    styles = set()

    def paint(text, style):
        styles.add(style)
        return text

    for step in told.steps:
        painted = step_lines(told, step, numbers(told), paint)
        assert painted == step_lines(told, step, numbers(told), unpainted)
    assert styles >= {"accepted", "rejected", "input", "window", "candidate", "dim", "bold"}


@given(st.text(), st.integers(1, 30))
def test_texts_fit_their_cells(text, width):
    shown = escaped(text)
    assert cell_len(fit(shown, width)) == width
    assert cell_len(clip(shown, width)) <= width
    assert "\n" not in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("text", "cell", "quoted"),
    [
        ("\n  ", "\\n··", "'\\n  '"),
        (" x", "·x", "' x'"),
        ("\\n", "\\\\n", "'\\\\n'"),
        ("\x1b[0m", "\\x1b[0m", "'\\x1b[0m'"),
        ("\u202e", "\\u202e", "'\\u202e'"),
        ("$\\alpha$", "$\\\\alpha$", "'$\\\\alpha$'"),
        ("日本", "日本", "'日本'"),
    ],
)
def test_odd_tokens_are_shown_escaped(text, cell, quoted):
    words = Words(lambda ids: text * len(ids))
    assert (words.cell(1), words.quoted(1)) == (cell, quoted)


def test_a_token_keeps_the_space_that_a_text_would_lose_at_its_begin():
    pieces = {1: " a", 2: " b", 3: ""}
    words = Words(lambda ids: "".join(pieces[i] for i in ids).removeprefix(" "), [3, 1, 2])
    assert [words.raw(token) for token in (1, 2, 3)] == [" a", " b", "#3"]


def test_tokens_without_a_text_of_their_own_are_their_ids():
    assert Words(None, [1]).cell(7) == "#7"
    assert Words(lambda ids: "\N{REPLACEMENT CHARACTER}", [1]).cell(7) == "#7"


def coloured(text, style):
    """A text in a colour of its style."""
    return click.style(text, fg="green") if style == "accepted" else text


def svg_lines(picture: str) -> list[str]:
    """The rows of a picture's text, without spaces, whose width the picture has as places."""
    rows: dict[str, str] = {}
    for node in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text"):
        rows[node.get("y", "")] = rows.get(node.get("y", ""), "") + "".join(node.itertext())
    return [dense(text) for text in rows.values()]


def dense(text: str) -> str:
    return re.sub(r"\s", "", text)


def test_a_picture_has_the_lines_of_the_text():
    told, _ = recorded(lambda s: (s[-1] + 1) % 16, list(range(16)), (4, 4, 4), 24)
    words = Words(lambda ids: "".join(ODD[i % len(ODD)] for i in ids), [2])
    step = busiest(told)
    picture = step_picture(told, step, words, coloured)
    shown = svg_lines(picture)
    for line in (summary(told), *step_lines(told, step, words, unpainted)):
        assert dense(line) in shown or not line.strip()
    assert "$x_1$" in picture
    assert picture == step_picture(told, step, words, coloured)


@pytest.mark.parametrize("triple", [(1, 1, 0), (2, 2, 1), (15, 8, 2)])
def test_a_picture_holds_a_mask_of_any_width(triple):
    told, _ = recorded(M17, T4_PROMPT, triple, 48)
    for step in (told.steps[0], told.steps[-1]):
        lines = step_lines(told, step, numbers(told), unpainted, 800)
        shown = svg_lines(step_picture(told, step, numbers(told), unpainted))
        assert {dense(line) for line in lines if line.strip()} <= set(shown)


def test_a_picture_that_no_file_can_hold_is_refused():
    told, _ = recorded(M17, T4_PROMPT, (7, 7, 7), 20)
    huge = replace(told.steps[-1], draft=Draft.chain([1] * 500))
    with pytest.raises(UsageError, match="fed 501 tokens"):
        step_picture(told, huge, numbers(told), unpainted)


def test_the_end_of_a_text_is_read_as_one_and_cut_between_letters():
    letters = {i: bytes([byte]) for i, byte in enumerate("zé\nü🙂 ab".encode())}
    words = Words(lambda ids: b"".join(letters[i] for i in ids).decode(errors="replace"), [0])
    tokens = list(letters)
    assert words.end(tokens, 30) == "zé\\nü🙂 ab"
    assert words.end(tokens, 7) == "…ü🙂 ab"
    assert words.end(tokens, 9) == "…\\nü🙂 ab"
    assert words.end(tokens[-5:], 30) == " ab"
    assert words.end([], 30) == ""
    assert Words(None).end([1, 2], 30) == "#1#2"
