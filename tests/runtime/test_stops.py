"""What ends a text: tokens by their ids, and stop texts that name control tokens."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.examples import examples
from trtla import LLM, SamplingParams, UsageError
from trtla.llm.stops import Beginning, StopText, as_stop_texts
from trtla.llm.text_stream import TextStream
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig

LETTERS, CONTROLS = "ab\n", {10: "\ue000", 11: "\ue001"}
PROMPT = "def f("


def decode(ids):
    return "".join(LETTERS[token] for token in ids if token < len(LETTERS))


def shown(ids):
    """The text with a character of its own for each control token."""
    return "".join(CONTROLS.get(token) or LETTERS[token] for token in ids)


def parsed(stop):
    """A stop text that was written with these characters."""
    marks = {char: token for token, char in CONTROLS.items()}
    places = [at for at, char in enumerate(stop) if char in marks]
    edges = [-1, *places, len(stop)]
    texts = tuple(stop[a + 1 : b] for a, b in pairwise(edges))
    return StopText(texts, tuple(marks[stop[at]] for at in places))


def without_controls(text):
    return "".join(char for char in text if char not in CONTROLS.values())


def until(ids, stops):
    """The definition: the text before the first stop text, without control tokens.

    Stop texts that name none are looked for in the text as it is read.
    """
    text, ends = shown(ids), []
    for stop in stops:
        own = text if without_controls(stop) != stop else without_controls(text)
        if stop in own:
            ends.append(len(without_controls(own[: own.find(stop)])))
    return without_controls(text)[: min(ends, default=None)], bool(ends)


SIGNS = st.sampled_from([*LETTERS, *CONTROLS.values()])
IDS = st.lists(st.sampled_from([*range(len(LETTERS)), *CONTROLS]), max_size=16)


@given(IDS, st.lists(st.text(SIGNS, min_size=1, max_size=4), min_size=1, max_size=3))
@example([2, 11, 11, 1], ["\n\ue001b"])  # another control token is between
@example([0, 10, 2], ["a\n", "\ue000b"])
@examples(300)
def test_texts_end_where_a_stop_text_begins_control_tokens_included(ids, stops):
    named = {token for token, char in CONTROLS.items() if char in "".join(stops)}
    ids = [token for token in ids if token < len(LETTERS) or token in named]  # others are no matter
    holding = (n for n in range(1, len(ids) + 1) if until(ids[:n], stops)[1])
    ids = ids[: next(holding, len(ids))]
    stream, sent = TextStream(decode, [], tuple(map(parsed, stops))), ""
    expected, stopped = until(ids, stops)
    for count, token in enumerate(ids, 1):
        sent += stream.push([token])
        assert expected.startswith(sent)
        assert stream.stopped == (stopped and count == len(ids))
    assert sent + stream.push([], last=True) == expected


def test_many_control_tokens_do_not_make_the_next_one_dearer(monkeypatch):
    most, find = [], StopText.find
    monkeypatch.setattr(
        StopText, "find", lambda self, *args: (most.append(len(args[1])), find(self, *args))[1]
    )
    stream = TextStream(
        decode, [], (StopText(("", "zz"), (10,)), StopText(("", "", "b"), (10, 11)))
    )
    for _ in range(300):
        stream.push([10])
    assert max(most) <= 4
    assert not stream.stopped
    stream.push([11, 1])
    assert stream.stopped


@given(st.text("ab", max_size=8), st.lists(st.text("abc", max_size=6), max_size=4))
def test_a_beginning_is_found_at_the_end_of_a_text_that_grows(text, pieces):
    beginning, read = Beginning(text), ""
    for piece in pieces:
        beginning.read(piece)
        read += piece
        shared = (n for n in range(len(text), -1, -1) if read.endswith(text[:n]))
        assert beginning.length == next(shared)


def test_a_text_without_control_tokens_is_one_stretch():
    assert as_stop_texts(["ab", "\n"]) == (StopText(("ab",)), StopText(("\n",)))


@pytest.fixture(scope="module")
def llm(tiny_llama):
    with LLM(tiny_llama, dtype="float32", lookahead=LookaheadConfig(4, 4, 4)) as llm:
        yield llm


@pytest.fixture(scope="module")
def plain(llm):
    return llm.generate([PROMPT], SamplingParams(40), AUTOREGRESSIVE)[0]


def test_a_stop_token_ends_the_text_wherever_drafts_have_it(llm, plain):
    """Every token of a text that was drafted for, alone and with a later one beside it."""
    ids = plain.token_ids
    drafted = llm.generate([PROMPT], SamplingParams(40))[0]
    assert (drafted.token_ids, max(drafted.stats.step_lengths) > 2) == (ids, True)
    firsts = {token: at for at, token in reversed(list(enumerate(ids)))}
    for sampled in ({}, {"temperature": 0.7, "seed": 3}):
        if sampled:
            ids = llm.generate([PROMPT], SamplingParams(40, **sampled), AUTOREGRESSIVE)[0].token_ids
            firsts = {token: at for at, token in reversed(list(enumerate(ids)))}
        how = [SamplingParams(40, stop_token_ids=[one, ids[-1]], **sampled) for one in firsts]
        for lookahead in (None, "auto", AUTOREGRESSIVE):
            found = llm.generate([PROMPT] * len(how), how, lookahead)
            for token, one in zip(firsts, found, strict=True):
                last = min(firsts[token], firsts[ids[-1]])
                assert one.token_ids == ids[: last + 1]
                assert one.finish_reason == "stop_words"
                assert PROMPT + one.text == llm.tokenizer.decode(
                    [*one.input_ids, *ids[:last]]
                ).lstrip(" ")


def test_chunks_of_a_stopped_text_join_to_it(llm, plain):
    how = SamplingParams(40, stop_token_ids=plain.token_ids[9])
    whole = llm.generate([PROMPT], how)[0]
    chunks = list(llm.stream([PROMPT], how))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [one for chunk in chunks for one in chunk.token_ids] == list(whole.token_ids)


def test_the_name_of_a_control_token_stops_where_it_comes(llm):
    token = max(llm.tokenizer.control_ids)
    name = llm.tokenizer.token_bytes(token).decode()
    how = {"max_tokens": 4, "logit_bias": {token: 100}}
    for lookahead in (None, AUTOREGRESSIVE):
        free = llm.generate([PROMPT], SamplingParams(**how), lookahead)[0]
        for stop, count in ((name, 1), (name * 2, 2), (f"a{name}", 4), (f"{name}a", 4)):
            llm.end_ids, before = frozenset(), llm.end_ids
            one = llm.generate([PROMPT], SamplingParams(**how, stop=stop), lookahead)[0]
            llm.end_ids = before
            assert (len(one.token_ids), one.text) == (count, ""), stop
            assert one.finish_reason == ("length" if count == 4 else "stop_words")
        assert free.finish_reason == "end_id" or len(free.token_ids) == 4


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([-1], "stop_token_ids is -1"),
        (["7"], "stop_token_ids is '7'"),
        ("7", "stop_token_ids is '7'"),
        ([10**6], "stop_token_ids of prompt 0 holds token id 1000000, outside the vocabulary"),
    ],
)
def test_ids_that_are_none_are_refused(llm, ids, message):
    with pytest.raises(UsageError, match=message):
        llm.generate([PROMPT], SamplingParams(stop_token_ids=ids))
