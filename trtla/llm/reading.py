"""What is to be known of how a model's texts are read: differences, and what files lack."""

from __future__ import annotations

from collections.abc import Iterator

from trtla.errors import TrtlaError
from trtla.formats.gguf.folder import vocabulary_note
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


def reading_notes(tokenizer: Tokenizer) -> Iterator[str | None]:
    """Notes of a tokenizer that has been opened; None where there is nothing to say."""
    yield vocabulary_note(tokenizer.folder)
    yield _other_reading(tokenizer)
    if problem := tokenizer.template_problem():
        yield f"{problem.message}; {problem.hint}"


def _other_reading(tokenizer: Tokenizer) -> str | None:
    """That transformers splits texts otherwise than the folder's tokenizer.json.

    It is asked where the folder names anything but its class for what is in the file.
    """
    config = tokenizer.config
    plain = config.get("tokenizer_class") in _GENERIC and not any(map(config.get, _CHANGING))
    if plain or not tokenizer.is_of_file:
        return None
    try:
        theirs = load_tokenizer(tokenizer.folder)
        text = next(
            one for one in _samples(tokenizer) if _ids(theirs, one) != tokenizer.encode(one)
        )
    except (StopIteration, ImportError, TrtlaError):
        return None  # it reads alike, or not at all
    return (
        f"texts are split as tokenizer.json in {tokenizer.folder} says; transformers splits some "
        f"otherwise, as {type(theirs).__name__}, such as {text!r}"
    )


def _samples(tokenizer: Tokenizer) -> Iterator[str]:
    yield from _SAMPLES
    yield from (f"a{name}b c" for name in tokenizer.special_names[:_NAMED])


def _ids(theirs: object, text: str) -> tuple[int, ...]:
    return tuple(theirs.encode(text, verbose=False))  # type: ignore[attr-defined]
