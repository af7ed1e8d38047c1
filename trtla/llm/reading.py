"""Notes about the reading of a model's texts."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from trtla.formats.gguf.folder import vocabulary_note
from trtla.llm.other_reading import other_reading
from trtla.llm.text import Tokenizer

_log = logging.getLogger(__name__)


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


def template_note(tokenizer: Tokenizer) -> str | None:
    """Return a note about a chat template that takes no messages; None: it does, or there is none.

    Jinja is imported for it: only those who will be asked in chats check their template.
    """
    problem = tokenizer.template_problem()
    return None if problem is None else f"{problem.message}; {problem.hint}"


def log_template_note(tokenizer: Tokenizer) -> None:
    """Log `template_note`, if there is one."""
    if note := template_note(tokenizer):
        _log.warning("note: %s", note)
