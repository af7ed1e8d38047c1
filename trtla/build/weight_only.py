"""TensorRT-LLM's checkpoints with integer weights: W8A16, W4A16 and W4A16_AWQ.

For the first two the library rounds plain weights when it loads them (modeling_utils.py,
preprocess_weights): a checkpoint names the algorithm and no more. W4A16_AWQ is stored as NVIDIA's
modelopt exports it; the library brings it into the order of its kernels when it builds.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trtla.build.rounding import check_numbers, codes_of, rounded
from trtla.errors import UsageError
from trtla.formats.blocks import BLOCK_TYPES
from trtla.formats.config import AWQ_GROUP_SIZES, CheckpointConfig, Quantization
from trtla.formats.plan import awq_input_scale, awq_scales, fp8_groups, hf_shapes
from trtla.formats.tensors import TensorSource, pack_int4, row_spans, torch_dtype
from trtla.trtllm.rules import weight_only_sizes

ALGORITHMS = {"w8a16": "W8A16", "w4a16": "W4A16", "w4a16_awq": "W4A16_AWQ"}
"""Names of --dtype, and TensorRT-LLM's."""


def weight_only_config(
    config: CheckpointConfig, dtype: str, group_size: int | None
) -> CheckpointConfig:
    """The model with an algorithm of `ALGORITHMS`; W4A16_AWQ has a group size, by default 128."""
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
    """The keys that modelopt writes.

    A list of modules replaces the default one, which spares the embedding too. That matters in
    W8A16 and W4A16, which have none; W4A16_AWQ is for linears only (quantization/quantize.py).
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
    """A model as a source of W4A16_AWQ: int4 weights, their scales, and input scales of one.

    The scales that a search found are kept, less than 2 % of the model. They have the numbers of
    the activations' type, to which TensorRT-LLM casts them, so that codes fit what is multiplied.

    Args:
        model: reads the unquantised weights.
        config: with W4A16_AWQ.
        importance: float32 [inputs], how much an error counts, by the weight's name.
    """

    def __init__(
        self, model: TensorSource, config: CheckpointConfig, importance: Mapping[str, Tensor]
    ) -> None:
        groups = fp8_groups(config)
        self._model, self._importance, self._shapes = model, importance, hf_shapes(config)
        self._kind = BLOCK_TYPES[f"Q4_G{config.awq_group_size}"]
        self._dtype = torch_dtype(config.dtype)
        self._weights = {weight for group in groups.values() for weight in group}
        self._weight_of = {awq_scales(weight): weight for weight in self._weights}
        self._vectors = {awq_input_scale(linear) for linear in groups}
        self._found: dict[str, Tensor] = {}

    def read(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop), for a weight pairs of outputs."""
        if name in self._weights:
            rows = self._model.read(name, 2 * start, 2 * stop)
            scales = self._scales(name)[2 * start : 2 * stop, :, None]
            values = rows.float().view(*scales.shape[:2], -1)
            return pack_int4(codes_of(self._kind, values, scales).flatten(1))
        if name in self._weight_of:
            return self._scales(self._weight_of[name])[start:stop].float()
        if name in self._vectors:
            return torch.ones(stop - start)
        return self._model.read(name, start, stop)

    def _scales(self, weight: str) -> Tensor:
        if weight not in self._found:
            spans = row_spans((0, self._shapes[weight][0]), self._shapes[weight][1])
            self._found[weight] = torch.cat([self._search(weight, *span) for span in spans])
        return self._found[weight]

    def _search(self, weight: str, start: int, stop: int) -> Tensor:
        rows, importance = self._model.read(weight, start, stop), self._importance.get(weight)
        check_numbers(weight, rows, self._kind)
        found = rounded(self._kind, rows, importance, self._dtype)
        return torch.cat([scales.squeeze(-1) for _, scales in found])
