"""A tokenizer straight from tokenizer.json, without transformers, whose import costs 0.7 s.

Only where nothing beside that file says how to tokenise; other folders are left to transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtla.json_text import parse_json

_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes in transformers that add nothing to tokenizer.json."""

_CHANGING = ("add_bos_token", "add_eos_token", "add_prefix_space", "auto_map", "fix_mistral_regex")
"""Settings with which transformers changes what tokenizer.json says."""


def open_tokenizer_json(folder: Path) -> Any | None:
    """The `tokenizers.Tokenizer` of a folder, or None when transformers has to make it."""
    try:
        config = parse_json((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        if config.get("tokenizer_class") not in _GENERIC or any(map(config.get, _CHANGING)):
            return None
        tokenizer = _load(folder / "tokenizer.json")
        return tokenizer if tokenizer is not None and _says_it_all(config, tokenizer) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _says_it_all(config: dict[str, Any], tokenizer: Any) -> bool:
    if "add_bos_token" in config and _frames_texts(tokenizer.post_processor):
        return False
    added = tokenizer.get_added_tokens_decoder().values()
    special = {token.content for token in added if token.special}
    return special.issuperset(_special_tokens(config))


def _frames_texts(post_processor: Any) -> bool:
    """Whether special tokens may be put around a text."""
    from tokenizers.processors import ByteLevel

    return post_processor is not None and not isinstance(post_processor, ByteLevel)


def _special_tokens(config: dict[str, Any]) -> Iterator[str]:
    """Every token that the configuration calls special."""
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
