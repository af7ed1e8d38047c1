"""Loads a model: its type, and the class that runs it. Torch is imported only where it computes."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trtla.errors import UsageError, did_you_mean, install_hint, is_installed, named
from trtla.formats.config import CheckpointConfig
from trtla.formats.engine import EncoderDecoder, Engine
from trtla.formats.gguf.folder import model_name
from trtla.formats.rope_scaling import for_texts
from trtla.formats.support import shard_config
from trtla.machine import cpu
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.device import Device
from trtla.runtime.models.cpu.llama import NativeLlama, native_problem
from trtla.runtime.models.cpu.native_code import SLOWER, NotCompiled, note_slower
from trtla.runtime.models.cpu.packing import Packer, pack_model
from trtla.runtime.models.forward import Model
from trtla.runtime.models.kv_cache import block_bytes, check_memory
from trtla.runtime.ranks.opening import Ranks
from trtla.runtime.threads import set_torch_threads

if TYPE_CHECKING:
    from trtla.runtime.ranks.world import World

_log = logging.getLogger(__name__)


def load_engine(
    engine: Engine,
    dtype: str,
    device: Device,
    kv_cache_dtype: str = "auto",
    ranks: Ranks | None = None,
    least_text: int = 0,
) -> Model[Any]:
    """Load the fastest model here of an opened engine or folder, or one rank's part of it.

    A model that cannot be compiled runs in PyTorch, which is no error.

    Args:
        least_text: tokens of the shortest text that memory must have room for beside the weights.
    """
    config, part = engine.config.pretrained_config, (0, 1)
    scaling = for_texts(config.rotary_scaling, engine.config.build_config.max_text_len)
    config = config.model_copy(update={"rotary_scaling": scaling})
    world, shared = (None, None) if ranks is None else (ranks.world, ranks.shared)
    if world is not None:
        part = world.place.rank, world.place.size
        config = shard_config(config, world.place.size)
    encodes = isinstance(engine, EncoderDecoder)
    compiled = not encodes and device.type == "cpu" and not_compiled(config, dtype) is None
    if not compiled or (world is not None and shared is None):
        return _load_tensors(engine, config, part, dtype, device, world)

    cache_type = dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    cache = block_bytes(config, cache_type) * -(-least_text // TOKENS_PER_BLOCK)
    with engine.stored_weights(*part) as stored:
        weights, packer = list(stored), Packer(dtype)
        size = sum(packer.nbytes(weight) for _, weight in weights if len(weight.shape) == 2)
        check_memory(engine.name, size, cache, 1 if ranks is None else ranks.on_machine)
        panels = pack_model(config, weights, dtype)
    return NativeLlama(config, panels, dtype, int8_cache=cache_type == "int8", shared=shared)


def _load_tensors(
    engine: Engine,
    config: CheckpointConfig,
    part: tuple[int, int],
    dtype: str,
    device: Device,
    world: World | None,
) -> Model[Any]:
    """A model that computes in PyTorch: a Llama on any device, or an encoder-decoder."""
    if not is_installed("torch"):
        raise _without_torch(engine, dtype)
    import torch

    from trtla.runtime.models.cuda_check import choose_path
    from trtla.runtime.models.llama import LlamaModel
    from trtla.runtime.models.t5 import load_t5

    kind, torch_device = getattr(torch, dtype), torch.device(str(device))
    if torch_device.type == "cuda":
        # cuDNN's attention is compiled again for every length: on Hopper 30 ms for each token.
        torch.backends.cuda.enable_cudnn_sdp(False)
    else:
        set_torch_threads()
    if isinstance(engine, EncoderDecoder):
        return load_t5(engine, kind, torch_device)
    path = choose_path(config, kind, torch_device) if torch_device.type == "cuda" else None
    if path is not None and not path.fast:
        _log.warning("decoding on %s is slower than it could be: %s", torch_device, path)
    model = LlamaModel(config, engine.weights(*part), kind, torch_device, world=world)
    if path is not None and path.fast:
        model.use_fast_path()
    return model


def _without_torch(engine: Engine, dtype: str) -> UsageError:
    """The refusal of a model that only PyTorch runs, which is not installed."""
    config, hint = engine.config.pretrained_config, install_hint("torch")
    try:
        problem = native_problem(config, dtype)
        if problem and native_problem(config, "float32") is None:
            hint += f", or use {named('dtype')} float32"
    except NotCompiled as error:
        problem, hint = str(error), f"{error.hint}, or {hint}"
    if isinstance(engine, EncoderDecoder):
        problem, hint = "it is an encoder-decoder", install_hint("torch")
    reason = f": {problem}" if problem else ""
    name = model_name(engine.name)
    return UsageError(f"{name} needs torch, which is not installed{reason}", hint)


def check_cache_dtype(kv_cache_dtype: str, engine: Engine, dtype: str, device: Device) -> None:
    """Raise `UsageError` where a model cannot have its K/V cache in this type."""
    if kv_cache_dtype == "auto":
        return
    config, instead = engine.config.pretrained_config, ""
    if isinstance(engine, EncoderDecoder):
        problem: str | None = f"{engine.name} is an encoder-decoder"
    elif device.type != "cpu":
        problem, instead = f"the device is {device}", f", or use {named('device')} cpu"
    else:
        problem = not_compiled(config, dtype)
        if problem and not_compiled(config, "float32") is None:
            instead = f", or use {named('dtype')} float32"
    if problem:
        raise UsageError(
            f"kv_cache_dtype {kv_cache_dtype} needs the compiled forward of CPUs: {problem}",
            f"omit {named('kv_cache_dtype')}{instead}",
        )


def not_compiled(config: CheckpointConfig, dtype: str) -> str | None:
    """The reason why a model on the CPU runs through PyTorch's operations; None: it does not."""
    if os.environ.get("TRTLA_COMPILED") == "0":
        return "TRTLA_COMPILED=0 says so"
    try:
        return native_problem(config, dtype)
    except NotCompiled as error:
        if is_installed("torch"):
            note_slower(error, SLOWER)
        return str(error)


