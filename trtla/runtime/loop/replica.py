"""A rank of lookahead parallelism: the whole model, and its share of every step's tree."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtla.runtime.models.batch import Forwarded
from trtla.runtime.models.forward import Model, StepForward
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.ranks.steps import Move, Shares, read_step, step_message
from trtla.runtime.ranks.world import World
from trtla.runtime.request import NO_TOKEN
from trtla.runtime.sampling.draw import argmax
from trtla.runtime.sampling.predict import (
    Draw,
    RowSampler,
    StepSampler,
    drawn,
    ranked_rows,
    row_draws,
)
from trtla.runtime.sequence import Feed
from trtla.settings.sampling import SamplingParams

_GREEDY = SamplingParams()


@dataclass(frozen=True, slots=True)
class Asked:
    """What rank 0 wants to know of one row: what else `predict` and `top_rows` may ask.

    Args:
        greedy: the argmax.
        params: filters of a draw; greedy: nothing is drawn.
        noise: of the draw.
        top: so many of the most probable tokens.
    """

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


def asked_of(feeds: Sequence[Feed]) -> list[Asked]:
    """What may be asked of each row that the feeds want."""
    top = max(feed.sequence.drafter.top_rows for feed in feeds)
    found: list[Asked] = []
    for feed in feeds:
        count = top if feed.sequence.drafter.top_rows else 0
        if feed.sequence.request.sampling.greedy:
            found += [Asked(True, top=count)] * len(feed.rows)
            continue
        draws = {draw.row: draw for draw in row_draws([feed])}
        read = () if feed.tree.drawn else feed.tree.read
        for place, node in enumerate(feed.rows):
            draw = draws.get(place, Draw(place, _GREEDY, 0.0))
            found.append(Asked(node in read, draw.params, draw.noise, count))
    return found


def asked_message(asked: Sequence[Asked]) -> list[int]:
    """As integers; equal settings are sent once."""
    alike = list(dict.fromkeys((one.greedy, one.params.law, one.top) for one in asked))
    message = [len(alike)]
    for greedy, (temperature, top_k, top_p, min_p), top in alike:
        message += (greedy, _bits(temperature), top_k, _bits(top_p), _bits(min_p), top)
    for one in asked:
        message.append(alike.index((one.greedy, one.params.law, one.top)))
        if not one.params.greedy:
            message.append(_bits(one.noise))
    return message


def read_asked(message: Sequence[int]) -> list[Asked]:
    """What an `asked_message` asks."""
    numbers = iter(message)
    alike = [_read_alike(numbers) for _ in range(next(numbers))]
    found = []
    for kind in numbers:
        greedy, params, top = alike[kind]
        noise = 0.0 if params.greedy else _number(next(numbers))
        found.append(Asked(greedy, params, noise, top))
    return found


def _read_alike(numbers: Iterator[int]) -> tuple[bool, SamplingParams, int]:
    greedy, temperature, top_k, top_p, min_p, top = (next(numbers) for _ in range(6))
    heat, share, least = map(_number, (temperature, top_p, min_p))
    params = SamplingParams(temperature=heat, top_k=top_k, top_p=share, min_p=least)
    return bool(greedy), params, top


def _bits(number: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def _number(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def width(asked: Sequence[Asked]) -> int:
    """Integers of one row's answer: argmax, draw, most probable tokens and their logarithms."""
    return 2 + 2 * max((one.top for one in asked), default=0)


def answers(
    logits: Tensor, asked: Sequence[Asked], size: int, sampler: RowSampler | StepSampler | None
) -> Tensor:
    """Of rows of logits [rows, vocab], int64 [rows, size].

    Args:
        sampler: the model's.
    """
    found = torch.full((len(asked), size), NO_TOKEN, dtype=torch.int64)
    draws = [
        Draw(row, one.params, one.noise) for row, one in enumerate(asked) if not one.params.greedy
    ]
    read = [row for row, one in enumerate(asked) if one.greedy]
    if sampler is None:
        greedy = argmax(logits).tolist() if read else []
        tokens = drawn(draws, logits)
    elif isinstance(sampler, StepSampler):
        greedy, tokens = sampler.choose(logits, draws)
    else:
        greedy = [sampler.most_probable(logits, r) if a.greedy else 0 for r, a in enumerate(asked)]
        tokens = [sampler.draw(logits, d.row, d.params, d.noise) for d in draws]
    for row in read:
        found[row, 0] = greedy[row]
    for draw, token in zip(draws, tokens, strict=True):
        found[draw.row, 1] = token
    top = [row for row, one in enumerate(asked) if one.top]
    if top:
        ids, logs = ranked_rows(logits, top, asked[top[0]].top, sampler)
        found[top, 2:] = torch.cat((ids, logs.contiguous().view(torch.int32)), dim=1).long()
    return found


class Answers:
    """All rows' answers, in place of logits: a `RowSampler` for what was asked.

    Args:
        rows: int64 [rows, size].
    """

    def __init__(self, rows: Tensor) -> None:
        self._rows, self._chosen = rows, rows[:, :2].tolist()

    def most_probable(self, logits: Tensor, row: int) -> int:
        token: int = self._chosen[row][0]
        return token

    def draw(self, logits: Tensor, row: int, params: SamplingParams, noise: float) -> int:
        token: int = self._chosen[row][1]
        return token

    def top_rows(self, logits: Tensor, rows: Sequence[int], count: int) -> tuple[Tensor, Tensor]:
        found = self._rows[list(rows), 2:].int()
        ids, logs = found[:, :count], found[:, count:]
        return ids.contiguous(), logs.contiguous().view(torch.float32)


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
