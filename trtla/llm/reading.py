"""Notes about the reading of a model's texts."""

from __future__ import annotations

from collections.abc import Iterator

from trtla.formats.gguf.folder import vocabulary_note
from trtla.llm.other_reading import other_reading
from trtla.llm.text import Tokenizer


def reading_notes(tokenizer: Tokenizer, *, ask: bool = False) -> Iterator[str]:
    """Yield notes about an open tokenizer: missing parts of its files, and differing readers.

    Args:
        ask: as in `other_reading`.
    """
    if note := vocabulary_note(tokenizer.files):
        yield note
    if other := other_reading(tokenizer, ask):
        yield (
            f"texts are split as tokenizer.json in {tokenizer.folder} says; transformers splits "
            f"some otherwise, as {other.reader}, such as {other.text!r}"
        )
    if problem := tokenizer.template_problem():
        yield f"{problem.message}; {problem.hint}"
