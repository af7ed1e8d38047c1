"""Cosines and sines of the rotary embedding by position, kept from step to step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtla.config import CheckpointConfig
from trtla.runtime.batch import Feed
from trtla.runtime.rope import Rotary


class Turns:
    """Where the forward finds each fed token's cosine and sine."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._rotary = Rotary(config, torch.float32, torch.device("cpu"))
        self._by_token = config.rope_type == "dynamic"
        self._cosine, self._sine = self._table(0)

    def _table(self, count: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(count)
        cosine, sine = self._rotary(positions, positions + 1)
        return cosine.contiguous(), sine.contiguous()

    def of(
        self, feeds: Sequence[Feed], positions: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Tensor, list[int]]:
        """Cosine and sine [rows, 1, head_size / 2], and each token's row."""
        flat = [position for row in positions for position in row]
        if self._by_token:  # a row depends on the text's length as well
            pairs = zip(feeds, positions, strict=True)
            lengths = [length for feed, row in pairs for length in feed.lengths(row)]
            cosine, sine = self._rotary(torch.tensor(flat), torch.tensor(lengths))
            return cosine, sine, list(range(len(flat)))
        if max(flat) >= len(self._cosine):
            self._cosine, self._sine = self._table(max(2 * len(self._cosine), max(flat) + 256))
        return self._cosine, self._sine, flat
