"""Penalties, biases and grammars: rows of logits changed by the text before them, and put back.

A change depends only on the row and its text, so no drafter or batch makes a difference.
Penalties and biases touch the logits of the text's tokens and of biased ones, then a grammar
forbids tokens. Reports read the rows as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from trtla.runtime.sampling.logits import Logits, forbid, on_host, put_back, write
from trtla.runtime.sequence import Feed, Written
from trtla.settings.sampling import SamplingParams

Row = tuple[int, Feed, int]
"""A row of logits, the feed that it belongs to, and the feed's node that it comes after."""


def changed_rows(feeds: Sequence[Feed]) -> list[Row]:
    """The logit rows of the feeds that their requests change."""
    rows: list[Row] = []
    start = 0
    for feed in feeds:
        if feed.sequence.request.changes_rows:
            rows += [(start + index, feed, node) for index, node in enumerate(feed.rows)]
        start += len(feed.rows)
    return rows


@contextmanager
def changed(logits: Logits, rows: Sequence[Row]) -> Iterator[None]:
    """Change these rows of [rows, vocab] within the block, and put them back at its end."""
    with penalised(logits, rows), _masked(logits, rows):
        yield


@contextmanager
def _masked(logits: Logits, rows: Sequence[Row]) -> Iterator[None]:
    """Make tokens impossible that a row's grammar forbids, within the block."""
    masks = [(row, feed.mask(node)) for row, feed, node in rows if feed.sequence.request.grammar]
    masked = [(row, mask) for row, mask in masks if mask is not None]
    if not masked:
        yield
        return
    indices = [row for row, _ in masked]
    before = forbid(logits, indices, np.stack([mask.view(np.uint8) for _, mask in masked]))
    try:
        yield
    finally:
        put_back(logits, indices, before)


@contextmanager
def penalised(logits: Logits, rows: Sequence[Row]) -> Iterator[None]:
    """Change rows as `changed` does, by all but grammars.

    Where tokens are chosen row by row, this is called alone, and the choice reads the mask.
    """
    rows = [row for row in rows if row[1].sequence.request.sampling.changes_rows]
    if not rows:
        yield
        return
    indices, numbers = _columns(rows)
    before = on_host(logits[indices])
    write(logits, indices, _changed(before, numbers))
    try:
        yield
    finally:
        write(logits, indices, before)


def _columns(rows: Sequence[Row]) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """(rows, tokens) of all changes, and their numbers as of `_numbers`."""
    parts, numbers = zip(*(_of_row(*row) for row in rows), strict=True)
    indices = np.concatenate(parts, axis=1)
    return (indices[0], indices[1]), np.concatenate(numbers, axis=1)


def _of_row(row: int, feed: Feed, node: int) -> tuple[np.ndarray, np.ndarray]:
    sampling, written = feed.sequence.request.sampling, feed.sequence.counted()
    with written.ahead(feed.path(node)):
        ids = written.ids
        indices = np.empty((2, len(ids)), np.int64)
        indices[0], indices[1] = row, ids
        return indices, _numbers(sampling, written)


def _numbers(sampling: SamplingParams, written: Written) -> np.ndarray:
    """Bias, divisor and both penalties to subtract of each token, float32 [4, tokens]."""
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
