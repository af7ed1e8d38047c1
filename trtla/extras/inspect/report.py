"""The report of `trtla doctor`: this machine, what it can run, and checks of one model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtla.console import counted
from trtla.errors import TrtlaError, install_hint, is_installed, sentence
from trtla.extras.inspect.folder import inspected
from trtla.formats.config import CheckpointConfig
from trtla.formats.engine_limits import stage_problems
from trtla.formats.model import Model
from trtla.formats.plan import block_names
from trtla.machine import Gpu, Machine, look
from trtla.runtime.device import CPU
from trtla.runtime.models.cpu.native_code import FORWARD, TREES
from trtla.trtllm import library as trtllm_library
from trtla.trtllm import rules as kernels
from trtla.trtllm.library import Library, require_backend, same_release
from trtla.trtllm.rules import Verdict
from trtla.version import __version__

_DECIDING = (
    *("dtype", "quant_algo", "kv_cache_quant_algo", "head_size"),
    *("num_attention_heads", "num_key_value_heads", "world_size"),
)
"""Properties that decide whether a model runs, by their names in config.json."""


@dataclass(frozen=True, slots=True)
class Report:
    """The state of the machine and of the libraries."""

    machine: Machine
    library: Library
    backend: str | None
    """The choice of `trtla build --backend auto`; None if PyTorch is broken."""
    reason: str
    """The reason for the backend."""
    device: str | None
    """The default device of trtla's own executor."""
    cpu_forward: str
    """The implementation of the CPU's forward."""
    candidate_trees: str
    """The implementation of drafting."""
    cuda_forward: str | None
    """The implementation of a common model shape on CUDA; None without such a device."""
    warnings: tuple[str, ...]


def examine() -> Report:
    """Examine the machine and TensorRT-LLM, which is imported if it is installed."""
    machine, library = look(), trtllm_library.probe()
    backend, reason, device = _choice()
    findings = tuple(_findings(machine, library))
    states = (FORWARD.state(), TREES.state(), _cuda_forward() if machine.usable else None)
    return Report(machine, library, backend, reason, device, *states, findings)


def _cuda_forward() -> str:
    from trtla.runtime.models.cuda_check import choose_path

    try:
        import torch

        config = CheckpointConfig(  # of Llama 3
            architecture="LlamaForCausalLM",
            dtype="bfloat16",
            vocab_size=128256,
            hidden_size=4096,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_size=128,
            intermediate_size=14336,
            max_position_embeddings=8192,
        )
        return str(choose_path(config, torch.bfloat16, torch.device("cuda")))
    except Exception as error:  # drivers and PyTorch's builds for them fail in many ways
        return sentence(error)


def _choice() -> tuple[str | None, str, str | None]:
    try:
        from trtla.build.engine import choose_backend
        from trtla.runtime.device import resolve_device

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # trtla.machine has recorded them
            return *choose_backend(), str(resolve_device("auto"))
    except TrtlaError as error:
        return None, error.message, None
    except Exception as error:  # both import PyTorch, which may be broken in many ways
        return None, sentence(error), None


def _findings(machine: Machine, library: Library) -> Iterator[str]:
    yield from _python_findings(machine)
    yield from _library_findings(library)
    for gpu in machine.gpus:
        verdict = kernels.lookahead_on(gpu.capability)
        if not verdict.allowed:
            state = "cannot run" if verdict.allowed is False else "is not verified"
            yield (
                f"lookahead on TensorRT-LLM {state} on GPU {gpu.index} ({gpu.name}): "
                f"{verdict.reason}; use --backend torch"
            )


def _python_findings(machine: Machine) -> Iterator[str]:
    torch = machine.torch
    if torch.problem:
        part = "PyTorch" if torch.version else "PyTorch cannot be imported"
        yield f"{part}: {torch.problem}"
    if torch.version and machine.gpus and not machine.usable:
        built = f"for CUDA {torch.cuda}" if torch.cuda else "without CUDA"
        yield (
            f"nvidia-smi lists {counted(len(machine.gpus), 'GPU')}, but "
            f"PyTorch {torch.version}, built {built}, sees none: install its build for CUDA that "
            "your driver serves"
        )
    if torch.version is None and not torch.problem and machine.gpus:
        yield f"GPUs need PyTorch, which is not installed: {install_hint('torch')}"


