"""A rank of lookahead parallelism: the whole model, and its share of every step's tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trtla.runtime.loop.answers import (
    Answers,
    answers,
    asked_message,
    asked_of,
    needs_logits,
    read_asked,
    width,
)
from trtla.runtime.models.batch import Forwarded
from trtla.runtime.models.forward import Model, StepForward
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.ranks.messages import Move, read_step, step_message
from trtla.runtime.ranks.shares import Shares
from trtla.runtime.ranks.world import World
from trtla.runtime.sequence import Feed


class Replica:
    """Runs this rank's share of steps.

    Args:
        step: its own forward.
        cache: its cache.
    """

    def __init__(self, world: World, model: Model, step: StepForward, cache: KVCache) -> None:
        self._world, self._model, self._step, self._cache = world, model, step, cache
        place = world.place
        self._shares = Shares(
            place.rank, place.size, cache.data.shape[2], lambda blocks: cache.table(blocks).order
        )

    def message(self, feeds: Sequence[Feed], moves: Sequence[Move]) -> list[int]:
        """A step as rank 0 tells it.

        Trees are shared out unless logits are needed, which are not exchanged: then, and where
        there is no tree, rank 0 feeds all and the others keep up.
        """
        step = step_message(feeds, moves)
        shared = any(feed.tree.parents for feed in feeds) and not any(map(needs_logits, feeds))
        asked = asked_message(asked_of(feeds)) if shared else []
        return [len(step), *step, *asked]

    def run(self, message: Sequence[int]) -> Forwarded:
        """Run a step: on rank 0 all rows' answers, or its logits where nothing was shared out."""
        end = 1 + message[0]
        feeds, moves = read_step(message[1:end])
        shared = len(message) > end
        owners = self._shares.owners(feeds, shared)
        self._cache.move_later(self._shares.moved(moves))
        done = self._step(self._shares.taken(feeds, shared))
        return self._exchanged(done, owners, message[end:]) if shared else done

    def _exchanged(
        self, done: Forwarded, owners: Sequence[int], message: Sequence[int]
    ) -> Forwarded:
        asked, place = read_asked(message), self._world.place
        rows = [[row for row, owner in enumerate(owners) if owner == r] for r in range(place.size)]
        mine, size = [asked[row] for row in rows[place.rank]], width(asked)
        own = answers(done.logits[: len(mine)], mine, size, self._model.row_sampler)
        room = torch.zeros((max(map(len, rows)), size), dtype=torch.int64)
        room[: len(own)] = own
        said = torch.empty((len(owners), size), dtype=torch.int64)
        for part, places in zip(self._world.exchange(room), rows, strict=True):
            said[places] = part[: len(places)]
        return Forwarded(done.logits[:0], sampler=Answers(said))