_DTYPES = ("float32", "bfloat16", "float16")


def read_in(engine: Engine, dtype: str) -> Engine:
    """The engine with weights that are read in the type that was asked for; `auto`: in its own.

    A float32 tensor stays float32 so, where config.json says bfloat16. Engines that were built keep
    their type.
    """
    if dtype not in _DTYPES or not engine.is_in_memory or isinstance(engine, EncoderDecoder):
        return engine
    config = engine.config.pretrained_config.model_copy(update={"dtype": dtype})
    return replace(engine, config=engine.config.model_copy(update={"pretrained_config": config}))


def model_dtype(dtype: str, checkpoint: CheckpointConfig, device: Device) -> str:
    """Resolve a dtype as `resolve_dtype` does; for weights in blocks on a CPU, that of the cache.

    A cache of bfloat16 needs no arithmetic of that type.
    """
    free = checkpoint.block_types and device.type == "cpu" and dtype == "auto"
    narrow = free and checkpoint.dtype != "float32"
    if narrow and not_compiled(checkpoint, "bfloat16") is None:
        return "bfloat16"
    return resolve_dtype(dtype, checkpoint.dtype, device.type)


def resolve_dtype(dtype: str, engine_dtype: str, device_type: str) -> str:
    """The type of weights and activations, on cpu or cuda.

    auto takes the engine's, but float32 on a CPU that has no arithmetic for that type: emulated
    half precision is slower there than float32.
    """
    if dtype == "auto":
        slow = device_type == "cpu" and not _cpu_computes(engine_dtype)
        return "float32" if slow else engine_dtype
    if dtype not in _DTYPES:
        guess = did_you_mean(dtype, _DTYPES)
        raise UsageError(f"dtype {dtype!r} is not known", f"{guess}use auto, {', '.join(_DTYPES)}")
    return dtype


def _cpu_computes(dtype: str) -> bool:
    available = cpu().instruction_sets
    if dtype == "float16":
        return "amx_fp16" in available and is_installed("torch")
    return dtype == "float32" or not {"amx_tile", "avx512_bf16"}.isdisjoint(available)
