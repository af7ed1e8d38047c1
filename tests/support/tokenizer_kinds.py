"""Small tokenizers of the kinds that models have, in folders and as vocabularies of GGUF files."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import gguf
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests.support.gguf_models import scored, vocabulary
from trtla.formats.gguf.tokenizer import _GPT2, _LLAMA3, _QWEN2

NAMES = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_TRAINING = [
    *("the cat sat on the mat", "Steps:\n\n1. Mix 12 eggs\n\n2. Bake 345\n", "I'll say hello"),
    *("def add(a, b):\n    return a + b\n", "CAN'T print(x)!!!\n", "café naïve 日本語"),
] * 20
TEXTS = [
    *("", "a", " a", "a  b", "Mix 12 eggs, 345", "1. One\n\n2. Two\n", "I'll CAN'T", "abc ab 12"),
    *("cafe\u0301 é ﬁ", "日本語 🦙", "a<s>a</s> a", "x<|im_end|> y<|endoftext|>", "▁a ▁"),
    *("def f(a):\n\treturn 1.5\r\n", "\x00\u200d", "   \n \n  "),
]
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,:()\n"


def _byte_level(*splits: str) -> Tokenizer:
    """As GPT-2, or with the regular expressions of another model in front."""
    made = Tokenizer(models.BPE())
    steps = [pre_tokenizers.Split(Regex(split), "isolated") for split in splits]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splits)
    made.pre_tokenizer = pre_tokenizers.Sequence([*steps, bytes_])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=NAMES,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(_TRAINING, trainer)
    return made


def _llama_3() -> Tokenizer:
    """A beginning stands in front of every text."""
    made = _byte_level(_LLAMA3)
    begin = processors.TemplateProcessing(f"{NAMES[0]} $A", special_tokens=[(NAMES[0], 0)])
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), begin])
    return made


def _sentencepiece() -> Tokenizer:
    """As Llama 2's: the vocabulary of a GGUF file, in the form that its folder has."""
    parts = vocabulary(scored()).tokenizer()
    made = Tokenizer.from_str(json.dumps({**parts, "post_processor": None}))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return made


def _unigram() -> Tokenizer:
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        "▁",
        *"abcdefghijklmnopqrstuvwxyz0123456789.,:()\n",
        "▁a",
        "ab",
    ]
    scores = [0.0, 0.0, 0.0, *(-float(n) for n in range(len(pieces) - 3))]
    made = Tokenizer(models.Unigram(list(zip(pieces, scores, strict=True)), 0, False))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([AddedToken(name, special=True) for name in pieces[:3]])
    return made


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": lambda: _byte_level(_GPT2),
    "digits": lambda: _byte_level(r"\p{N}", _GPT2),
    "llama 3": _llama_3,
    "qwen 2": lambda: _byte_level(_QWEN2),
    "sentencepiece": _sentencepiece,
    "unigram": _unigram,
}
PRE = {"byte level": "gpt-2", "digits": "smollm", "llama 3": "llama-bpe", "qwen 2": "qwen2"}


@cache
def _as_json(kind: str) -> str:
    return str(KINDS[kind]().to_str())


def save_kind(kind: str, folder: Path, **config: Any) -> None:
    """Write tokenizer.json and its config, which has the names of the beginning and the end."""
    (folder / "tokenizer.json").write_text(_as_json(kind))
    ends = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    if kind in PRE:
        ends = dict.fromkeys(("bos_token", "eos_token"), NAMES[0])
    (folder / "tokenizer_config.json").write_text(json.dumps({**ends, **config}))


def gguf_keys(kind: str, folder: Path) -> dict[str, Any]:
    """The keys that llama.cpp's converter writes of a folder of `save_kind`."""
    read = gguf.SpecialVocab(folder, load_merges=True)
    keys = {f"{role}_token_id": token for role, token in read.special_token_ids.items()}
    keys |= {f"add_{role}_token": added for role, added in read.add_special_token.items()}
    if kind not in PRE:
        return {**scored(), **keys}
    data = json.loads(_as_json(kind))
    names = sorted(data["model"]["vocab"].items(), key=itemgetter(1))
    special = {one["content"] for one in data["added_tokens"]}
    types = [3 if name in special else 1 for name, _ in names]
    own = {"model": "gpt2", "pre": PRE[kind], "tokens": [name for name, _ in names]}
    return {**own, "token_type": types, "merges": read.merges, **keys}
