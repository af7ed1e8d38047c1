"""A folder's tokenizer and chat template without transformers, and how long its tokens are.

How many characters one token can stand for says which texts are too long to be encoded at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from trtla.files import parse_json
from trtla.llm.templates import ChatTemplate

_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes in transformers that add nothing to tokenizer.json."""

_CHANGING = ("add_bos_token", "add_eos_token", "add_prefix_space", "auto_map", "fix_mistral_regex",
             "fast_tokenizer_files", "split_special_tokens")  # fmt: skip
"""Settings with which transformers changes what tokenizer.json says."""


def open_tokenizer_json(folder: Path) -> Any | None:
    """The `tokenizers.Tokenizer` of a folder, or None when transformers has to make it."""
    try:
        config = read_tokenizer_config(folder)
        read_chat_template(folder, config)
        if config.get("tokenizer_class") not in _GENERIC or any(map(config.get, _CHANGING)):
            return None
        tokenizer = _load(folder / "tokenizer.json")
        return tokenizer if tokenizer is not None and _says_it_all(config, tokenizer) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _says_it_all(config: dict[str, Any], tokenizer: Any) -> bool:
    from tokenizers.processors import ByteLevel

    frames = tokenizer.post_processor
    if "add_bos_token" in config and not isinstance(frames, ByteLevel | None):
        return False
    added = tokenizer.get_added_tokens_decoder().values()
    special = {token.content for token in added if token.special}
    return special.issuperset(_special_tokens(config))


def _special_tokens(config: dict[str, Any]) -> Iterator[str]:
    extra = [*config.get("additional_special_tokens", ()), *config.get("extra_special_tokens", ())]
    named = [value for name, value in config.items() if name.endswith("_token")]
    added = [t for t in config.get("added_tokens_decoder", {}).values() if t.get("special")]
    for token in (*extra, *named, *added):
        if token is not None and not isinstance(token, bool):
            yield token if isinstance(token, str) else token["content"]


def _load(path: Path) -> Any | None:
    """Read the file once: it is parsed in Rust, many times faster than by Python's json."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(path.read_bytes())
    except Exception:  # tokenizers raises nothing narrower; transformers will say what is wrong
        return None
    # As in transformers: a whole text, whatever the file was saved with.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_chat_template(folder: Path, config: dict[str, Any]) -> ChatTemplate | None:
    """The template that transformers takes from a folder; None: there is none."""
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {one["name"]: one["template"] for one in template}
    files = dict(_template_files(folder))
    if files:
        template = files["default"] if files.keys() == {"default"} else files
    return ChatTemplate(template, dict(_named_tokens(config))) if template else None


def _template_files(folder: Path) -> Iterator[tuple[str, str]]:
    """Templates in files of their own, which go before those in the config."""
    default = folder / "chat_template.jinja"
    if default.is_file():
        yield "default", default.read_text(encoding="utf-8")
    for path in (folder / "additional_chat_templates").glob("*.jinja"):
        yield path.stem, path.read_text(encoding="utf-8")


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, with the older special_tokens_map.json where transformers reads it."""
    config: dict[str, Any] = parse_json(
        (folder / "tokenizer_config.json").read_text(encoding="utf-8")
    )
    older = folder / "special_tokens_map.json"
    if "added_tokens_decoder" not in config and older.is_file():
        config |= parse_json(older.read_text(encoding="utf-8"))
    return config


def _named_tokens(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    extra = config.get("extra_special_tokens")
    own = {name: token for name, token in config.items() if name.endswith("_token")}
    for name, token in {**own, **(extra if isinstance(extra, dict) else {})}.items():
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            yield name, text


_SHRINKS = {
    "ByteLevel": 1,
    "Digits": 1,
    "Lowercase": 1,
    "Metaspace": 1,
    "NFC": 4,  # no character has more than four in its canonical decomposition
    "NFD": 1,
    "NFKC": 4,
    "NFKD": 1,
    "Prepend": 1,
    "UnicodeScripts": 1,
}
"""Normalizers and pre-tokenizers that drop no character: how many may become one."""


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """A bound on what the tokens of one tokenizer stand for."""

    longest: int | None
    """Most characters of a token; None: there may be any number."""
    strips: bool
    """Whether tokens may take all blanks beside them."""

    def least(self, text: str) -> int:
        if self.longest is None:
            return 0
        size = sum(map(len, text.split())) if self.strips else len(text)
        return -(-size // self.longest)


def token_lengths(tokenizer: Any | None) -> TokenLengths:
    """Of a `tokenizers.Tokenizer`; None: nothing is known of it."""
    if tokenizer is None:
        return TokenLengths(None, False)
    names = tokenizer.get_vocab()
    steps = [_state(tokenizer.normalizer), _state(tokenizer.pre_tokenizer)]
    shrinks = [_shrinks(step) for step in steps]
    if None in shrinks or not _spells_all(tokenizer, names, steps):
        return TokenLengths(None, False)
    added = tokenizer.get_added_tokens_decoder().values()
    strips = any(token.lstrip or token.rstrip for token in added)
    return TokenLengths(prod(filter(None, shrinks)) * max(map(len, names)), strips)


def _state(step: Any | None) -> dict[str, Any]:
    return {} if step is None else dict(json.loads(step.__getstate__()))


def _inside(step: dict[str, Any]) -> list[dict[str, Any]]:
    return [*step.get("normalizers", ()), *step.get("pretokenizers", ())]


def _shrinks(step: dict[str, Any]) -> int | None:
    """How many characters may become one at most; None: any number, or they may be dropped."""
    kind = step.get("type")
    if kind is None:
        return 1
    if kind == "Sequence":
        inside = [_shrinks(one) for one in _inside(step)]
        return None if None in inside else prod(filter(None, inside))
    if kind == "Replace":
        replaced = step["pattern"].get("String")
        return 1 if replaced and len(step["content"]) >= len(replaced) else None
    if kind in ("Split", "Punctuation"):
        return None if step["behavior"] == "Removed" else 1
    return _SHRINKS.get(kind)


def _spells_all(tokenizer: Any, names: dict[str, int], steps: list[dict[str, Any]]) -> bool:
    """Whether there are tokens for every character, so that none is dropped and none is unknown."""
    from tokenizers.pre_tokenizers import ByteLevel

    if any(one.get("type") == "ByteLevel" for step in steps for one in (step, *_inside(step))):
        return names.keys() >= set(ByteLevel.alphabet())
    fallback = (f"<0x{byte:02X}>" for byte in range(256))
    return getattr(tokenizer.model, "byte_fallback", False) and names.keys() >= set(fallback)
