"""The interfaces of trained heads' forwards, compiled or in PyTorch.

Pair i of an EAGLE-3 head joins the target's states at token i with the token after it, and predicts
the one after that. In a drafted token's pair the output of the pair before takes the place of these
states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from trtla.formats.heads.head import EagleConfig, Head
from trtla.runtime.models.kv_cache import KVCache, SlotTable

ROW = 16
"""Tokens of a row."""


class HeadFeed(NamedTuple):
    """Consecutive pairs of one text."""

    table: SlotTable
    """The slots of the text's blocks."""
    first: int
    """The text's first pair that attention sees; it lies in entry `first` of the table."""
    cached: int
    """Pairs behind `first` that are cached; those fed follow. A pair is rotated by its entry."""
    ids: Sequence[int]
    """The tokens that follow those of the states, ids of the target."""
    states: ndarray
    """Float32 [pairs, hidden size]: of `fuse`, or an earlier forward's `states`."""


class HeadRows(NamedTuple):
    """The predictions of the last pair of each feed; the next forward may overwrite `logs`."""

    ids: ndarray
    """int32 [feeds, ROW]: the target's ids of the most probable tokens, best first; -1 behind the
    last one."""
    logs: ndarray
    """Logarithms of their probabilities in the draft vocabulary at temperature 1, float32; those of
    a row may all be wrong by the same, up to 0.03. -infinity behind the last one."""
    states: ndarray
    """Float32 [feeds, hidden size], which a pair of a drafted token takes; float64 of a head that
    computes in it."""


class HeadModel(ABC):
    """An EAGLE-3 head beside its target, on the target's device."""

    taps: tuple[int, ...]
    """Layers of the target whose output `fuse` takes, in this order."""

    @abstractmethod
    def new_cache(self, num_blocks: int) -> KVCache:
        """Keys and values of its one layer, for blocks as the target's."""

    @property
    @abstractmethod
    def block_bytes(self) -> int:
        """Bytes of a block of its cache."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of its own weights that a forward of drafted tokens reads."""

    @abstractmethod
    def fuse(self, states: ndarray) -> ndarray:
        """Turn the target's states [taps, tokens, its hidden size] into those of pairs."""

    @abstractmethod
    def forward(self, feeds: Sequence[HeadFeed], cache: KVCache) -> HeadRows:
        """Write the pairs' keys and values, and predict from the last pair of each feed."""


class MedusaModel(ABC):
    """Medusa heads beside their target, on the target's device."""

    taps: tuple[int, ...]
    """The target's last layer."""
    block_bytes = 0
    """They keep nothing of a text."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of their own weights."""

    @abstractmethod
    def rows(self, states: ndarray) -> tuple[ndarray, ndarray]:
        """Predict from the last layer's outputs [tokens, hidden size].

        Returns:
            The most probable tokens [tokens, heads, ROW], int32, best first and -1 behind the last
            one, and the logarithms of their probabilities, float32. Head k's are of the token k + 2
            places behind the state's.
        """


def target_ids(head: Head, config: EagleConfig) -> ndarray:
    """The target's token of each of the draft vocabulary, int32; behind them -1, which stays -1."""
    own = np.arange(config.layer.vocab_size) if head.target_ids is None else head.target_ids
    return np.append(own, -1).astype(np.int32)
