"""The sampling functions for tests that compute with tensors: arrays are tensors here."""

from __future__ import annotations

import functools

import numpy as np
import torch

from trtla.formats.torch_tensors import as_tensor
from trtla.runtime.loop import scores
from trtla.runtime.sampling import accept, draw, predict


def _array(value):
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else value


def _tensor(value):
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _of_tensors(function):
    @functools.wraps(function)
    def call(*arguments, **keys):
        found = function(*map(_array, arguments), **{k: _array(v) for k, v in keys.items()})
        return tuple(map(_tensor, found)) if isinstance(found, tuple) else _tensor(found)

    return call


def _of_tokens(function):
    return lambda *arguments, **keys: torch.tensor(_of_tensors(function)(*arguments, **keys))


argmax, draw_at = _of_tokens(draw.argmax), _of_tokens(draw.draw_at)
probabilities, top_tokens = _of_tensors(draw.probabilities), _of_tensors(predict.top_tokens)
ranked_rows, residual = _of_tensors(predict.ranked_rows), _of_tensors(accept.residual)
token_log_probs, draw = _of_tensors(scores.token_log_probs), _of_tokens(draw.draw)


def tensor_of(value):
    """An array of any type as a tensor; tensors as they are."""
    return as_tensor(value) if isinstance(value, np.ndarray) else value


def equal(one, other):
    """Whether arrays or tensors hold the same numbers of the same shape."""
    return torch.equal(tensor_of(one), tensor_of(other))
