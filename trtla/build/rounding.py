"""Models with int8 and int4 weights, rounded as `runtime.models.rounding` does.

TensorRT-LLM's integer weights are W8A16, W4A16 and W4A16_AWQ. For the first two the library rounds
plain weights when it loads them (modeling_utils.py, preprocess_weights): a checkpoint only names
the algorithm. W4A16_AWQ is stored as NVIDIA's modelopt exports it; the library reorders it for its
kernels when it builds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy import ndarray

from trtla.errors import UsageError
from trtla.formats.blocks import BLOCK_TYPES
from trtla.formats.config import AWQ_GROUP_SIZES, CheckpointConfig, Quantization
from trtla.formats.plan import awq_input_scale, awq_scales, fp8_groups
from trtla.formats.shapes import EMBEDDING, LM_HEAD, hf_shapes, linear_weights
from trtla.formats.support import check_mapping
from trtla.formats.tensors import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    TensorSource,
    cast,
    pack_int4,
    row_spans,
)
from trtla.runtime.models.rounding import (
    INTEGERS,
    check_numbers,
    codes_of,
    round_rows,
    rounded,
)
from trtla.trtllm.rules import weight_only_sizes

GROUP_SIZES = (32, 64, 128)
"""Inputs that share a scale."""
ALGORITHMS = {"w8a16": "W8A16", "w4a16": "W4A16", "w4a16_awq": "W4A16_AWQ"}
"""Names of --dtype, with TensorRT-LLM's."""

_TYPES = {"float32": FLOAT32, "float16": FLOAT16, "bfloat16": BFLOAT16}


def integer_config(config: CheckpointConfig, dtype: str, group_size: int) -> CheckpointConfig:
    """Return the config with all linear weights in blocks; embedding and lm_head are int8 for
    int4."""
    if group_size not in GROUP_SIZES:
        raise UsageError(f"group size {group_size} is unknown", "use 32, 64 or 128")
    shapes = linear_weights(config)
    widths = {name: shape[1] for name, shape in shapes.items()}
    fits = [size for size in GROUP_SIZES if not any(w % size for w in widths.values())]
    wrong = next((name for name, width in widths.items() if width % group_size), None)
    if wrong is not None:
        raise UsageError(
            f"group size {group_size} does not divide the {widths[wrong]} inputs of {wrong}",
            f"use --group-size {fits[-1]}" if fits else "no group size does; use another --dtype",
        )
    index = GROUP_SIZES.index(group_size)
    ends, layers = INTEGERS["int8"][index], INTEGERS[dtype][index]
    types = {name: ends if name in (EMBEDDING, LM_HEAD) else layers for name in shapes}
    result = config.model_copy(update={"quantization": Quantization(block_types=types)})
    check_mapping(result)
    return result


class RoundedSource:
    """A model as a source of rows of blocks.

    Args:
        types: the type of blocks of every weight that gets them.
        importance: float32 [inputs], how much an error counts, by the weight's name.
    """

    def __init__(
        self, model: TensorSource, types: Mapping[str, str], importance: Mapping[str, ndarray]
    ) -> None:
        self._model, self._types, self._importance = model, types, importance

    def read(self, name: str, start: int, stop: int) -> ndarray:
        """Return rows [start, stop): blocks of a weight, else as stored."""
        rows = self._model.read(name, start, stop)
        if name not in self._types:
            return rows
        kind, rows = BLOCK_TYPES[self._types[name]], cast(rows, FLOAT32)
        check_numbers(name, rows, kind)
        return round_rows(kind, rows, self._importance.get(name))


def weight_only_config(
    config: CheckpointConfig, dtype: str, group_size: int | None
) -> CheckpointConfig:
    """Return the config with an algorithm of `ALGORITHMS`; W4A16_AWQ's default group size is
    128."""
    quantization = Quantization(quant_algo=ALGORITHMS[dtype])
    if dtype == "w4a16_awq":
        quantization = _awq(128 if group_size is None else group_size)
    result = config.model_copy(update={"quantization": quantization})
    sizes = weight_only_sizes(result)
    if sizes.allowed is False:
        smaller = ["--group-size 64"] if (result.awq_group_size or 0) > 64 else []
        fewer = ["a smaller --tp-size"] if config.mapping.tp_size > 1 else []
        raise UsageError(sizes.reason, f"use {' or '.join([*smaller, *fewer, 'another --dtype'])}")
    return result


def _awq(group_size: int) -> Quantization:
    """Return the keys that modelopt writes.

    A list of modules replaces the default one, which excludes the embedding too. That matters for
    W8A16 and W4A16, which have no list; W4A16_AWQ is for linears only (quantization/quantize.py).
    """
    if group_size not in AWQ_GROUP_SIZES:
        raise UsageError(f"group size {group_size} is unknown to W4A16_AWQ", "use 64 or 128")
    return Quantization(
        quant_algo="W4A16_AWQ",
        group_size=group_size,
        has_zero_point=False,
        pre_quant_scale=True,
        exclude_modules=["lm_head"],
    )


class AwqSource:
    """A model as a source of W4A16_AWQ: int4 weights, their scales, and input scales of 1.

    The scales of a search are cached, less than 2 % of the model. They have the precision of the
    activations' type, to which TensorRT-LLM casts them, so that codes fit the actual products.

    `importance` is that of `RoundedSource`.
    """

    def __init__(
        self, model: TensorSource, config: CheckpointConfig, importance: Mapping[str, ndarray]
    ) -> None:
        groups = fp8_groups(config)
        self._model, self._importance, self._shapes = model, importance, hf_shapes(config)
        self._kind = BLOCK_TYPES[f"Q4_G{config.awq_group_size}"]
        self._dtype = _TYPES[config.dtype]
        self._weights = {weight for group in groups.values() for weight in group}
        self._weight_of = {awq_scales(weight): weight for weight in self._weights}
        self._vectors = {awq_input_scale(linear) for linear in groups}
        self._cache: dict[str, ndarray] = {}

    def read(self, name: str, start: int, stop: int) -> ndarray:
        """Return rows [start, stop), for a weight pairs of outputs."""
        if name in self._weights:
            rows = cast(self._model.read(name, 2 * start, 2 * stop), FLOAT32)
            scales = self._scales(name)[2 * start : 2 * stop, :, None]
            codes = codes_of(self._kind, rows.reshape(*scales.shape[:2], -1), scales)
            return pack_int4(codes.reshape(len(rows), -1))
        if name in self._weight_of:
            return cast(self._scales(self._weight_of[name])[start:stop], FLOAT32)
        if name in self._vectors:
            return np.ones(stop - start, np.float32)
        return self._model.read(name, start, stop)

    def _scales(self, weight: str) -> ndarray:
        if weight not in self._cache:
            spans = row_spans((0, self._shapes[weight][0]), self._shapes[weight][1])
            self._cache[weight] = np.concatenate([self._search(weight, *span) for span in spans])
        return self._cache[weight]

    def _search(self, weight: str, start: int, stop: int) -> ndarray:
        rows = cast(self._model.read(weight, start, stop), FLOAT32)
        importance = self._importance.get(weight)
        check_numbers(weight, rows, self._kind)
        coded = rounded(self._kind, rows, importance, self._dtype)
        return np.concatenate([scales.squeeze(-1) for _, scales in coded])
