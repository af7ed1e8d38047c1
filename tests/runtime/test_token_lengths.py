"""How many tokens a text has at least: never more than it has."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from tests.support.tokenizers import byte_fallback, byte_level
from trtla.llm.tokenizer_files import token_lengths

LETTERS = "ab .\n\t\u3000:é日本🦙A\u030a\u0323ᾂ각"
TEXTS = st.text(st.sampled_from(LETTERS) | st.characters(codec="utf-8"), max_size=40)


def composing() -> Tokenizer:
    """Qwen's normalizer: four characters may become one."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def stripping() -> Tokenizer:
    """Phi's special tokens take the blanks beside them."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("<|b|>", special=True, rstrip=True, lstrip=True)])
    return tokenizer


@cache
def with_lengths(make):
    tokenizer = make()
    return tokenizer, token_lengths(tokenizer)


@pytest.mark.parametrize("make", [byte_level, byte_fallback, composing, stripping])
@given(text=TEXTS | st.builds("".join, st.lists(st.sampled_from(["<|b|>", " \n", "日本", "ab"]))))
def test_a_text_has_at_least_so_many_tokens(make, text):
    tokenizer, lengths = with_lengths(make)
    assert lengths.longest is not None
    assert lengths.least(text) <= len(tokenizer.encode(text, add_special_tokens=False).ids)


def test_the_longest_token_is_the_tokenizers_own(tiny_llama):
    tokenizer = Tokenizer.from_file(str(tiny_llama / "tokenizer.json"))
    lengths = token_lengths(tokenizer)
    assert lengths.longest == max(map(len, tokenizer.get_vocab()))
    assert lengths.least("1" * 1000 * lengths.longest) == 1000
    spaces = " " * 4000
    assert lengths.least(spaces) <= len(tokenizer.encode(spaces).ids)


def dropping() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.StripAccents()])
    return tokenizer


def collapsing() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    return tokenizer


def splitting() -> Tokenizer:
    tokenizer = byte_level()
    whole = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(whole)
    return tokenizer


def unknowing() -> Tokenizer:
    """All that it does not know is one token."""
    return Tokenizer(models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>", fuse_unk=True))


@pytest.mark.parametrize("make", [dropping, collapsing, splitting, unknowing])
def test_nothing_is_said_where_characters_may_vanish(make):
    assert token_lengths(make()).least("日" * 10**6) == 0
    assert token_lengths(None).least("a") == 0
