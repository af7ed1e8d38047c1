"""Logits as a step's choices see them: NumPy's on the host, or a tensor that stays on its device.

A model whose `StepSampler` chooses on the device leaves its logits there; all others hand out
arrays. Nothing here imports torch: what is given decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy import ndarray

if TYPE_CHECKING:
    from torch import Tensor

Logits = Union["ndarray", "Tensor"]
"""Float [rows, vocab], at least float32."""


def on_host(numbers: Logits) -> ndarray:
    """The same numbers as an array; of a tensor on the host in the same memory."""
    if isinstance(numbers, ndarray):
        return numbers
    found: ndarray = numbers.detach().cpu().numpy()
    return found


def on_device(logits: Logits) -> Tensor:
    """What a `StepSampler` reads: a tensor, as models that have one leave it."""
    if isinstance(logits, ndarray):
        raise TypeError("these logits are on the host")
    return logits


def host_rows(logits: Logits, rows: Sequence[int]) -> ndarray:
    """A copy of some rows, [rows, vocab]."""
    return on_host(logits[list(rows)])


def fitted(logits: Logits, vocab_size: int) -> Logits:
    """The rows for a vocabulary of another size: what they have not is improbable."""
    rows, own = logits.shape
    if own == vocab_size:
        return logits
    kept = min(own, vocab_size)
    if isinstance(logits, ndarray):
        found = np.full((rows, vocab_size), -np.inf, logits.dtype)
        found[:, :kept] = logits[:, :kept]
        return found
    wide = logits.new_full((rows, vocab_size), -math.inf)
    wide[:, :kept] = logits[:, :kept]
    return wide


def write(logits: Logits, places: tuple[ndarray, ndarray], numbers: ndarray) -> None:
    """Put numbers at (rows, tokens)."""
    if isinstance(logits, ndarray):
        logits[places] = numbers
    else:
        rows, tokens = (logits.new_tensor(place).long() for place in places)
        logits.index_put_((rows, tokens), logits.new_tensor(numbers))


def forbid(logits: Logits, rows: Sequence[int], allowed: ndarray) -> Any:
    """Make all tokens of some rows but the allowed ones impossible; returns these rows before.

    Args:
        allowed: bool [rows, vocab].
    """
    if isinstance(logits, ndarray):
        before = logits[list(rows)]
        logits[list(rows)] = np.where(allowed, before, -np.inf)
        return before
    kept = logits[list(rows)]
    logits[list(rows)] = kept.masked_fill(~kept.new_tensor(allowed).bool(), -math.inf)
    return kept
