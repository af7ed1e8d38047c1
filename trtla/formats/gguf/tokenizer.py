"""A GGUF file's vocabulary as tokenizer files that give llama.cpp's ids.

Rules are those of llama.cpp's src/llama-vocab.cpp. `gpt2` vocabularies are byte-level BPE: texts
between special tokens are split by the regular expressions of a named pre-tokenizer. `llama` ones
are SentencePiece's BPE: the pair whose merged token has the highest score goes first, and a
character that is no token is spelt in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trtla.errors import UsageError, named

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Types of tokens that are found in a text before anything else."""
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?(?:{_UPPER}*{_LOWER}+|{_UPPER}+{_LOWER}*)"
_SLASH_REST = _REST.replace(r"[\r\n]*", r"[\r\n/]*")
_SPLITS: dict[str, tuple[str, ...]] = {
    "llama3": (_LLAMA3,),
    "gpt2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "qwen2": (_QWEN2,),
    "deepseek-coder": (
        r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u0800-\u9fa5\uac00-\ud7ff]+", r"\p{N}",
    ),
    "tekken": (rf"{_CASED}|\p{{N}}|{_SLASH_REST}",),
    "gpt-4o": (rf"{_CASED}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_SLASH_REST}",),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}  # fmt: skip
_SAME_SPLITS = {
    "llama3": ("llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
               "dbrx", "smaug-bpe", "chatglm-bpe", "glm4"),
    "gpt2": ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "gigachat", "mellum", "exaone4",
             "a.x-4.0", "granite-docling"),
    "smollm": ("starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    "qwen2": ("deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan"),
    "gpt-4o": ("llama4", "kanana2"),
}  # fmt: skip
"""Other names of the same regular expressions."""
_WITH_BOS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0",
             "lfm2", "tekken")  # fmt: skip
"""Pre-tokenizers that put a beginning in front unless the file forbids it; their words may be
tokens as they are, without merges."""
_END_TEXTS = (
    "</s>", "<eos>", "[EOS]", "<EOT>", "_<EOT>", "[EOT]", "<|eot_id|>", "<|eom_id|>", "<|im_end|>",
    "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|return|>", "<|call|>", "<end_of_turn>",
    "<end_of_utterance>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
)  # fmt: skip
"""Tokens that end an answer in any model that has them."""


