"""What is to be known of how a model's texts are read."""

from __future__ import annotations

from collections.abc import Iterator

from trtla.formats.gguf.folder import vocabulary_note
from trtla.llm.other_reading import other_reading
from trtla.llm.text import Tokenizer


def reading_notes(tokenizer: Tokenizer, *, ask: bool = False) -> Iterator[str]:
    """Notes of an open tokenizer: what its files lack, and who reads them otherwise.

    Args:
        ask: as of `other_reading`.
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
