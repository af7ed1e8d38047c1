"""Incremental detokenization: the text depends on the ids, never on how many came in a step."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.support.tokenizers
from tests.support.examples import examples
from trtla.llm.stops import as_stop_texts
from trtla.llm.text import Tokenizer
from trtla.llm.text_stream import StopStrings, TextStream

BROKEN = "\N{REPLACEMENT CHARACTER}"
STOPS = ["\n", "\n\n", "b", " a", "🦙", "é", "日本", "本", ":\n", "\n  ", "ab.", "end", BROKEN]
MAKERS = {
    "byte_level": tests.support.tokenizers.byte_level,
    "byte_fallback": tests.support.tokenizers.byte_fallback,
}


class Codec:
    """A tokenizer with what text streams need of it, and ids to draw outputs from."""

    def __init__(self, tokenizer, byte_tokens=None):
        self.encode = lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)
        self.decode = lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)
        self.size = tokenizer.get_vocab_size() + 2  # models have more ids than their tokenizer
        self.byte_tokens = byte_tokens or {}


def codec(name, folder):
    if name == "shipped":
        return Codec(Tokenizer(folder)._plain)
    tokenizer = MAKERS[name]()
    found = ((tokenizer.token_to_id(f"<0x{byte:02X}>"), byte) for byte in range(256))
    return Codec(tokenizer, {token: byte for token, byte in found if token is not None})


@pytest.fixture(scope="module", params=["shipped", *MAKERS])
def kind(request, tiny_llama):
    return codec(request.param, tiny_llama)


def output_text(kind, prompt, ids, stop=()):
    """The definition: prompt and output decoded at once, after the prompt's own text."""
    before, whole = kind.decode(prompt), kind.decode([*prompt, *ids])
    alike = [a == b for a, b in zip(before, whole, strict=False)]
    text = whole[[*alike, False].index(False) :]
    found = [at for one in stop if (at := text.find(one)) >= 0]
    return text[: min(found)] if found else text


def steps_of(ids, cuts):
    """Cut ids into non-empty steps at the given places."""
    places = sorted({cut % (len(ids) + 1) for cut in cuts} | {0, len(ids)})
    return [ids[a:b] for a, b in pairwise(places)]


TEXTS = st.text("ab .\n:é日本🦙\N{REPLACEMENT CHARACTER} end", max_size=24)
CUTS = st.lists(st.integers(0, 400), max_size=12)


@st.composite
def token_ids(draw, kind, most=40):
    """Whole texts, and single ids of all kinds between them: bytes, special and unknown ones."""
    ids = []
    for part in draw(st.lists(TEXTS | st.integers(0, kind.size - 1), max_size=8)):
        ids += kind.encode(part) if isinstance(part, str) else [part]
    if kind.byte_tokens and draw(st.booleans()):
        run = draw(st.sampled_from(["🦙🦙", "é\n日", "\n\n🦙"])).encode()
        base = min(kind.byte_tokens)
        ids += [base + byte for byte in run[: draw(st.integers(1, len(run)))]]
    return ids[:most]


@examples(100)
@given(st.data())
def test_any_steps_give_the_text_of_all_ids_at_once(kind, data):
    prompt = data.draw(token_ids(kind, 30), "prompt")
    ids = data.draw(token_ids(kind, 60), "ids")
    stop = data.draw(st.lists(st.sampled_from(STOPS), max_size=3), "stop")
    check = StopStrings(
        partial(TextStream, kind.decode, prompt, as_stop_texts(stop), kind.byte_tokens)
    )
    counts = range(1, len(ids) + 1)
    end = next((n for n in counts if stop and check(ids[:n])), len(ids))
    holding = (n for n in counts if any(s in output_text(kind, prompt, ids[:n]) for s in stop))
    assert end == next(holding, len(ids))
    wanted = output_text(kind, prompt, ids[:end], stop)
    stream, sent = TextStream(kind.decode, prompt, as_stop_texts(stop), kind.byte_tokens), ""
    for step in steps_of(ids[:end], data.draw(CUTS, "cuts")):
        sent += stream.push(step)
        assert wanted.startswith(sent)
    assert sent + stream.push([], last=True) == wanted


@examples(100)
@given(st.data())
def test_a_stop_check_may_begin_again_with_other_ids(kind, data):
    check = StopStrings(
        partial(TextStream, kind.decode, [], as_stop_texts("b\n"), kind.byte_tokens)
    )
    for ids in data.draw(st.lists(token_ids(kind, 20), max_size=4)):
        text = output_text(kind, [], ids)
        assert check(ids) == ("b" in text or "\n" in text)


