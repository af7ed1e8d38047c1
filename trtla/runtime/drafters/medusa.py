"""Medusa heads as a source of rows in candidate trees.

Each head draws a token so many places ahead from the last state alone, whatever comes between: its
row is behind all nodes of one depth, and the chance of a path is the product of its rows' chances.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from trtla.runtime.drafters.head import HeadDraft, HeadDrafter, HeadDrafters
from trtla.runtime.models.heads.head_model import MedusaModel


class MedusaDrafter(HeadDrafter):
    """The heads' view of one request: the state that its newest token was chosen from."""

    heads: MedusaDrafters

    def __init__(self, heads: MedusaDrafters) -> None:
        super().__init__(heads)
        self.state: ndarray | None = None

    def saw_hidden(self, first: int, states: ndarray) -> None:
        self.state = states[self.heads.tap, -1].copy()

    def take(self) -> ndarray:
        """Return the state, which serves one step."""
        assert self.state is not None
        state, self.state = self.state, None
        return state


class MedusaDrafters(HeadDrafters):
    """Makes the drafters of a model's Medusa heads.

    Args:
        tap: the index of the last layer among those that the target's forward taps.
    """

    def __init__(self, model: MedusaModel, tap: int) -> None:
        super().__init__()
        self._model, self.tap = model, tap

    def drafter(self) -> MedusaDrafter:
        return MedusaDrafter(self)

    def begin(self, due: Sequence[HeadDraft]) -> list[HeadDraft]:
        begun = [draft for draft in due if _medusa(draft).state is not None]
        if begun:
            states = [_medusa(draft).take() for draft in begun]
            self.totals.forwards += 1
            self.totals.pairs += len(begun)
            ids, logs = self._model.rows(np.stack(states))
            for draft, own_ids, own_logs in zip(begun, ids, logs, strict=True):
                for depth, row in enumerate(zip(own_ids, own_logs, strict=True)):
                    draft.tree.add_head_row(depth - 1, -1, *row)
                draft.drafter.likely = int(own_ids[0][0])
        return begun


def _medusa(draft: HeadDraft) -> MedusaDrafter:
    assert isinstance(draft.drafter, MedusaDrafter)
    return draft.drafter
