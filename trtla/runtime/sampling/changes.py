"""Penalties, biases and grammars: rows of logits changed by the text before them, and put back.

A change is a function of the row and its text alone, the same for every drafter and batch.
Penalties and biases touch the logits of the text's tokens and of biased ones, then a grammar
forbids tokens. Reports read the rows as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from trtla.runtime.grammar import allowed_tokens
from trtla.runtime.sampling.logits import Logits, forbid, on_host, write
from trtla.runtime.sequence import Feed, Written
from trtla.settings.sampling import SamplingParams

Row = tuple[int, Feed, int]
"""A row of logits, the feed that it belongs to, and the feed's node that it comes after."""


def changed_rows(feeds: Sequence[Feed]) -> list[Row]:
    """The rows, of all that the feeds want, which their requests have changed."""
    found: list[Row] = []
    start = 0
    for feed in feeds:
        if feed.sequence.request.changes_rows:
            found += [(start + place, feed, node) for place, node in enumerate(feed.rows)]
        start += len(feed.rows)
    return found


@contextmanager
def changed(logits: Logits, rows: Sequence[Row]) -> Iterator[None]:
    """Have these rows of [rows, vocab] as tokens are chosen from them, and then as they were."""
    with penalised(logits, rows), _masked(logits, rows):
        yield


@contextmanager
def _masked(logits: Logits, rows: Sequence[Row]) -> Iterator[None]:
    """Have only the tokens possible that each row's grammar allows."""
    masks = [(row, feed.mask(node)) for row, feed, node in rows if feed.sequence.request.grammar]
    found = [(row, mask) for row, mask in masks if mask is not None]
    if not found:
        yield
        return
    places, vocab = [row for row, _ in found], logits.shape[-1]
    before = forbid(logits, places, np.stack([allowed_tokens(mask, vocab) for _, mask in found]))
    try:
        yield
    finally:
        logits[places] = before


@contextmanager
def penalised(logits: Logits, rows: Sequence[Row]) -> Iterator[None]:
    """The same with penalties and biases alone."""
    rows = [one for one in rows if one[1].sequence.request.sampling.changes_rows]
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
