"""Whether transformers splits texts otherwise than a folder's tokenizer.json.

It does where it makes a tokenizer of the class that the folder names. Asking it takes seconds and
PyTorch, so only who looks into a model asks; the answer is kept in the user's cache.
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
"""Settings with which a class of transformers changes what tokenizer.json says."""
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of transformers that add nothing to tokenizer.json."""
_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json")
"""What the answer depends on."""


@dataclass(frozen=True, slots=True)
class OtherReading:
    """A text that transformers splits otherwise, and the class that does."""

    reader: str
    text: str


def other_reading(tokenizer: Tokenizer, ask: bool) -> OtherReading | None:
    """How transformers reads the folder otherwise; None: alike, or not at all, or it is not known.

    Args:
        ask: load transformers where the folder names anything but its class for what is in the
            file, unless it has answered for these files; else only that answer counts.
    """
    config = tokenizer.config
    plain = config.get("tokenizer_class") in _GENERIC and not any(map(config.get, _CHANGING))
    if plain or not tokenizer.is_of_file:
        return None
    try:
        kept = _kept(tokenizer.folder)
        known = ModelFolder(kept.parent).object(kept.name)
        if not known:
            if not ask:
                return None
            known = _asked(tokenizer)
            with suppress(OSError):
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_whole(kept, json.dumps(known))
        return OtherReading(known["reader"], known["text"]) if known["text"] else None
    except (ImportError, PackageNotFoundError, TrtlaError, OSError, KeyError):
        return None


def _kept(folder: Path) -> Path:
    """Where the answer for these very files and this transformers lies."""
    found = hashlib.sha256(version("transformers").encode())
    for path in (folder / name for name in _FILES):
        found.update(hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest())
    return user_cache() / "readings" / f"{found.hexdigest()[:32]}.json"


def _asked(tokenizer: Tokenizer) -> dict[str, str]:
    theirs = load_tokenizer(tokenizer.folder)
    for text in _samples(tokenizer):
        if tuple(theirs.encode(text, verbose=False)) != tokenizer.encode(text):
            return asdict(OtherReading(type(theirs).__name__, text))
    return asdict(OtherReading(type(theirs).__name__, ""))


def _samples(tokenizer: Tokenizer) -> Iterator[str]:
    yield from _SAMPLES
    yield from (f"a{name}b c" for name in tokenizer.special_names[:_NAMED])
