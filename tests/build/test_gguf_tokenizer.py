"""Tokenizers out of GGUF files have llama.cpp's ids; it is asked where it is installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.support.examples import examples
from tests.support.gguf_models import _CONTROL, _USER_DEFINED, byte_vocabulary, scored, vocabulary
from trtla.formats.gguf.header import read_header
from trtla.formats.gguf.tokenizer import _SAME_SPLITS, _SPLITS

ROOT = Path(__file__).parents[2]
_OTHERS = [names[-1] for names in _SAME_SPLITS.values()]


def byte_level(pre: str) -> dict[str, Any]:
    """Bytes, and merges of pairs that show where texts are split."""
    letters = "abzABZ019'.,!=Ġ€é"
    pairs = [(one, other) for one in letters for other in letters if one + other != "ĠĠ"]
    alphabet = byte_vocabulary()[:256]
    pairs = [pair for pair in pairs if set("".join(pair)) <= set(alphabet)]
    pairs += [("Ċ", "Ċ"), ("Ġ", "Ċ"), ("01", "9"), ("ab", "z"), ("Ġa", "b")]
    tokens = [*alphabet, *("".join(pair) for pair in pairs), "<|end|>", "<tool>"]
    types = [1] * (len(tokens) - 2) + [_CONTROL, _USER_DEFINED]
    merges = [" ".join(pair) for pair in pairs]
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges,
            "bos_token_id": len(tokens) - 2, "eos_token_id": len(tokens) - 2}  # fmt: skip


def as_gemma() -> dict[str, Any]:
    """Scores, with spaces and line ends that are tokens of their own, and none put in front."""
    keys = scored()
    own = ["\n", "\n\n", "\n\n\n", "  ", "   ", "    ", "<start_of_turn>", "<end_of_turn>"]
    return {
        **keys,
        "tokens": [*keys["tokens"], *own],
        "token_type": [*keys["token_type"], *[_USER_DEFINED] * 6, _CONTROL, _CONTROL],
        "scores": [*keys["scores"], *[0.0] * len(own)],
        "add_space_prefix": False,
    }


def loaded(keys: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(vocabulary(keys).tokenizer()))


def by_scores(text: str, keys: dict[str, Any]) -> list[int]:
    """SentencePiece's rule written out: merge the pair with the best score, the leftmost first."""
    ids = {token: index for index, token in enumerate(keys["tokens"])}
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        found = [
            (-keys["scores"][ids[a + b]], at)
            for at, (a, b) in enumerate(pairwise(parts))
            if a + b in ids
        ]
        if not found:
            break
        at = min(found)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    spelled: list[int] = []
    for part in parts:
        known = ids.get(part)
        spelled += [known] if known is not None else [ids[f"<0x{n:02X}>"] for n in part.encode()]
    return spelled


@examples(300)
@given(st.text("abc 12é日\n", min_size=1), st.integers(0, 18))
def test_scores_decide_what_is_merged(text: str, seed: int) -> None:
    keys = scored(seed)
    assert loaded(keys).encode(text, add_special_tokens=False).ids == by_scores(text, keys)


def test_special_tokens_are_found_first_and_a_space_follows_them() -> None:
    tokenizer = loaded(scored())
    assert tokenizer.encode("</s>a<tool>a").tokens == ["<s>", "</s>", "▁a", "<tool>", "▁a"]
    assert tokenizer.decode(tokenizer.encode("a<tool>b</s>").ids) == "a<tool> b"


def test_a_file_may_refuse_the_space_and_the_beginning() -> None:
    tokenizer = loaded({**scored(), "add_space_prefix": False, "add_bos_token": False,
                        "add_eos_token": True})  # fmt: skip
    assert tokenizer.encode("ab").tokens == ["ab", "</s>"]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("llama-bpe", ["I", "'LL", "Ġpay", "Ġ", "123", "4", ".", "5", "ĊĊ", "ĠĠ", "Ġok"]),
        ("gpt-2", ["I", "'", "LL", "Ġpay", "Ġ1234", ".", "5", "ĊĊĠĠ", "Ġok"]),
        ("smollm", ["I", "'", "LL", "Ġpay", "Ġ", "1", "2", "3", "4", ".", "5", "ĊĊĠĠ", "Ġok"]),
        ("qwen2", ["I", "'LL", "Ġpay", "Ġ", "1", "2", "3", "4", ".", "5", "ĊĊ", "ĠĠ", "Ġok"]),
        ("default", ["I", "'", "LL", "Ġpay", "Ġ", "123", "4", ".", "5", "ĊĊĠĠ", "Ġok"]),
    ],
)
def test_texts_are_split_as_the_pre_tokenizer_says(pre: str, pieces: list[str]) -> None:
    before = loaded(byte_level(pre)).pre_tokenizer
    assert before is not None
    found = [piece for piece, _ in before.pre_tokenize_str("I'LL pay 1234.5\n\n   ok")]
    assert found == pieces


def test_an_id_that_no_token_has_is_none() -> None:
    tokenizer = loaded({**scored(), "bos_token_id": -1, "eos_token_id": True})
    assert tokenizer.encode("ab").tokens == ["▁ab"]
    assert vocabulary({**byte_level("qwen2"), "eos_token_id": -1}).end_ids[0] >= 0


def test_ends_are_those_of_the_file_and_those_of_every_chat() -> None:
    assert vocabulary(scored()).end_ids == [2]
    keys = byte_level("qwen2")
    keys["tokens"] = [*keys["tokens"], "<|im_end|>", "<|endoftext|>", "<|return|>", "<|call|>"]
    keys["token_type"] = [*keys["token_type"], 3, 3, 3, 3]
    names = [keys["tokens"][index] for index in vocabulary(keys).end_ids]
    assert names == ["<|end|>", "<|im_end|>", "<|endoftext|>", "<|return|>", "<|call|>"]


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="needs llama.cpp")
@pytest.mark.parametrize(
    "pre",
    [
        *("scores", "gemma", *sorted(_SPLITS.keys() - {"gpt2"}), *_OTHERS),
        *("llama-bpe", "refact", "dbrx"),  # SmolLM3's, Granite's and Phi-4's
    ],
)
def test_ids_are_those_of_llama_cpp(pre: str, tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    import check_tokenizer

    path = tmp_path / f"{pre}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    keys = {"scores": scored, "gemma": as_gemma}.get(pre, lambda: byte_level(pre))()
    add = {str: writer.add_string, int: writer.add_uint32, list: writer.add_array}
    for key, value in keys.items():
        {**add, bool: writer.add_bool}[type(value)](f"tokenizer.ggml.{key}", value)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_feed_forward_length(32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert read_header(path).metadata["tokenizer.ggml.model"] == keys["model"]
    assert check_tokenizer.compare(path, 500) == 0
