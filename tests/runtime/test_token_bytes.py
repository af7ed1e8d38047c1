"""What single tokens spell: bytes that join to the text, characters cut in two included."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.support.tokenizers
from trtla.llm.text import Tokenizer

TEXTS = st.text("ab .\n:é日本🦙 end<>", min_size=1, max_size=24)


def saved(make, folder):
    tests.support.tokenizers.save(make(), folder)
    return Tokenizer(folder)


@pytest.fixture(scope="module", params=["shipped", "transformers", "byte_level"])
def byte_level(request, tiny_llama, tmp_path_factory):
    """Tokenizers of byte-level BPE; one of them is left to transformers."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "byte_level":
        return saved(tests.support.tokenizers.byte_level, folder)
    if request.param == "transformers":  # which makes one of a vocabulary and its merges
        model = json.loads((tiny_llama / "tokenizer.json").read_text())["model"]
        merges = (" ".join(one) if isinstance(one, list) else one for one in model["merges"])
        (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
        (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges))
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    else:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tiny_llama / name, folder)
    tokenizer = Tokenizer(folder)
    assert (tokenizer._plain is None) == (request.param == "transformers")
    return tokenizer


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory):
    return saved(tests.support.tokenizers.byte_fallback, tmp_path_factory.mktemp("byte_fallback"))


@given(numbers=st.lists(st.integers(0, 10**6)), text=TEXTS)
def test_byte_level_tokens_join_to_their_text(byte_level, numbers, text):
    size = byte_level._fast.get_vocab_size()
    ids = [number % size for number in numbers] + list(byte_level.encode(text, special=False))
    shown = (token for token in ids if byte_level.decode([token]))
    joined = b"".join(map(byte_level.token_bytes, shown))
    assert joined.decode(errors="replace") == byte_level.decode(ids)
    assert joined.endswith(text.encode())


@given(text=TEXTS)
def test_sentencepiece_tokens_join_to_their_text_behind_a_space(byte_fallback, text):
    ids = byte_fallback.encode(text, special=False)
    assert b"".join(map(byte_fallback.token_bytes, ids)) == f" {text}".encode()


def test_single_tokens(byte_fallback, byte_level):
    ids = byte_fallback.encode("the 🦙\n", special=False)
    pieces = [byte_fallback.token_bytes(token) for token in ids]
    assert pieces[-6:] == [b" ", b"\xf0", b"\x9f", b"\xa6", b"\x99", b"\n"]
    assert pieces[-5].decode(errors="replace") == "\N{REPLACEMENT CHARACTER}"
    assert byte_fallback.token_bytes(1) == b"</s>"
    assert byte_fallback.token_bytes(10**6) == byte_level.token_bytes(10**6) == b""
    for token in byte_level.control_ids:
        assert byte_level.token_bytes(token).startswith(b"<|")
        assert byte_level.decode([token]) == ""
    assert byte_level.control_ids
