"""A grammar along the paths of one tree in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy import ndarray

from trtla.runtime.tree.library import Usual

Path = tuple[int, ...]
FORCED_MATCH, FEW_MATCH = 1 << 30, 3
"""Matches as which tokens count that are the only ones, or of few."""
MOST_ALLOWED, MOST_USUAL = 4, 15


@dataclass(frozen=True)
class PlainGrammar:
    """What a step's tree knows of its grammar."""

    forced: Sequence[Path] = ()
    """Paths with the tokens that have to follow them."""
    allowed: Mapping[Path, Sequence[int]] = field(default_factory=dict)
    """The tokens that may follow a path, in order."""
    usual: Mapping[Path, Usual] = field(default_factory=dict)
    """What has mostly followed the same mask as that of a path."""

    @classmethod
    def of(
        cls,
        forced: Iterable[Sequence[int]],
        masks: Mapping[Path, ndarray],
        usual: Mapping[Path, Usual],
    ) -> PlainGrammar:
        bits = {
            path: np.unpackbits(mask.view(np.uint8), bitorder="little")
            for path, mask in masks.items()
        }
        allowed = {path: one.nonzero()[0].tolist() for path, one in bits.items()}
        return cls([tuple(chain) for chain in forced], allowed, usual)

    def proposed(self, path: Path) -> list[tuple[int, int, int, int]]:
        """(token, match, times it was found, times any was) of what the grammar proposes there."""
        size = len(path)
        found = [
            (chain[size], FORCED_MATCH, 1, 1)
            for chain in self.forced
            if len(chain) > size and chain[:size] == path
        ]
        if path in self.allowed and path in self.usual:
            token, agreeing, all_ = self.usual[path]
            found.append((token, max(FEW_MATCH + 1, min(agreeing, MOST_USUAL)), agreeing, all_))
        few = self.allowed.get(path, ())
        if len(few) <= MOST_ALLOWED:
            match = FORCED_MATCH if len(few) == 1 else FEW_MATCH
            found += [(token, match, 1, len(few)) for token in few]
        return found
