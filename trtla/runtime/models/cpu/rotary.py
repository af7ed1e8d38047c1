"""Cosines and sines of the compiled forward: a table by position, and rows of longer texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from trtla.formats.config import CheckpointConfig
from trtla.runtime.models.rotary import Rotary
from trtla.runtime.sequence import Feed


class RotaryTable:
    """Where the forward finds each fed token's cosine and sine."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._rotary = Rotary(config, torch.float32, torch.device("cpu"))
        self._trained = config.max_position_embeddings if config.rope_type == "dynamic" else None
        self._cosine, self._sine = self._table(0)
        self._beyond = lru_cache(maxsize=4096)(self._row)

    def _table(self, count: int) -> tuple[Tensor, Tensor]:
        cosine, sine = self._rotary(torch.arange(count), None)
        return cosine.contiguous(), sine.contiguous()

    def _row(self, position: int, length: int) -> tuple[Tensor, Tensor]:
        """One token's, in a text longer than the trained length.

        A row at a time: the last bits of PyTorch's powers depend on how many it computes at once.
        """
        return self._rotary(torch.tensor([position]), torch.tensor([length]))

    def of(
        self, feeds: Sequence[Feed], positions: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Tensor, list[int]]:
        """Cosine and sine [rows, 1, head_size / 2], and each token's row."""
        flat = [position for row in positions for position in row]
        if max(flat) >= len(self._cosine):
            self._cosine, self._sine = self._table(max(2 * len(self._cosine), max(flat) + 256))
        if self._trained is not None:  # beyond it a row depends on the text's length as well
            pairs = zip(feeds, positions, strict=True)
            lengths = [length for feed, row in pairs for length in feed.lengths(row)]
            if max(lengths) > self._trained:
                return self._of_lengths(flat, lengths, self._trained)
        return self._cosine, self._sine, flat

    def _of_lengths(
        self, positions: Sequence[int], lengths: Sequence[int], trained: int
    ) -> tuple[Tensor, Tensor, list[int]]:
        keys = list(zip(positions, lengths, strict=True))
        places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        rows = [
            self._beyond(position, length) if length > trained
            else (self._cosine[position : position + 1], self._sine[position : position + 1])
            for position, length in places
        ]  # fmt: skip
        cosines, sines = zip(*rows, strict=True)
        return torch.cat(cosines), torch.cat(sines), [places[key] for key in keys]
