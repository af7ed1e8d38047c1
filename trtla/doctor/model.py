"""Checks whether one model, checkpoint or engine can run on this machine, and why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtla.doctor.folder import Contents, inspected
from trtla.doctor.report import Report
from trtla.errors import TrtlaError
from trtla.formats.compiled import stage_problems
from trtla.formats.config import CheckpointConfig
from trtla.formats.gguf.folder import model_folder
from trtla.formats.plan import block_names
from trtla.machine import Gpu
from trtla.runtime.models.cpu.native_code import FORWARD
from trtla.trtllm import rules as kernels
from trtla.trtllm.library import require_backend, same_release
from trtla.trtllm.rules import Verdict

_DECIDING = (
    *("dtype", "quant_algo", "kv_cache_quant_algo", "head_size"),
    *("num_attention_heads", "num_key_value_heads", "world_size"),
)
"""What decides whether a model runs, by the names in config.json."""


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """A model against this machine."""

    path: str
    kind: str
    backend: str | None
    reason: str
    """Why this backend."""
    model: dict[str, Any] = field(default_factory=dict)
    """What decided: sizes, types, lookahead. Empty where config.json is broken."""
    problems: tuple[str, ...] = ()
    """Why it cannot run."""
    warnings: tuple[str, ...] = ()


def check_model(path: str | Path, report: Report) -> ModelCheck:
    """Check a folder or a GGUF file against the machine of the report."""
    backend, reason = report.backend, report.reason
    found, contents = inspected(path)
    kind, problems = found["kind"], found["problems"]
    if contents is None:
        return ModelCheck(str(path), kind, backend, reason, problems=tuple(problems))
    if contents.engine is not None:
        backend, reason = contents.engine.backend, f"{model_folder(path)} was built for it"
    elif contents.encoder_decoder:
        backend, reason = "torch", "only the torch executor runs encoder-decoders"
    warnings: list[str] = []
    for verdict in _verdicts(contents, report) if backend == "tensorrt-llm" else ():
        if verdict.allowed is False:
            problems.append(verdict.reason)
        elif verdict.allowed is None:
            warnings.append(verdict.reason)
    data = contents.config.model_dump()
    sizes = {**data, **data["quantization"], **data["mapping"]}
    shown = {**{key: sizes[key] for key in _DECIDING}, "lookahead": _has_lookahead(contents)}
    shown["block_types"] = block_names(contents.config) or None
    shown["block_arithmetic"] = _block_arithmetic(contents.config, report)
    return ModelCheck(str(path), kind, backend, reason, shown, tuple(problems), tuple(warnings))


def _block_arithmetic(config: CheckpointConfig, report: Report) -> str | None:
    """How weights in blocks run on this machine's own device; None: there are none."""
    if not config.block_types:
        return None
    if report.device is None:
        return f"not at all: {report.reason}"
    if report.device != "cpu":
        return f"dequantised at load: {report.device} has no products of blocks"
    problem = _not_compiled(config)
    return f"dequantised at load: {problem}" if problem else "in integers, compiled"


def _not_compiled(config: CheckpointConfig) -> str | None:
    """Why the CPU's forward is not compiled for a model, without compiling it; None: it is."""
    if not FORWARD.is_there():
        return FORWARD.problem()
    import torch

    from trtla.runtime.models.load import not_compiled

    return not_compiled(config, torch.float32)


def _has_lookahead(contents: Contents) -> bool:
    """False for engines without drafts, which need no lookahead kernels."""
    engine = contents.engine
    return engine is None or engine.config.build_config.max_draft_len > 0


def _verdicts(contents: Contents, report: Report) -> Iterator[Verdict]:
    """What TensorRT-LLM needs, installed or not."""
    yield from _library_verdicts(contents, report)
    yield from _gpu_verdicts(contents, report)
    config, lookahead = contents.config, _has_lookahead(contents)
    if contents.engine is None:  # an engine's are among the problems of the folder itself
        yield kernels.weight_types(config)
        yield kernels.weight_only_sizes(config)
        yield kernels.rope_scaling(config.rope_type)
        for problem in stage_problems(config, lookahead=lookahead):
            yield Verdict(False, problem.message)
    if lookahead:
        yield kernels.head_size(config.head_size)
        yield kernels.query_group(config.num_attention_heads, config.num_key_value_heads)
        yield kernels.activations(config.dtype)


def _library_verdicts(contents: Contents, report: Report) -> Iterator[Verdict]:
    try:
        require_backend()
    except TrtlaError as error:
        yield Verdict(False, error.message)
        return
    installed = report.library.version
    built = contents.engine.config.version if contents.engine else None
    if built and installed and not same_release(built, installed):
        yield Verdict(False, f"built with TensorRT-LLM {built}, and {installed} is installed")


def _gpu_verdicts(contents: Contents, report: Report) -> Iterator[Verdict]:
    ranks = contents.config.mapping.world_size
    gpus = report.machine.gpus[:ranks] if report.machine.usable else ()
    if not gpus:
        yield Verdict(False, "there is no GPU that PyTorch can use")
    elif len(gpus) < ranks:
        yield Verdict(None, f"split over {ranks} GPUs, and this machine has {len(gpus)}")
    for gpu in gpus:
        for verdict in _on_gpu(contents, gpu):
            yield Verdict(verdict.allowed, f"GPU {gpu.index}: {verdict.reason}")


def _on_gpu(contents: Contents, gpu: Gpu) -> Iterator[Verdict]:
    if _has_lookahead(contents):
        yield kernels.lookahead_on(gpu.capability)
    config, engine = contents.config, contents.engine
    yield kernels.weight_only_on(config, gpu.capability)
    if (config.fp8 or config.fp8_kv_cache) and not kernels.fp8_on(gpu.capability):
        yield Verdict(False, f"FP8 needs compute capability {kernels.show(kernels.FP8_CAPABILITY)}")
    here = kernels.show(gpu.capability) if gpu.capability else None
    built = engine.manifest.compute_capability if engine and engine.manifest else None
    if built and here and built != here:
        yield Verdict(False, f"compute capability is {here}, built for {built}")