@dataclass(frozen=True)
class Vocabulary:
    """The keys `tokenizer.` of a file."""

    path: Path
    metadata: dict[str, Any]

    def files(self) -> dict[str, Any]:
        """The names and JSON contents of the tokenizer files of a model folder."""
        roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        named = {role: self._id(key) for role, key in roles.items()}
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 10**18,
        }
        config |= {f"{role}_token": self.tokens[i] for role, i in named.items() if i is not None}
        return {"tokenizer.json": self.tokenizer(), "tokenizer_config.json": config}

    def tokenizer(self) -> dict[str, Any]:
        kind = self.get("model")
        if kind == "gpt2":
            parts = self._byte_level()
        elif kind == "llama":
            parts = self._sentencepiece()
        else:
            raise UsageError(
                f"{self.path}: tokenizer {kind!r} is not supported",
                "trtla reads tokenizers of the types gpt2 and llama",
            )
        first = (_UNKNOWN, _CONTROL, _USER_DEFINED)
        kinds = enumerate(self.types or [1] * len(self.tokens))
        added = [self._added(i) for i, kind in kinds if kind in first or i in self.end_ids]
        frame = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
        return {**frame, **parts, "post_processor": self._post_processor()}

    @cached_property
    def tokens(self) -> list[str]:
        tokens = self.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens):
            raise UsageError(
                f"{self.path} has no vocabulary",
                f"give the tokenizer with {named('tokenizer_dir')}",
            )
        tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
        if len(set(tokens)) != len(tokens):
            raise UsageError(f"{self.path} has a token twice", "copy the file again")
        return tokens

    @cached_property
    def types(self) -> list[int]:
        """The type of each token; empty if the file has none, for normal tokens."""
        types = self.get("token_type")
        return types if isinstance(types, list) and len(types) == len(self.tokens) else []

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    @property
    def end_ids(self) -> list[int]:
        """All tokens that end a text: those that the file names, and those that always do."""
        return sorted(self.ends)

    @cached_property
    def ends(self) -> dict[int, str]:
        """The tokens that end a text, and the source of each."""
        texts = {index for index, token in enumerate(self.tokens) if token in _END_TEXTS}
        if {"<|return|>", "<|call|>"} <= {self.tokens[index] for index in texts}:
            texts = {index for index in texts if self.tokens[index] != "<|end|>"}
        sources = dict.fromkeys(texts, "a token of this name ends every answer")
        named = {key: self._id(key) for key in ("eom", "eot", "eos")}
        return sources | {i: self._source(key) for key, i in named.items() if i is not None}

    def sources(self) -> dict[str, Any]:
        """Sources of the special tokens, in the words of `inspect`."""
        return {
            "ends": self.ends,
            "bos_token": self._source("bos"),
            "eos_token": self._source("eos"),
            "tokenizer.json": self._stored("add_bos_token"),
            "chat_template": "tokenizer.chat_template",
        }

    def _source(self, role: str) -> str:
        return self._stored(f"{role}_token_id")

    def _stored(self, key: str) -> str:
        name = f"tokenizer.ggml.{key}"
        return name if name in self.metadata else f"llama.cpp's default for {name}"

    def note(self) -> str | None:
        """A sentence about a missing pre-tokenizer, which splits texts; None: it is there."""
        if self.get("model") != "gpt2" or self.get("pre"):
            return None
        return (
            f"{self.path.name} has no tokenizer.ggml.pre: its texts are split by the pre-tokenizer "
            "'default', hardly ever the model's own; convert the model again with a current "
            f"llama.cpp, or give its tokenizer with {named('tokenizer_dir')}"
        )

    def _id(self, key: str) -> int | None:
        default = {"bos": 1, "eos": 2, "unknown": 0} if self.get("model") == "llama" else {}
        value = self.get(f"{key}_token_id", default.get(key))
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return value if 0 <= value < len(self.tokens) else None

    def _added(self, index: int) -> dict[str, Any]:
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        shown = bool(self.types) and self.types[index] == _USER_DEFINED
        special = not shown or index in self.end_ids
        return {"id": index, "content": self.tokens[index], **plain, "special": special}

    def _post_processor(self) -> dict[str, Any]:
        """Put beginning and end around a text, if the file has them added."""
        default = self.get("model") == "llama" or self.get("pre") in _WITH_BOS
        bos = self._id("bos") if self.get("add_bos_token", default) else None
        eos = self._id("eos") if self.get("add_eos_token", False) else None
        frames = {
            self.tokens[i]: {"id": self.tokens[i], "ids": [i], "tokens": [self.tokens[i]]}
            for i in (bos, eos)
            if i is not None
        }
        first, last = (
            [] if i is None else [{"SpecialToken": {"id": self.tokens[i], "type_id": 0}}]
            for i in (bos, eos)
        )
        a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
        return {
            "type": "TemplateProcessing",
            "single": [*first, a, *last],
            "pair": [*first, a, *last, *first, b, *last],
            "special_tokens": frames,
        }

    def _byte_level(self) -> dict[str, Any]:
        vocab = {token: index for index, token in enumerate(self.tokens)}
        stored = self.get("merges")
        if not isinstance(stored, list):
            raise UsageError(f"{self.path} has no merges of its tokens", "copy the file again")
        pairs = (_halves(str(merge)) for merge in stored)
        merges = [[a, b] for a, b in pairs if a in vocab and b in vocab and a + b in vocab]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        splits = [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
            for regex in self._splits()
        ]
        spelled = {**byte_level, "use_regex": False}
        return {
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, spelled]},
            "decoder": {**byte_level, "use_regex": True},
            "model": {
                **_bpe(vocab),
                "merges": merges,
                "ignore_merges": self.get("pre") in _WITH_BOS,
            },
        }

    def _splits(self) -> tuple[str, ...]:
        pre = self.get("pre") or "default"
        name = next((name for name, aliases in _SAME_SPLITS.items() if pre in aliases), pre)
        if not isinstance(name, str) or name not in _SPLITS:
            raise UsageError(
                f"{self.path}: pre-tokenizer {pre!r} is not supported",
                f"give the tokenizer of the original model with {named('tokenizer_dir')}",
            )
        return _SPLITS[name]

    def _sentencepiece(self) -> dict[str, Any]:
        spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        prefix = {"type": "Prepend", "prepend": "▁"}
        prefixed = self.get("add_space_prefix", True)
        unspaced = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
        strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        decoders = [unspaced, {"type": "ByteFallback"}, {"type": "Fuse"}]
        vocab = {token: index for index, token in enumerate(self.tokens)}
        return {
            "normalizer": {"type": "Sequence", "normalizers": [prefix, spaces][not prefixed :]},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": [*decoders, *[strip][: int(prefixed)]]},
            "model": {
                **_bpe(vocab),
                "unk_token": self.tokens[self._id("unknown") or 0],
                "fuse_unk": True,
                "byte_fallback": True,
                "merges": self._merges(vocab),
            },
        }

    def _merges(self, vocab: dict[str, int]) -> list[list[str]]:
        """Every pair of tokens that makes a token, the highest score first.

        As in SentencePiece's vocabularies, every letter of a token has to be a token itself.
        """
        scores = self.get("scores")
        known = isinstance(scores, list) and len(scores) == len(self.tokens)
        if not known or not all(isinstance(score, float) for score in scores):
            raise UsageError(f"{self.path} has no scores of its tokens", "copy the file again")
        ranked, sizes = [], {len(token) for token in vocab}
        for token, index in vocab.items():
            for cut in range(1, len(token)):
                if cut not in sizes or len(token) - cut not in sizes:
                    continue  # a token of a megabyte is not worth a million copies
                first, second = token[:cut], token[cut:]
                if first in vocab and second in vocab:
                    ranked.append((-scores[index], vocab[first], vocab[second], first, second))
        ranked.sort()
        return [[first, second] for *_, first, second in ranked]


def _bpe(vocab: dict[str, int]) -> dict[str, Any]:
    nothing = dict.fromkeys(
        ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    )
    return {"type": "BPE", **nothing, "fuse_unk": False, "byte_fallback": False, "vocab": vocab}


def _halves(merge: str) -> tuple[str, str]:
    """The two sides of a merge; the first one may begin with a space."""
    at = merge.find(" ", 1)
    return (merge[:at], merge[at + 1 :]) if at > 0 else (merge, "")
