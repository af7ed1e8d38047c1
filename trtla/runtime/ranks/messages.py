"""A step as integers: what rank 0 tells the other ranks, and what they make of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from trtla.runtime.draft import Draft, NoDrafter
from trtla.runtime.request import Request
from trtla.runtime.sequence import Feed
from trtla.runtime.sequence import Sequence as FedSequence
from trtla.settings.lookahead import AUTOREGRESSIVE

Move = tuple[int, int]
"""Slots of the cache, from which and to which rows are moved before the step."""
_PROMPT = -1


def step_message(feeds: Sequence[Feed], moves: Sequence[Move]) -> list[int]:
    """All that a forward depends on: tokens, positions, blocks, and what sees what."""
    message = [len(moves), *(slot for move in moves for slot in move), len(feeds)]
    for feed in feeds:
        sequence, parents = feed.sequence, feed.tree.parents
        drafted = _PROMPT if feed.draft is None else len(parents)
        counts = (feed.length, len(feed.rows), len(sequence.blocks), drafted)
        message += (*counts, sequence.num_cached, len(sequence.prompt))
        message += (*feed.tokens, *feed.rows, *sequence.blocks, *parents)
    return message


def read_step(message: Sequence[int]) -> tuple[list[Feed], list[Move]]:
    """The feeds and moves of a `step_message`."""
    numbers = iter(message)
    moves = [(next(numbers), next(numbers)) for _ in range(next(numbers))]
    return [_read_feed(numbers) for _ in range(next(numbers))], moves


def _read_feed(numbers: Iterator[int]) -> Feed:
    length, rows, blocks, drafted, num_cached, prompt_len = (next(numbers) for _ in range(6))
    tokens, wanted, owned = (_some(numbers, count) for count in (length, rows, blocks))
    draft = None if drafted == _PROMPT else Draft(tokens[1:], _some(numbers, drafted))
    request = _request(prompt_len)
    sequence = FedSequence(request, AUTOREGRESSIVE, NoDrafter(), [], num_cached, owned)
    return Feed(sequence, tokens, wanted, draft)


def _some(numbers: Iterator[int], count: int) -> tuple[int, ...]:
    return tuple(next(numbers) for _ in range(count))


@lru_cache(maxsize=64)
def _request(prompt_len: int) -> Request:
    """A request of a prompt of this length: a forward depends on no more of it."""
    return Request(0, (0,) * prompt_len)
