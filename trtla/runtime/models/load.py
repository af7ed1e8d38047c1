"""Loads a model: its device, its type, and the class that runs it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from trtla.errors import UsageError
from trtla.formats.config import CheckpointConfig
from trtla.formats.engine import EncoderDecoder
from trtla.formats.support import shard_config
from trtla.runtime.models.cpu.compiler import NotCompiled
from trtla.runtime.models.cpu.llama import NativeLlama, native_problem
from trtla.runtime.models.cpu.native_code import SLOWER, tell_slower
from trtla.runtime.models.cuda_check import choose_path
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.ranks.opening import Ranks
from trtla.settings.fields import is_whole, shown

if TYPE_CHECKING:
    from trtla.formats.engine import Engine
    from trtla.formats.tensors import Weight
    from trtla.runtime.models.t5.model import T5Model


def load_model(
    config: CheckpointConfig,
    weights: Iterable[tuple[str, Weight]],
    dtype: torch.dtype,
    device: torch.device,
    kv_cache_dtype: str = "auto",
    ranks: Ranks | None = None,
) -> LlamaModel | NativeLlama:
    """The model that is fastest here; what keeps it from being compiled is no error."""
    _prepare(device)
    world, shared = (None, None) if ranks is None else (ranks.world, ranks.shared)
    compiled = device.type == "cpu" and not_compiled(config, dtype) is None
    if compiled and (world is None or shared is not None):
        int8 = kv_cache_dtype == "int8"
        return NativeLlama(config, weights, dtype, int8_cache=int8, shared=shared)
    fast = device.type == "cuda" and _fast_path(config, dtype, device)
    model = LlamaModel(config, weights, dtype, device, world=world)
    if fast:
        model.use_fast_path()
    return model


def _prepare(device: torch.device) -> None:
    if device.type == "cuda":
        # cuDNN's attention is compiled anew for every length: on Hopper 30 ms for each token.
        torch.backends.cuda.enable_cudnn_sdp(False)


def _fast_path(config: CheckpointConfig, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether it is taken on a GPU; a warning says why it is not."""
    path = choose_path(config, dtype, device)
    if not path.fast:
        _log.warning("decoding on %s is slower than it could be: %s", device, path)
    return path.fast


def load_engine(
    engine: Engine,
    dtype: torch.dtype,
    device: torch.device,
    kv_cache_dtype: str = "auto",
    ranks: Ranks | None = None,
) -> LlamaModel | NativeLlama | T5Model:
    """The model of an opened engine or folder, or one rank's part of it."""
    if isinstance(engine, EncoderDecoder):
        from trtla.runtime.models.t5.load import load_t5

        _prepare(device)
        return load_t5(engine, dtype, device)
    config, rank, size = engine.config.pretrained_config, 0, 1
    if ranks is not None:
        rank, size = ranks.world.place.rank, ranks.world.place.size
        config = shard_config(config, size)
    weights = engine.weights(rank, size)
    return load_model(config, weights, dtype, device, kv_cache_dtype, ranks)


def check_cache_dtype(
    kv_cache_dtype: str, engine: Engine, dtype: torch.dtype, device: torch.device
) -> None:
    """Raise `UsageError` where a model cannot have its K/V cache in this type."""
    if kv_cache_dtype == "auto":
        return
    config, instead = engine.config.pretrained_config, ""
    if isinstance(engine, EncoderDecoder):
        problem: str | None = f"{engine.name} is an encoder-decoder"
    elif device.type != "cpu":
        problem, instead = f"the device is {device}", ", or use --device cpu"
    else:
        problem = not_compiled(config, dtype)
        if problem and not_compiled(config, torch.float32) is None:
            instead = ", or use --dtype float32"
    if problem:
        raise UsageError(
            f"kv_cache_dtype {kv_cache_dtype} needs the compiled forward of CPUs: {problem}",
            f"omit --kv-cache-dtype{instead}",
        )


def not_compiled(config: CheckpointConfig, dtype: torch.dtype) -> str | None:
    """Why a model on the CPU runs through PyTorch's operations; None: it does not."""
    if os.environ.get("TRTLA_COMPILED") == "0":
        return "TRTLA_COMPILED=0 says so"
    try:
        return native_problem(config, dtype)
    except NotCompiled as error:
        tell_slower(error, SLOWER)
        return str(error)


_log = logging.getLogger(__name__)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MOST_THREADS = 1024


def resolve_device(device: str, flag: str = "--device") -> torch.device:
    """auto, cpu, cuda or cuda:N; auto takes CUDA where there is one.

    Of CUDA always with its number: without one, a tensor goes where the thread that makes it is.

    Args:
        flag: what the hint of an error asks to change.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = torch.device("meta")
    if chosen.type not in ("cpu", "cuda"):
        raise UsageError(f"device {device!r} is not known", "use auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if chosen.type == "cuda" else 0
    if chosen.type == "cuda" and (chosen.index or 0) >= count:
        others = "cpu, or install a PyTorch build for your GPU's driver"
        if count:
            others = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise UsageError(
            f"device {device!r} is not there: PyTorch sees {count} of its kind",
            f"use {flag} {others}",
        )
    if chosen.type == "cuda" and chosen.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return chosen


def model_dtype(dtype: str, checkpoint: CheckpointConfig, device: torch.device) -> torch.dtype:
    """As `resolve_dtype`; weights in blocks on a CPU leave only the K/V cache to choose for.

    A cache of bfloat16 needs no arithmetic of that type.
    """
    free = checkpoint.block_types and device.type == "cpu" and dtype == "auto"
    narrow = free and checkpoint.dtype != "float32"
    if narrow and not_compiled(checkpoint, torch.bfloat16) is None:
        return torch.bfloat16
    return resolve_dtype(dtype, checkpoint.dtype, device)


def resolve_dtype(dtype: str, engine_dtype: str, device: torch.device) -> torch.dtype:
    """The type of weights and activations.

    auto takes the engine's, but float32 on a CPU that has no arithmetic for that type: emulated
    half precision is slower there than float32.
    """
    if dtype == "auto":
        chosen = _DTYPES[engine_dtype]
        return torch.float32 if device.type == "cpu" and not _cpu_computes(chosen) else chosen
    if dtype not in _DTYPES:
        raise UsageError(f"dtype {dtype!r} is not known", f"use auto, {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def _cpu_computes(dtype: torch.dtype) -> bool:
    capabilities = torch.backends.cpu.get_cpu_capability()
    if dtype == torch.float32:
        return True
    if dtype == torch.bfloat16:
        return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())
    return bool("AVX512" in capabilities and torch.cpu._is_amx_fp16_supported())


def set_threads(count: int | None) -> None:
    """Compute with so many threads on a CPU from now on; None changes nothing."""
    if count is None:
        return
    if not is_whole(count) or not 1 <= count <= _MOST_THREADS:
        hint = f"use 1 to {_MOST_THREADS}; one a core is best"
        raise UsageError(f"threads is {shown(count)}", hint)
    torch.set_num_threads(count)
