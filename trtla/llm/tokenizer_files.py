"""A folder's chat template without transformers, and bounds on the lengths of tokens.

The longest token bounds from below how many tokens a text has, before it is encoded.
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
    """Read the template that transformers uses, with the tokens in its tokenizer's config; None if
    there is none."""
    stored = stored_template(folder)
    return stored and ChatTemplate(stored[0], dict(named_tokens(config)))


def named_tokens(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the tokens of a tokenizer's config that chat templates may name, such as
    `bos_token`."""
    extra = config.get("extra_special_tokens")
    named = {name: token for name, token in config.items() if name.endswith("_token")}
    for name, token in {**named, **(extra if isinstance(extra, dict) else {})}.items():
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
"""Characters that may become one, for normalizers and pre-tokenizers that drop none."""


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """A bound on the text of one tokenizer's tokens."""

    longest: int | None
    """Most characters of a token; None: unbounded."""
    strips: bool
    """True if tokens may include all adjacent blanks."""

    def least(self, text: str) -> int:
        if self.longest is None:
            return 0
        size = sum(map(len, text.split())) if self.strips else len(text)
        return -(-size // self.longest)


def token_lengths(tokenizer: Any | None) -> TokenLengths:
    """Return the lengths of a `tokenizers.Tokenizer`; unbounded for None."""
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
    """Return how many characters may become one at most; None: any number, or they are dropped."""
    kind = step.get("type")
    if kind is None:
        return 1
    if kind == "Sequence":
        inside = [_shrinks(inner) for inner in _inside(step)]
        return None if None in inside else prod(filter(None, inside))
    if kind == "Replace":
        replaced = step["pattern"].get("String")
        return 1 if replaced and len(step["content"]) >= len(replaced) else None
    if kind in ("Split", "Punctuation"):
        return None if step["behavior"] == "Removed" else 1
    return _SHRINKS.get(kind)


def _spells_all(tokenizer: Any, names: dict[str, int], steps: list[dict[str, Any]]) -> bool:
    """Return True if every character has tokens, so that none is dropped or unknown."""
    from tokenizers.pre_tokenizers import ByteLevel

    if any(part.get("type") == "ByteLevel" for step in steps for part in (step, *_inside(step))):
        return names.keys() >= set(ByteLevel.alphabet())
    fallback = (f"<0x{byte:02X}>" for byte in range(256))
    return getattr(tokenizer.model, "byte_fallback", False) and names.keys() >= set(fallback)
