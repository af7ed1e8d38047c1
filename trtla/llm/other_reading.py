"""A comparison of transformers' tokenizer with a folder's tokenizer.json.

They differ if transformers builds a tokenizer of the class that the folder names. The comparison
takes seconds and PyTorch, so only commands that inspect a model run it; the result is cached.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trtla.errors import TrtlaError
from trtla.files import user_cache, write_whole
from trtla.formats.model_folder import ModelFolder
from trtla.formats.transformers_load import load_tokenizer
from trtla.llm.text import Tokenizer

_SAMPLES = (
    "Hello world",
    " two  spaces   three",
    "Mix 12 eggs, 1234567.89",
    "I'll CAN'T we're o'clock",
    "1. One\n\n2. Two\n\n\n\tx\r\n  y ",
    "cafe\u0301 caf\u00e9 \ufb01x \uff21",
    "\u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 \U0001f999",
    "def add(a, b):\n    return a + b\n",
)
"""Texts that tokenizers split in different ways."""
_NAMED = 8  # special tokens that are tried between words
_CHANGING = ("add_prefix_space", "auto_map", "fast_tokenizer_files", "fix_mistral_regex")
"""Settings by which a class of transformers overrides tokenizer.json."""
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of transformers that add nothing to tokenizer.json."""
_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json")
"""Files that the result depends on."""


@dataclass(frozen=True, slots=True)
class OtherReading:
    """A text that transformers splits differently, and the class that does."""

    reader: str
    text: str


def other_reading(tokenizer: Tokenizer, ask: bool) -> OtherReading | None:
    """Compare with transformers' tokenizer; None: equal, not comparable, or unknown.

    Args:
        ask: load transformers if the folder's class may differ and no result is cached for these
            files; if False, only a cached result counts.
    """
    config = tokenizer.config
    plain = config.get("tokenizer_class") in _GENERIC and not any(map(config.get, _CHANGING))
    if plain or not tokenizer.is_of_file:
        return None
    try:
        cache = _kept(tokenizer.folder)
        known = ModelFolder(cache.parent).object(cache.name)
        if not known:
            if not ask:
                return None
            known = _compared(tokenizer)
            with suppress(OSError):
                cache.parent.mkdir(parents=True, exist_ok=True)
                write_whole(cache, json.dumps(known))
        return OtherReading(known["reader"], known["text"]) if known["text"] else None
    except (ImportError, PackageNotFoundError, TrtlaError, OSError, KeyError):
        return None


def _kept(folder: Path) -> Path:
    """Return the path of the result for these files and this version of transformers."""
    digest = hashlib.sha256(version("transformers").encode())
    for path in (folder / name for name in _FILES):
        digest.update(hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest())
    return user_cache() / "readings" / f"{digest.hexdigest()[:32]}.json"


def _compared(tokenizer: Tokenizer) -> dict[str, str]:
    theirs = load_tokenizer(tokenizer.folder)
    for text in _samples(tokenizer):
        if tuple(theirs.encode(text, verbose=False)) != tokenizer.encode(text):
            return asdict(OtherReading(type(theirs).__name__, text))
    return asdict(OtherReading(type(theirs).__name__, ""))


def _samples(tokenizer: Tokenizer) -> Iterator[str]:
    yield from _SAMPLES
    yield from (f"a{name}b c" for name in tokenizer.special_names[:_NAMED])