def _library_findings(library: Library) -> Iterator[str]:
    if library.version is None:
        return
    if library.is_foreign and library.has_backend:
        yield (
            f"TensorRT-LLM {library.version} has the TensorRT backend, but trtla is written for "
            f"tensorrt-llm{trtllm_library.SUPPORTED}"
        )
    try:
        require_backend()
    except TrtlaError as error:
        yield f"{error.message}: {error.hint}"
    else:
        yield from filter(None, [trtllm_library.known_trouble(library.version)])
        for part in library.missing:
            yield f"TensorRT-LLM {library.version} lacks {part}, which trtla does not need"


def document(report: Report) -> dict[str, Any]:
    """Return the report in JSON types; unknown values are null, memory is in bytes."""
    machine = asdict(report.machine)
    usable = machine.pop("usable")
    return {
        "trtla": __version__,
        **machine,
        "gpus": [_gpu_document(gpu) for gpu in report.machine.gpus],
        "gpus_usable": usable,
        "tensorrt_llm": {
            **asdict(report.library),
            "has_backend": report.library.has_backend,
            "supported": trtllm_library.SUPPORTED,
        },
        "backend": {"auto": report.backend, "reason": report.reason},
        "torch_device": report.device,
        "cpu_forward": report.cpu_forward,
        "candidate_trees": report.candidate_trees,
        "cuda_forward": report.cuda_forward,
        "lookahead_kernels": {
            "head_sizes": kernels.HEAD_SIZES,
            "jit_head_sizes": {"multiple_of": kernels.JIT_MULTIPLE, "largest": kernels.JIT_LARGEST},
            "max_query_group": kernels.MAX_QUERY_GROUP,
        },
        "warnings": report.warnings,
    }


def _gpu_document(gpu: Gpu) -> dict[str, Any]:
    verdict = kernels.lookahead_on(gpu.capability)
    return {
        "index": gpu.index,
        "name": gpu.name,
        "compute_capability": kernels.show(gpu.capability) if gpu.capability else None,
        "memory_bytes": gpu.memory_bytes,
        "free_bytes": gpu.free_bytes,
        "tensorrt_llm_lookahead": verdict.word,
        "reason": verdict.reason,
        "fp8": kernels.fp8_on(gpu.capability),
    }


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The check of a model on this machine."""

    path: str
    kind: str
    backend: str | None
    reason: str
    """The reason for this backend."""
    model: dict[str, Any] = field(default_factory=dict)
    """The deciding properties: sizes, types, lookahead. Empty if config.json is broken."""
    problems: tuple[str, ...] = ()
    """Reasons why it cannot run."""
    warnings: tuple[str, ...] = ()


NEEDS_TORCH = "it needs torch, which is not installed"


def check_model(path: str | Path, report: Report) -> ModelCheck:
    """Check a folder or a GGUF file against the report's machine."""
    backend, reason = report.backend, report.reason
    description, model = inspected(path)
    kind, problems = description["kind"], description["problems"]
    if model is None:
        return ModelCheck(str(path), kind, backend, reason, problems=tuple(problems))
    if model.engine is not None:
        backend, reason = model.engine.backend, f"{model.path} was built for it"
    elif model.is_encoder_decoder:
        backend, reason = "torch", "only the torch executor runs encoder-decoders"
    warnings: list[str] = []
    for verdict in _verdicts(model, report) if backend == "tensorrt-llm" else ():
        if verdict.allowed is False:
            problems.append(verdict.reason)
        elif verdict.allowed is None:
            warnings.append(verdict.reason)
    if backend == "torch" and not is_installed("torch"):
        problems.extend(_without_torch(model))
    data = model.config.model_dump()
    sizes = {**data, **data["quantization"], **data["mapping"]}
    shown = {**{key: sizes[key] for key in _DECIDING}, "lookahead": _has_lookahead(model)}
    shown["block_types"] = block_names(model.config) or None
    shown["block_arithmetic"] = _block_arithmetic(model.config, report)
    return ModelCheck(str(path), kind, backend, reason, shown, tuple(problems), tuple(warnings))


