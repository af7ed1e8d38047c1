"""Logits as a step's choices see them: NumPy's on the host, or a tensor that stays on its device.

A model whose `StepSampler` chooses on the device leaves its logits there; all others hand out
arrays. Nothing here imports torch: the type of the argument decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Union

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
    array: ndarray = numbers.detach().cpu().numpy()
    return array


def on_device(logits: Logits) -> Tensor:
    """Return the tensor that a `StepSampler` reads, as models that have one leave it."""
    if isinstance(logits, ndarray):
        raise TypeError("these logits are on the host")
    return logits


def host_rows(logits: Logits, rows: Sequence[int]) -> ndarray:
    """A copy of some rows, [rows, vocab]."""
    return on_host(logits[list(rows)])


def fitted(logits: Logits, vocab_size: int) -> Logits:
    """The rows for a vocabulary of another size: tokens that they lack are impossible."""
    rows, width = logits.shape
    if width == vocab_size:
        return logits
    common = min(width, vocab_size)
    if isinstance(logits, ndarray):
        padded = np.full((rows, vocab_size), -np.inf, logits.dtype)
        padded[:, :common] = logits[:, :common]
        return padded
    wide = logits.new_full((rows, vocab_size), -math.inf)
    wide[:, :common] = logits[:, :common]
    return wide


def write(logits: Logits, indices: tuple[ndarray, ndarray], numbers: ndarray) -> None:
    """Put numbers at (rows, tokens)."""
    if isinstance(logits, ndarray):
        logits[indices] = numbers
        return
    with _editing():
        rows, tokens = (logits.new_tensor(index).long() for index in indices)
        logits.index_put_((rows, tokens), logits.new_tensor(numbers))


def forbid(logits: Logits, rows: Sequence[int], masks: ndarray) -> Logits:
    """Make all tokens of some rows but the allowed ones impossible; returns these rows before.

    Args:
        masks: bits of the allowed tokens, [rows, bytes], the lowest bit first. They go to a device
            as they are.
    """
    if isinstance(logits, ndarray):
        allowed = np.unpackbits(masks, axis=1, count=logits.shape[1], bitorder="little")
        before: ndarray = logits[list(rows)]
        logits[list(rows)] = np.where(allowed.view(bool), before, -np.inf)
        return before
    with _editing():
        stored = logits[list(rows)]
        words = logits.new_tensor(masks).byte()
        tokens = words.new_tensor(range(8)).expand(*words.shape, 8)
        bits = (words.unsqueeze(-1) >> tokens & 1).flatten(1)[:, : logits.shape[1]]
        logits[list(rows)] = stored.masked_fill(bits == 0, -math.inf)
        return stored


def put_back(logits: Logits, rows: Sequence[int], before: Logits) -> None:
    """Write whole rows again."""
    if isinstance(logits, ndarray):
        logits[list(rows)] = before
        return
    with _editing():
        logits[list(rows)] = on_device(before)


def _editing() -> AbstractContextManager[object]:
    """Return the mode in which a forward's tensors were made: no other mode may change them."""
    import torch

    return torch.inference_mode()