@examples(100)
@given(st.data())
def test_whole_characters_come_at_once(kind, data):
    """Text of words and whole characters is not held back to the end."""
    text = data.draw(st.text("ab. é日本", min_size=1, max_size=20))
    ids = kind.encode(text)
    sent = TextStream(kind.decode, [], (), kind.byte_tokens).push(ids)
    assert sent == kind.decode(ids) or ids[-1] in kind.byte_tokens


def cut_texts(kind):
    """Prompt, output, stop strings, and the text that is meant: what `output_text` is held to."""
    encode = kind.encode
    if kind.byte_tokens:
        yield encode("a"), encode("🦙🦙")[1:-2], (), BROKEN * 6
        spaced = encode("a ab end")
        yield from ((spaced[:n], spaced[n:], (), None) for n in range(1, len(spaced)))
    else:
        yield [], encode("a:\n"), ["\n"], "a:"
        yield [], encode("日")[:1], (), BROKEN
    whole = encode("the 🦙")
    for cut in (1, 2):  # none of the output is lost where the prompt ends inside a character
        yield whole[:-cut], [*whole[-cut:], *encode("日本ab.")], (), "🦙日本ab."


@pytest.mark.parametrize("step", [1, 2, 3, 99])
@pytest.mark.parametrize("name", ["shipped", *MAKERS])
def test_texts_that_are_cut_inside_of_runs_words_and_characters(tiny_llama, name, step):
    kind = codec(name, tiny_llama)
    for prompt, ids, stop, text in cut_texts(kind):
        stream = TextStream(kind.decode, prompt, as_stop_texts(stop), kind.byte_tokens)
        pieces = [stream.push(ids[at : at + step]) for at in range(0, len(ids), step)]
        got = "".join([*pieces, stream.push([], last=True)])
        assert got == output_text(kind, prompt, ids, stop)
        if text is None:
            assert kind.decode(prompt) + got == "a ab end"
        else:
            assert got.replace(" ", "") == text


def test_a_stop_in_a_run_of_bytes_is_seen_at_its_token(tiny_llama):
    kind = codec("byte_fallback", tiny_llama)
    ids = kind.encode("🦙🦙\nab end")[1:]
    check = StopStrings(
        partial(TextStream, kind.decode, kind.encode("a"), as_stop_texts(["\n"]), kind.byte_tokens)
    )
    assert [n for n in range(1, 12) if check(ids[:n])][:1] == [9]


def test_the_stop_check_looks_at_the_output_only(tiny_llama):
    """A stop string that began in the prompt does not end the text."""
    kind = codec("byte_fallback", tiny_llama)
    check = StopStrings(
        partial(
            TextStream, kind.decode, kind.encode("a\n"), as_stop_texts(["\n\n"]), kind.byte_tokens
        )
    )
    newline = kind.encode("\n")[-1]
    assert not check([newline])
    assert check([newline, newline])


def measured(kind, prompt=()):
    """A stream, and how many ids each of its decodings takes."""
    lengths = []

    def decode(window):
        lengths.append(len(window))
        return kind.decode(window)

    return TextStream(decode, prompt, (), kind.byte_tokens), lengths


def test_long_outputs_are_decoded_in_short_windows(tiny_llama):
    """The work for a token does not grow with the text before it."""
    kind = codec("shipped", tiny_llama)
    ids = kind.encode("def name(self):\n    return 'é日本'\n" * 30)
    stream, lengths = measured(kind)
    assert stream.push(ids, last=True) == kind.decode(ids)
    assert max(lengths) <= 40


@pytest.mark.parametrize("name", MAKERS)
def test_byte_tokens_are_the_same_with_and_without_transformers(tmp_path, name):
    made = MAKERS[name]()
    tests.support.tokenizers.save(made, tmp_path)
    plain = Tokenizer(tmp_path)
    assert plain._plain is not None
    through = Tokenizer(tmp_path)
    through._plain = None
    assert len(plain.byte_tokens) == (256 if name == "byte_fallback" else 0)
    assert through.byte_tokens == plain.byte_tokens


@pytest.mark.parametrize("name", MAKERS)
def test_outputs_that_repeat_one_token_are_decoded_in_short_windows(tiny_llama, name):
    """Spaces, newlines, tokens that show nothing, broken bytes: what weak models write."""
    kind = codec(name, tiny_llama)
    prompt = kind.encode("a b")
    for text, last in (("  ", "a"), ("\n\n", "b"), ("\n", "a"), ("🦙", "é")):
        for token in {*kind.encode(text)[-2:], kind.size - 1, kind.encode("日" * 2)[-1]}:
            ids, (stream, lengths) = [*[token] * 200, *kind.encode(last)], measured(kind, prompt)
            sent = "".join(stream.push([one]) for one in ids) + stream.push([], last=True)
            assert sent == output_text(kind, prompt, ids)
            assert sum(lengths) < 40 * len(ids)
