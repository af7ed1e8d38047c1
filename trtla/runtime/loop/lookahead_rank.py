"""A rank of lookahead parallelism: it has the whole model, and feeds its share of every tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from trtla.errors import UsageError, named
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
    """Rank 0's question about one row, in all that `predict` and `top_rows` may need."""

    greedy: bool
    params: SamplingParams = _GREEDY
    noise: float = 0.0
    top: int = 0


def needs_logits(feed: Feed) -> bool:
    """Return True if a step of this feed needs more of its rows than a `RowQuery` covers."""
    request, tree = feed.sequence.request, feed.tree
    reported = request.margins or request.logprobs is not None
    ranked = feed.draft is not None and feed.sequence.drafter.ranks > 0
    changed = request.changes_rows or tree.draft_probs is not None
    return reported or ranked or changed


def queries_of(feeds: Sequence[Feed]) -> list[RowQuery]:
    """Return the queries for each row that the feeds want."""
    top = max(feed.sequence.drafter.top_rows for feed in feeds)
    queries: list[RowQuery] = []
    for feed in feeds:
        count = top if feed.sequence.drafter.top_rows else 0
        if feed.sequence.request.sampling.greedy:
            queries += [RowQuery(True, top=count)] * len(feed.rows)
            continue
        draws = {draw.row: draw for draw in row_draws([feed])}
        read = () if feed.tree.drawn else feed.tree.read
        for row, node in enumerate(feed.rows):
            draw = draws.get(row, Draw(row, _GREEDY, 0.0))
            queries.append(RowQuery(node in read, draw.params, draw.noise, count))
    return queries


def query_message(queries: Sequence[RowQuery]) -> list[Any]:
    """Return the queries in a form that JSON holds."""
    return [(query.greedy, query.params.draw_settings, query.noise, query.top) for query in queries]


def read_queries(message: Sequence[Any]) -> list[RowQuery]:
    """Read the queries of a `query_message`."""
    return [
        RowQuery(greedy, drawn_with(tuple(settings)), noise, top)
        for greedy, settings, noise, top in message
    ]


def width(queries: Sequence[RowQuery]) -> int:
    """Count the integers of an answer: argmax, draw, most probable tokens and their logarithms."""
    return 2 + 2 * max((query.top for query in queries), default=0)


def answer_rows(
    logits: Logits, queries: Sequence[RowQuery], size: int, sampler: RowSampler | StepSampler | None
) -> ndarray:
    """Answer queries about rows of logits [rows, vocab], as int64 [rows, size]."""
    answers = np.full((len(queries), size), NO_TOKEN, np.int64)
    draws = [
        Draw(row, query.params, query.noise)
        for row, query in enumerate(queries)
        if not query.params.greedy
    ]
    read = [row for row, query in enumerate(queries) if query.greedy]
    if sampler is None:
        greedy = argmax(on_host(logits)) if read else []
        tokens = drawn(draws, on_host(logits))
    elif isinstance(sampler, StepSampler):
        greedy, tokens = sampler.choose(on_device(logits), draws)
    else:
        rows = on_host(logits)
        greedy = [sampler.most_probable(rows, r) if q.greedy else 0 for r, q in enumerate(queries)]
        tokens = [sampler.draw(rows, d.row, d.params, d.noise) for d in draws]
    for row in read:
        answers[row, 0] = greedy[row]
    for draw, token in zip(draws, tokens, strict=True):
        answers[draw.row, 1] = token
    top = [row for row, query in enumerate(queries) if query.top]
    if top:
        ids, logs = ranked_rows(logits, top, queries[top[0]].top, sampler)
        answers[top, 2:] = np.concatenate((ids, logs.view(np.int32)), axis=1)
    return answers


class RowAnswers:
    """All rows' answers, in place of logits: a `RowSampler` limited to the queries.

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

    def masked(self, logits: ndarray, row: int, mask: ndarray) -> ndarray:
        raise TypeError("these rows are on other ranks")

    def top_rows(self, logits: ndarray, rows: Sequence[int], count: int) -> tuple[ndarray, ndarray]:
        tops = self._rows[list(rows), 2:].astype(np.int32)
        ids, logs = map(np.ascontiguousarray, (tops[:, :count], tops[:, count:]))
        return ids, logs.view(np.float32)


def check_head_ranks(ranks: int | None, heads: Sequence[str]) -> None:
    """Refuse trained heads on ranks of lookahead parallelism, which exchange no hidden states.

    Args:
        ranks: the option `lookahead_parallel`.
        heads: their names, as they were given.
    """
    if heads and ranks is not None and ranks > 1:
        raise UsageError(
            f"{named('lookahead_parallel')} {ranks} has no states for the trained head {heads[0]}: "
            "each rank keeps those of the tokens that it feeds",
            f"omit {named('lookahead_parallel')}, or the head; {named('tp_size')} {ranks} splits "
            "the model with a head",
        )


class LookaheadRank:
    """Runs this rank's share of steps."""

    def __init__(self, world: World, model: Model[Any], step: StepForward, cache: KVCache) -> None:
        self._world, self._model, self._step, self._cache = world, model, step, cache
        place = world.place
        self._shares = Shares(
            place.rank, place.size, cache.num_slots, lambda blocks: cache.table(blocks).order
        )

    def message(self, feeds: Sequence[Feed], moves: Sequence[Move]) -> list[Any]:
        """Return rank 0's message about a step.

        Trees are shared out unless logits are needed, which are not exchanged. In that case, and
        without a tree, rank 0 feeds all and the others only keep up.
        """
        shared = any(feed.tree.parents for feed in feeds) and not any(map(needs_logits, feeds))
        return [step_message(feeds, moves), query_message(queries_of(feeds)) if shared else None]

    def run(self, message: Sequence[Any]) -> Forwarded:
        """Run a step; rank 0 gets all rows' answers, or its logits if nothing was shared out."""
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
        answered = answer_rows(done.logits[: len(mine)], mine, size, self._model.row_sampler)
        room = np.zeros((max(map(len, rows)), size), np.int64)
        room[: len(answered)] = answered
        whole = np.empty((len(owners), size), np.int64)
        for part, places in zip(self._world.exchange(room), rows, strict=True):
            whole[places] = part[: len(places)]
        return Forwarded(done.logits[:0], sampler=RowAnswers(whole))
