"""A rank of lookahead parallelism: the whole model, and its share of every step's tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from trtla.runtime.models.forward import Forwarded, Model, StepForward
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.ranks.steps import Move, Shares, read_step, step_message
from trtla.runtime.request import NO_TOKEN
from trtla.runtime.sampling.draw import argmax
from trtla.runtime.sampling.logits import Logits, on_device, on_host
from trtla.runtime.sampling.predict import (
    Draw,
    RowSampler,
    StepSampler,
    drawn,
    ranked_rows,
    row_draws,
)
from trtla.runtime.sequence import Feed
from trtla.settings.sampling import SamplingParams, drawn_with

if TYPE_CHECKING:
    from trtla.runtime.ranks.world import World

_GREEDY = SamplingParams()


@dataclass(frozen=True, slots=True)
class RowQuery:
    """What rank 0 wants to know of one row: what else `predict` and `top_rows` may ask."""

    greedy: bool
    params: SamplingParams = _GREEDY
    noise: float = 0.0
    top: int = 0


def needs_logits(feed: Feed) -> bool:
    """Whether a step of this feed reads more of its rows than can be asked for."""
    request, tree = feed.sequence.request, feed.tree
    reported = request.margins or request.logprobs is not None
    ranked = feed.draft is not None and feed.sequence.drafter.ranks > 0
    changed = request.sampling.changes_rows or tree.draft_probs is not None
    return reported or ranked or changed


def queries_of(feeds: Sequence[Feed]) -> list[RowQuery]:
    """What may be asked of each row that the feeds want."""
    top = max(feed.sequence.drafter.top_rows for feed in feeds)
    found: list[RowQuery] = []
    for feed in feeds:
        count = top if feed.sequence.drafter.top_rows else 0
        if feed.sequence.request.sampling.greedy:
            found += [RowQuery(True, top=count)] * len(feed.rows)
            continue
        draws = {draw.row: draw for draw in row_draws([feed])}
        read = () if feed.tree.drawn else feed.tree.read
        for place, node in enumerate(feed.rows):
            draw = draws.get(place, Draw(place, _GREEDY, 0.0))
            found.append(RowQuery(node in read, draw.params, draw.noise, count))
    return found


def query_message(queries: Sequence[RowQuery]) -> list[Any]:
    """As JSON."""
    return [(one.greedy, one.params.draw_settings, one.noise, one.top) for one in queries]


def read_queries(message: Sequence[Any]) -> list[RowQuery]:
    """Those of a `query_message`."""
    return [RowQuery(one, drawn_with(tuple(how)), noise, top) for one, how, noise, top in message]


def width(queries: Sequence[RowQuery]) -> int:
    """Integers of one row's answer: argmax, draw, most probable tokens and their logarithms."""
    return 2 + 2 * max((one.top for one in queries), default=0)


def answer_rows(
    logits: Logits, queries: Sequence[RowQuery], size: int, sampler: RowSampler | StepSampler | None
) -> ndarray:
    """The answer to rows of logits [rows, vocab], int64 [rows, size]."""
    found = np.full((len(queries), size), NO_TOKEN, np.int64)
    draws = [
        Draw(row, one.params, one.noise) for row, one in enumerate(queries) if not one.params.greedy
    ]
    read = [row for row, one in enumerate(queries) if one.greedy]
    if sampler is None:
        greedy = argmax(on_host(logits)) if read else []
        tokens = drawn(draws, on_host(logits))
    elif isinstance(sampler, StepSampler):
        greedy, tokens = sampler.choose(on_device(logits), draws)
    else:
        own = on_host(logits)
        greedy = [sampler.most_probable(own, r) if q.greedy else 0 for r, q in enumerate(queries)]
        tokens = [sampler.draw(own, d.row, d.params, d.noise) for d in draws]
    for row in read:
        found[row, 0] = greedy[row]
    for draw, token in zip(draws, tokens, strict=True):
        found[draw.row, 1] = token
    top = [row for row, one in enumerate(queries) if one.top]
    if top:
        ids, logs = ranked_rows(logits, top, queries[top[0]].top, sampler)
        found[top, 2:] = np.concatenate((ids, logs.view(np.int32)), axis=1)
    return found


class RowAnswers:
    """All rows' answers, in place of logits: a `RowSampler` for what was asked.

    Args:
        rows: int64 [rows, size].
    """

    def __init__(self, rows: ndarray) -> None:
        self._rows, self._chosen = rows, rows[:, :2].tolist()

    def most_probable(self, logits: ndarray, row: int) -> int:
        token: int = self._chosen[row][0]
        return token

    def draw(self, logits: ndarray, row: int, params: SamplingParams, noise: float) -> int:
        token: int = self._chosen[row][1]
        return token

    def top_rows(self, logits: ndarray, rows: Sequence[int], count: int) -> tuple[ndarray, ndarray]:
        found = self._rows[list(rows), 2:].astype(np.int32)
        ids, logs = map(np.ascontiguousarray, (found[:, :count], found[:, count:]))
        return ids, logs.view(np.float32)


class LookaheadRank:
    """Runs this rank's share of steps."""

    def __init__(self, world: World, model: Model[Any], step: StepForward, cache: KVCache) -> None:
        self._world, self._model, self._step, self._cache = world, model, step, cache
        place = world.place
        self._shares = Shares(
            place.rank, place.size, cache.num_slots, lambda blocks: cache.table(blocks).order
        )

    def message(self, feeds: Sequence[Feed], moves: Sequence[Move]) -> list[Any]:
        """A step as rank 0 tells it.

        Trees are shared out unless logits are needed, which are not exchanged: then, and where
        there is no tree, rank 0 feeds all and the others keep up.
        """
        shared = any(feed.tree.parents for feed in feeds) and not any(map(needs_logits, feeds))
        return [step_message(feeds, moves), query_message(queries_of(feeds)) if shared else None]

    def run(self, message: Sequence[Any]) -> Forwarded:
        """Run a step: on rank 0 all rows' answers, or its logits where nothing was shared out."""
        (feeds, moves), queries = read_step(message[0]), message[1]
        shared = queries is not None
        owners = self._shares.owners(feeds, shared)
        self._cache.move_later(self._shares.moved(moves))
        done = self._step(self._shares.taken(feeds, shared))
        return self._exchanged(done, owners, read_queries(queries)) if shared else done

    def _exchanged(
        self, done: Forwarded, owners: Sequence[int], queries: Sequence[RowQuery]
    ) -> Forwarded:
        place = self._world.place
        rows = [[row for row, owner in enumerate(owners) if owner == r] for r in range(place.size)]
        mine, size = [queries[row] for row in rows[place.rank]], width(queries)
        own = answer_rows(done.logits[: len(mine)], mine, size, self._model.row_sampler)
        room = np.zeros((max(map(len, rows)), size), np.int64)
        room[: len(own)] = own
        answers = np.empty((len(owners), size), np.int64)
        for part, places in zip(self._world.exchange(room), rows, strict=True):
            answers[places] = part[: len(places)]
        return Forwarded(done.logits[:0], sampler=RowAnswers(answers))
