"""A grammar along the paths of one tree in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy import ndarray

Path = tuple[int, ...]
FORCED_MATCH, FEW_MATCH = 1 << 30, 3
"""Matches as which tokens count that are the only ones, or of few."""
MOST_ALLOWED = 4


@dataclass(frozen=True)
class PlainGrammar:
    """What a step's tree knows of its grammar."""

    forced: Sequence[Path] = ()
    """Paths with the tokens that have to follow them."""
    allowed: Mapping[Path, Sequence[int]] = field(default_factory=dict)
    """The tokens that may follow a path, in order."""

    @classmethod
    def of(cls, forced: Iterable[Sequence[int]], masks: Mapping[Path, ndarray]) -> PlainGrammar:
        bits = {
            path: np.unpackbits(mask.view(np.uint8), bitorder="little")
            for path, mask in masks.items()
        }
        allowed = {path: one.nonzero()[0].tolist() for path, one in bits.items()}
        return cls([tuple(chain) for chain in forced], allowed)

    def proposed(self, path: Path) -> list[tuple[int, int, int]]:
        """(token, match, tokens among which it was found) of what the grammar proposes there."""
        size = len(path)
        found = [
            (chain[size], FORCED_MATCH, 1)
            for chain in self.forced
            if len(chain) > size and chain[:size] == path
        ]
        few = self.allowed.get(path, ())
        if len(few) <= MOST_ALLOWED:
            match = FORCED_MATCH if len(few) == 1 else FEW_MATCH
            found += [(token, match, len(few)) for token in few]
        return found
