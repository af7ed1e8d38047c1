"""Incremental decoding and stop strings, on a byte tokenizer and on the shipped tokenizer."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtla.runtime.text import StopStrings, TextStream

BROKEN = "\N{REPLACEMENT CHARACTER}"


def decode_bytes(ids):
    """A byte tokenizer: one token a byte, broken sequences shown as U+FFFD."""
    return bytes(ids).decode("utf-8", errors="replace")


def decode_words(ids):
    """Like SentencePiece: words carry a leading space, dropped at the very beginning."""
    return "".join(f" w{i}" for i in ids).removeprefix(" ")


def steps_of(ids, cuts):
    """Cut ids into non-empty steps at the given places."""
    places = sorted({cut % (len(ids) + 1) for cut in cuts} | {0, len(ids)})
    return [ids[a:b] for a, b in pairwise(places)]


@given(st.text(max_size=30), st.lists(st.integers(0, 120), max_size=8))
def test_pieces_join_to_the_text_and_never_split_a_character(text, cuts):
    ids = list(text.encode())
    stream = TextStream(decode_bytes, [], ())
    pieces = [stream.push(step) for step in steps_of(ids, cuts)]
    if BROKEN not in text:
        assert not any(BROKEN in piece for piece in pieces)
    assert "".join([*pieces, stream.push([], last=True)]) == text


def test_unfinished_characters_come_out_at_the_end():
    stream = TextStream(decode_bytes, [], ())
    assert stream.push(list("é".encode())[:1]) == ""
    assert stream.push([], last=True) == BROKEN


def test_the_first_piece_keeps_its_space():
    assert TextStream(decode_words, [1, 2], ()).push([3, 4], last=True) == " w3 w4"


@given(
    st.text("ab", max_size=20),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_14_streamed_text_ends_before_the_stop_string(text, stop, cuts):
    """The executor cuts where a stop string is complete; the text ends where it begins."""
    ids = list(text.encode())
    check = StopStrings(decode_bytes, [], stop)
    end = next((i for i in range(1, len(ids) + 1) if check(ids[:i])), len(ids))
    assert any(s in text[:end] for s in stop) == any(s in text for s in stop)
    stream = TextStream(decode_bytes, [], stop)
    steps = steps_of(ids[:end], cuts)
    pieces = [stream.push(step) for step in steps] + [stream.push([], last=True)]
    found = [at for s in stop if (at := text[:end].find(s)) >= 0]
    assert "".join(pieces) == (text[: min(found)] if found else text[:end])


def test_the_stop_check_looks_at_the_output_only():
    """A stop string that began in the prompt does not end the text."""
    check = StopStrings(decode_bytes, list(b"def f\n"), ["\n\n"])
    assert not check(list(b"\n"))
    assert check(list(b"x\n\n"))


def test_a_late_stop_string_is_found_in_the_tail():
    check = StopStrings(decode_bytes, [], ["END"])
    assert check(list(b"x" * 500 + b"END"))
    assert not check(list(b"x" * 500 + b"EN"))


@pytest.mark.parametrize("text", ["naïve café — “quotes” 🦙\n\tx = 1\n", "日本語テキスト"])
def test_shipped_tokenizer_streams_unicode(tiny_llama, text):
    from trtla.runtime.text import Tokenizer

    tokenizer = Tokenizer(tiny_llama)
    ids = tokenizer.encode(text)
    stream = TextStream(tokenizer.decode, (), ())
    assert "".join([stream.push([i]) for i in ids] + [stream.push([], last=True)]) == text
