"""A folder's chat template without transformers, and how long its tokenizer's tokens are.

How many characters one token can stand for says which texts are too long to be encoded at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from trtla.formats.chat_templates import stored_template
from trtla.formats.model_folder import ModelFolder
from trtla.formats.special_tokens import token_name
from trtla.llm.templates import ChatTemplate


def read_chat_template(folder: ModelFolder, config: dict[str, Any]) -> ChatTemplate | None:
    """The template that transformers takes from a folder, with the tokens that its tokenizer's
    config names; None: there is none."""
    found = stored_template(folder)
    return found and ChatTemplate(found[0], dict(named_tokens(config)))


def named_tokens(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The tokens of a tokenizer's config that chat templates may name, such as `bos_token`."""
    extra = config.get("extra_special_tokens")
    own = {name: token for name, token in config.items() if name.endswith("_token")}
    for name, token in {**own, **(extra if isinstance(extra, dict) else {})}.items():
        if (text := token_name(token)) is not None:
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
    """The lengths of the tokens of a `tokenizers.Tokenizer`; None: nothing is known of it."""
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
