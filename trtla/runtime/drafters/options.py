"""How lookahead drafts beyond TensorRT-LLM's way: one field a choice, none changes a text.

Torch-free: the command line reads it. What each choice brings is measured in docs/algorithm.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from trtla.arguments import whole, wrong

Cells = Literal["greedy", "drawn"]
"""What the lookahead window is made of: see `DraftOptions.cells`."""

_MOST_CONTEXT = 16


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """Choices of the lookahead drafter; the defaults are what TensorRT-LLM does.

    Raises:
        UsageError: a value is out of its range.
    """

    context: int = 1
    """Most tokens up to the input that candidates are looked up by, the longest match first: 1 is
    the pool alone, from 2 on the whole prompt and output are searched (prompt lookup)."""
    merge: bool = False
    """Feed what candidates begin with alike once."""
    accept_window: bool = False
    """Accept tokens of the window like those of candidates."""
    keep_pool: int = 0
    """N-grams of earlier requests' texts that are kept as further candidates; 0 keeps none."""
    cells: Cells = "greedy"
    """What a sampled request's window is made of: the argmax after each cell, or the token that is
    `drawn` there, with the noise of that position."""

    def __post_init__(self) -> None:
        longest = f"from 1 to {_MOST_CONTEXT}"
        whole("draft context", self.context, longest, 1, _MOST_CONTEXT)
        whole("draft keep_pool", self.keep_pool, "at least 0 (0 keeps none)", 0)
        if self.cells not in ("greedy", "drawn"):
            raise wrong("draft cells", self.cells, "greedy or drawn")

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of the options that are not TensorRT-LLM's."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != f.default)
