"""Which model runs an engine's weights: compiled for the CPU where that can be, else PyTorch's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trtla.build.encoder_decoder import EncoderDecoder
from trtla.config import CheckpointConfig
from trtla.runtime.cpu.compiler import NotCompiled
from trtla.runtime.cpu.native_llama import NativeLlama, native_problem
from trtla.runtime.model import LlamaModel

if TYPE_CHECKING:
    from trtla.build.engine import Engine
    from trtla.runtime.encoder_decoder.t5_model import T5Model


def load_model(
    config: CheckpointConfig,
    weights: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype,
    device: torch.device,
) -> LlamaModel | NativeLlama:
    """The model that is fastest here; what keeps it from being compiled is no error."""
    if device.type == "cpu" and not_compiled(config, dtype) is None:
        return NativeLlama(config, weights, dtype)
    return LlamaModel(config, weights, dtype, device)


def load_engine(
    engine: Engine, dtype: torch.dtype, device: torch.device
) -> LlamaModel | NativeLlama | T5Model:
    """The model of an opened engine or folder."""
    if isinstance(engine, EncoderDecoder):
        from trtla.runtime.encoder_decoder.load import load_t5

        return load_t5(engine, dtype, device)
    return load_model(engine.config.pretrained_config, engine.weights(), dtype, device)


def not_compiled(config: CheckpointConfig, dtype: torch.dtype) -> str | None:
    """Why a model on the CPU runs through PyTorch's operations; None: it does not."""
    if os.environ.get("TRTLA_COMPILED") == "0":
        return "TRTLA_COMPILED=0 says so"
    try:
        return native_problem(config, dtype)
    except NotCompiled as error:
        return str(error)
