"""Trained heads beside a loaded model: their weights, their memory, their drafters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trtla.errors import TrtlaError
from trtla.formats.config import CheckpointConfig
from trtla.formats.heads.head import Head
from trtla.runtime.device import Device
from trtla.runtime.drafters.eagle import EagleDrafters
from trtla.runtime.drafters.head import HeadDrafters
from trtla.runtime.drafters.medusa import MedusaDrafters
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.forward import Model
from trtla.runtime.models.heads.head_model import HeadModel, MedusaModel
from trtla.runtime.models.heads.load_head import load_head


class LoadedHeads:
    """The heads of a model by their names; from now on its forwards tap the layers that they read.

    Args:
        heads: that fit the model.
        found: the name of the one that lies beside it, which is left out if it cannot be loaded.
        config: of the model.
        dtype: of its activations.
        device: of the model.
    """

    def __init__(
        self,
        heads: Mapping[str, Head],
        found: str | None,
        model: Model[Any],
        config: CheckpointConfig,
        dtype: str,
        device: Device,
    ) -> None:
        self._heads = dict[str, HeadModel | MedusaModel]()
        self._problem = ""
        for name, head in heads.items():
            try:
                self._heads[name] = load_head(head, model, config, dtype, device)
            except TrtlaError as error:
                if name != found:
                    raise
                self._problem = error.message
        self._taps = sorted({tap for head in self._heads.values() for tap in head.taps})
        model.taps = tuple(self._taps)

    def limits(self, limits: ExecutorLimits) -> ExecutorLimits:
        """Return the limits with those heads alone that are loaded."""
        if not self._problem:
            return limits
        without = limits.drafter.with_head(None)
        return replace(
            limits, drafter=without, heads=tuple(self._heads), head_problem=self._problem
        )

    @property
    def block_bytes(self) -> int:
        """Bytes of their keys and values beside a block of the model's."""
        return sum(head.block_bytes for head in self._heads.values())

    def drafters(self, num_blocks: int) -> dict[str, HeadDrafters]:
        """Make their drafters, with caches of as many blocks as the model's."""
        return {name: self._drafters(head, num_blocks) for name, head in self._heads.items()}

    def _drafters(self, head: HeadModel | MedusaModel, num_blocks: int) -> HeadDrafters:
        taps = [self._taps.index(tap) for tap in head.taps]
        if isinstance(head, MedusaModel):
            return MedusaDrafters(head, *taps)
        return EagleDrafters(head, head.new_cache(num_blocks), taps)
