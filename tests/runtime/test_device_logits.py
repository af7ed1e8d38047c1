"""Rows of logits on a device are changed as arrays are, though a forward has made them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trtla.runtime.sampling.device import DeviceSampler
from trtla.runtime.sampling.logits import forbid, put_back, write
from trtla.runtime.sampling.predict import ranked_rows

VOCAB = 100


def both(device):
    """The same numbers as an array, and as a forward leaves them on a device."""
    numbers = np.random.default_rng(3).standard_normal((4, VOCAB)).astype(np.float32)
    with torch.inference_mode():
        return numbers, torch.from_numpy(numbers.copy()).to(device)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_mask_forbids_is_impossible_until_it_is_put_back(device):
    array, tensor = both(device)
    masks = np.random.default_rng(4).integers(0, 256, (2, 16), np.uint8)
    first, before = array.copy(), [forbid(logits, [3, 1], masks) for logits in (array, tensor)]
    assert np.array_equal(tensor.cpu().numpy(), array)
    for row, mask in zip((3, 1), masks, strict=True):
        forbidden = [token for token in range(VOCAB) if not mask[token // 8] >> token % 8 & 1]
        assert np.isneginf(array[row]).nonzero()[0].tolist() == forbidden
    for logits, rows in zip((array, tensor), before, strict=True):
        put_back(logits, [3, 1], rows)
    assert np.array_equal(array, first)
    assert np.array_equal(tensor.cpu().numpy(), first)


@pytest.mark.parametrize("device", DEVICES)
def test_single_numbers_are_written(device):
    array, tensor = both(device)
    at, numbers = (np.array([2, 0, 2]), np.array([5, 99, 7])), np.array([1, 2, 3], np.float32)
    for logits in (array, tensor):
        write(logits, at, numbers)
    assert array[at].tolist() == [1, 2, 3]
    assert np.array_equal(tensor.cpu().numpy(), array)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vocab", [1, 5, 2048, 2049, 7000])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [2, 0]])
def test_rows_are_ranked_as_on_the_host(device, vocab, rows):
    """A row of distinct numbers, one with impossible tokens, one without an answer."""
    numbers = np.random.default_rng(5).permuted(np.tile(np.arange(vocab) / 500, (4, 1)), axis=1)
    numbers[1, 3:], numbers[2, 0] = -np.inf, np.nan
    logits = torch.from_numpy(numbers.astype(np.float32)).to(device)
    ids, logs = ranked_rows(logits, rows, 16, DeviceSampler())
    right_ids, right_logs = ranked_rows(logits.cpu().numpy(), rows, 16, None)
    assert np.array_equal(ids, right_ids)
    assert np.allclose(logs[ids >= 0], right_logs[ids >= 0], atol=1e-5)
