"""The draft vocabulary of an EAGLE-3 head: the target's token of each of its own.

Files have offsets (`d2t`: the target's token less the own one) and the set of the target's tokens
(`t2d`); GGUF has the target's tokens themselves. Files of these mistakes have been published:
counted indices, a missing d2t, tokens that come twice.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy import ndarray

from trtla.errors import UsageError
from trtla.formats.heads.stored import AGAIN, StoredHead
from trtla.formats.weight_files import Entry

D2T, T2D = "d2t", "t2d"


def draft_vocabulary(stored: StoredHead, draft: int, vocab: int) -> ndarray | None:
    """The target's tokens of a head whose d2t holds offsets; None: they are the same."""
    path, entries = stored.path, stored.entries
    if D2T not in entries:
        if draft < vocab:
            raise UsageError(
                f"{path} lacks tensor d2t, which maps its {draft} tokens to the {vocab} of its "
                "target",
                AGAIN,
            )
        return None
    _check_integers(path, D2T, entries[D2T], draft)
    offsets = stored.whole(D2T).astype(np.int64)
    if draft > 1 and np.array_equal(offsets, np.arange(draft)):
        raise UsageError(
            f"{path}: d2t counts from 0 to {draft - 1}, where each token's offset is asked for",
            AGAIN,
        )
    ids = offsets + np.arange(draft)
    check_ids(path, ids, vocab)
    if T2D in entries:
        _check_integers(path, T2D, entries[T2D], vocab)
        _check_same(path, ids, np.flatnonzero(stored.whole(T2D)))
    return None if draft == vocab and not offsets.any() else ids


def check_ids(path: Path, ids: ndarray, vocab: int) -> None:
    """Refuse tokens that are none of the target's, and those that come twice."""
    outside = np.flatnonzero((ids < 0) | (ids >= vocab))
    if len(outside):
        raise UsageError(
            f"{path}: d2t maps token {outside[0]} to {ids[outside[0]]}, and the target has {vocab}",
            AGAIN,
        )
    known, counts = np.unique(ids, return_counts=True)
    if len(known) < len(ids):
        twice = known[counts > 1][0]
        raise UsageError(f"{path}: d2t maps several tokens to {twice}", AGAIN)


def _check_same(path: Path, ids: ndarray, members: ndarray) -> None:
    if len(different := np.setxor1d(ids, members)):
        token = different[0]
        first, second = (D2T, T2D) if token in ids else (T2D, D2T)
        raise UsageError(f"{path}: {first} has token {token}, and {second} has not", AGAIN)


def _check_integers(path: Path, name: str, entry: Entry, count: int) -> None:
    if entry.dtype.kind not in "iu" + "b" * (name == T2D):
        raise UsageError(f"{path}: tensor {name} is {entry.dtype}, and must be integers", AGAIN)
    if entry.shape != (count,):
        raise UsageError(
            f"{path}: tensor {name} has shape {list(entry.shape)}, config.json asks for [{count}]",
            AGAIN,
        )
