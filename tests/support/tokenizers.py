"""Small tokenizers of the kinds that Llama models have, made here."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

_WORDS = ["▁", "▁a", "▁the", "a", "b", "c", "ab", "▁ab", "日", "本", "é", "end", ".", "▁end"]
_SPECIAL = ("<s>", "</s>", "<unk>")


def byte_fallback() -> Tokenizer:
    """As Llama 2 and Mistral have it: what is no word, a newline too, is one token a byte."""
    names = [*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *_WORDS]
    vocabulary = {name: number for number, name in enumerate(names)}
    model = models.BPE(
        vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in _SPECIAL])
    return tokenizer


def byte_level() -> Tokenizer:
    """As GPT-2 and Llama 3 have it: pieces of bytes, with special and added tokens among them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "a"), ("a", "b"), ("Ċ", "Ċ"), (":", "Ċ"), ("ð", "Ł"), ("Ħ", "Ļ"), ("Ã", "©")]
    names = [*letters, *("".join(pair) for pair in merges)]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool é>"), AddedToken("\n    \n"), AddedToken("日本")])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write it into a model's folder."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if tokenizer.token_to_id("<s>") is not None:
        config |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def save_byte_tokenizer(folder: Path, *, encoder_decoder: bool = False) -> None:
    """Ids 0 to 255 are bytes; 256 and 257 begin and end a text, or end one and pad."""
    special = ("</s>", "<pad>") if encoder_decoder else ("<s>", "</s>")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(name, special=True) for name in special])
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    if encoder_decoder:
        ending = [("</s>", inner.token_to_id("</s>"))]
        inner.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=ending)
        names = {"eos_token": "</s>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=inner, **names).save_pretrained(folder)
