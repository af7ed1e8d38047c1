"""The check of a sound model against this machine: the executor that runs it can start here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtla.build.engine import describe_build
from trtla.errors import TrtlaError, UsageError, install_hint, is_installed
from trtla.formats.engine import Engine
from trtla.formats.engine_limits import BuildSettings
from trtla.formats.model import Model
from trtla.runtime.device import CPU
from trtla.runtime.models.cpu.native_code import FORWARD
from trtla.runtime.models.load import model_dtype, not_compiled
from trtla.trtllm.library import require_backend
from trtla.trtllm.rules import check_trtllm, gpu_capability
from trtla.trtllm.start import check_release_and_gpu


def check_here(model: Model, machine: Mapping[str, Any]) -> list[str]:
    """Return notes about a sound model on this machine; raises `TrtlaError` if it cannot run."""
    if model.engine is not None and model.is_trtllm:
        return _check_engine(model.engine)
    notes: list[str] = []
    if machine["device"] == "cpu" or not is_installed("torch"):
        notes += filter(None, [_without_compiled(model)])
    if machine["backend"]["auto"] != "torch" and not (model.engine or model.is_encoder_decoder):
        notes += _if_built(model)
    return notes


def _check_engine(engine: Engine) -> list[str]:
    release, capability = require_backend().version, gpu_capability()
    if capability is None:
        raise TrtlaError(
            "there is no GPU that PyTorch can use",
            "run it on the kind of GPU that it was built for, or build with --backend torch",
        )
    check_release_and_gpu(engine, str(release))
    config = engine.config
    return [*check_trtllm(config.pretrained_config, config.build_config, capability, release)]


def _without_compiled(model: Model) -> str | None:
    """Return a note about a model that PyTorch computes on the CPU; refuse it without PyTorch."""
    if model.is_encoder_decoder:
        reason: str | None = "it is an encoder-decoder"
    else:
        reason = FORWARD.problem()
        reason = reason or not_compiled(model.config, model_dtype("auto", model.config, CPU))
    if reason and not is_installed("torch"):
        needed = "it needs torch, which is not installed"
        raise UsageError(f"{needed}: {reason}", install_hint("torch"))
    return reason and f"PyTorch's operations compute it: {reason}"


def _if_built(model: Model) -> list[str]:
    """Return the notes of an engine that `trtla build` would make for TensorRT-LLM."""
    try:
        return [*describe_build(model.path, BuildSettings(), backend="tensorrt-llm").notes]
    except UsageError as error:
        return [f"TensorRT-LLM cannot run it: {error.message}; {error.hint}"]
