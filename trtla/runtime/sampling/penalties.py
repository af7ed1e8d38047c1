"""Penalties and biases: rows of logits changed by the text before them, and put back.

A change is a function of the row and its text alone, the same for every drafter and batch. Only the
logits of the text's tokens and of biased ones are touched; reports read the rows as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from trtla.runtime.sampling.logits import Logits, on_host, write
from trtla.runtime.sequence import Feed, Written
from trtla.settings.sampling import SamplingParams

Row = tuple[int, Feed, int]
"""A row of logits, the feed that it belongs to, and the feed's node that it comes after."""


def changed_rows(feeds: Sequence[Feed]) -> list[Row]:
    """The rows, of all that the feeds want, which their requests have changed."""
    found: list[Row] = []
    start = 0
    for feed in feeds:
        if feed.sequence.request.sampling.changes_rows:
            found += [(start + place, feed, node) for place, node in enumerate(feed.rows)]
        start += len(feed.rows)
    return found


@contextmanager
def changed(logits: Logits, rows: Sequence[Row]) -> Iterator[None]:
    """Have these rows of [rows, vocab] as tokens are chosen from them, and then as they were."""
    if not rows:
        yield
        return
    places, numbers = _columns(rows)
    before = on_host(logits[places])
    write(logits, places, _changed(before, numbers))
    try:
        yield
    finally:
        write(logits, places, before)


def _columns(rows: Sequence[Row]) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """(rows, tokens) of all changes, and what changes them."""
    parts, wide = zip(*(_of_row(*row) for row in rows), strict=True)
    places = np.concatenate(parts, axis=1)
    return (places[0], places[1]), np.concatenate(wide, axis=1)


def _of_row(row: int, feed: Feed, node: int) -> tuple[np.ndarray, np.ndarray]:
    sampling, written = feed.sequence.request.sampling, feed.sequence.counted()
    path = () if feed.draft is None else feed.draft.tokens_to(node)
    with written.ahead(path):
        ids = written.ids
        places = np.empty((2, len(ids)), np.int64)
        places[0], places[1] = row, ids
        return places, _numbers(sampling, written)


def _numbers(sampling: SamplingParams, written: Written) -> np.ndarray:
    """Bias, divisor and what is subtracted of each token, float32 [3, tokens]."""
    counts = written.counts
    numbers = np.empty((4, len(counts)), np.float32)
    numbers[0] = written.biases
    numbers[1] = np.where(written.seen > 0, np.float32(sampling.repetition_penalty), 1)
    numbers[2] = counts * np.float32(sampling.frequency_penalty)
    numbers[3] = (counts > 0) * np.float32(sampling.presence_penalty)
    return numbers


def _changed(logits: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    bias, divisor, frequency, presence = numbers.astype(logits.dtype)
    biased = logits + bias
    penalised = np.where(biased < 0, biased * divisor, biased / divisor)
    result: np.ndarray = penalised - frequency - presence
    return result
