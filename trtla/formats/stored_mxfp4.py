"""MXFP4 weights as Hugging Face's files hold them: codes and scales in two tensors."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy import ndarray

from trtla.formats.config import BLOCK_SIZES
from trtla.formats.stored_form import MXFP4, ReadRows

_INPUTS, _BYTES = BLOCK_SIZES[MXFP4]


def mxfp4_reader(read_codes: ReadRows, read_scales: ReadRows) -> ReadRows:
    """Returns a reader of rows of blocks, uint8 [rows, bytes of a row]."""
    return lambda start, stop: mxfp4_blocks(read_codes(start, stop), read_scales(start, stop))


def mxfp4_blocks(codes: ndarray, scales: ndarray) -> ndarray:
    """Rows of blocks in ggml's layout.

    Args:
        codes: uint8 [rows, inputs / 2], a byte for two neighbouring inputs, the first in its low
            half; in ggml's layout a byte's are 16 inputs apart.
        scales: uint8 [rows, blocks], exponents of 2.
    """
    packed = codes.reshape(*scales.shape, -1)
    inputs = np.stack((packed & 15, packed >> 4), -1).reshape(*scales.shape, _INPUTS)
    blocks = np.empty((*scales.shape, _BYTES), np.uint8)
    blocks[..., 0] = scales
    first, second = np.split(inputs, 2, axis=-1)
    blocks[..., 1:] = first | second << 4
    return blocks.reshape(len(codes), -1)


def block_types(weights: Iterable[str]) -> dict[str, str]:
    """The type of each weight that is in blocks: all experts' are."""
    return {name: MXFP4 for name in weights if ".experts." in name}