def _without_torch(model: Model) -> Iterator[str]:
    """Yield the reason why only PyTorch, which is not installed, could run the model."""
    if model.is_encoder_decoder:
        reason: str | None = "it is an encoder-decoder"
    elif FORWARD.is_there():  # do not compile it for this
        from trtla.runtime.models.load import model_dtype, not_compiled

        reason = not_compiled(model.config, model_dtype("auto", model.config, CPU))
    else:
        reason = FORWARD.problem()
    if reason:
        yield f"{NEEDS_TORCH}: {reason}"


def _block_arithmetic(config: CheckpointConfig, report: Report) -> str | None:
    """Describe how weights in blocks run on this machine's device; None if there are none."""
    if not config.block_types:
        return None
    if report.device is None:
        return f"not at all: {report.reason}"
    if report.device != "cpu":
        return f"dequantised at load: {report.device} has no products of blocks"
    if FORWARD.is_there():  # do not compile it for this
        from trtla.runtime.models.load import not_compiled

        problem = not_compiled(config, "float32")
    else:
        problem = FORWARD.problem()
    return f"dequantised at load: {problem}" if problem else "in integers, compiled"


def _has_lookahead(model: Model) -> bool:
    """Return False for engines without drafts, which need no lookahead kernels."""
    engine = model.engine
    return engine is None or engine.config.build_config.max_draft_len > 0


def _verdicts(model: Model, report: Report) -> Iterator[Verdict]:
    """Yield TensorRT-LLM's requirements, whether it is installed or not."""
    yield from _library_verdicts(model, report)
    yield from _gpu_verdicts(model, report)
    config, lookahead = model.config, _has_lookahead(model)
    if model.engine is None:  # an engine's are among the folder's problems
        yield kernels.family(config)
        yield kernels.weight_types(config)
        yield kernels.weight_only_sizes(config)
        yield kernels.rope_scaling(config.rope_type)
        for problem in stage_problems(config, lookahead=lookahead):
            yield Verdict(False, problem.message)
    if lookahead:
        yield kernels.head_size(config.head_size)
        yield kernels.query_group(config.num_attention_heads, config.num_key_value_heads)
        yield kernels.activations(config.dtype)


def _library_verdicts(model: Model, report: Report) -> Iterator[Verdict]:
    try:
        require_backend()
    except TrtlaError as error:
        yield Verdict(False, error.message)
        return
    installed = report.library.version
    built = model.engine.config.version if model.engine else None
    if built and installed and not same_release(built, installed):
        yield Verdict(False, f"built with TensorRT-LLM {built}, and {installed} is installed")


def _gpu_verdicts(model: Model, report: Report) -> Iterator[Verdict]:
    ranks = model.config.mapping.world_size
    gpus = report.machine.gpus[:ranks] if report.machine.usable else ()
    if not gpus:
        yield Verdict(False, "there is no GPU that PyTorch can use")
    elif len(gpus) < ranks:
        yield Verdict(None, f"split over {counted(ranks, 'GPU')}, and this machine has {len(gpus)}")
    for gpu in gpus:
        for verdict in _on_gpu(model, gpu):
            yield Verdict(verdict.allowed, f"GPU {gpu.index}: {verdict.reason}")


def _on_gpu(model: Model, gpu: Gpu) -> Iterator[Verdict]:
    if _has_lookahead(model):
        yield kernels.lookahead_on(gpu.capability)
    config, engine = model.config, model.engine
    yield kernels.weight_only_on(config, gpu.capability)
    if (config.fp8 or config.fp8_kv_cache) and not kernels.fp8_on(gpu.capability):
        yield Verdict(False, f"FP8 needs compute capability {kernels.show(kernels.FP8_CAPABILITY)}")
    here = kernels.show(gpu.capability) if gpu.capability else None
    built = engine.manifest.compute_capability if engine and engine.manifest else None
    if built and here and built != here:
        yield Verdict(False, f"compute capability is {here}, built for {built}")
