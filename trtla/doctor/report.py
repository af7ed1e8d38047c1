"""What `trtla doctor` reports of this machine: versions, GPUs, TensorRT-LLM, and what can run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from trtla.errors import TrtlaError, sentence
from trtla.machine import Gpu, Machine, look
from trtla.runtime.models.cpu.native_code import FORWARD, TREES
from trtla.trtllm import library as trtllm_library
from trtla.trtllm import rules as kernels
from trtla.trtllm.library import Library
from trtla.version import __version__


@dataclass(frozen=True, slots=True)
class Report:
    """What was found."""

    machine: Machine
    library: Library
    backend: str | None
    """What `trtla build --backend auto` takes; None where PyTorch is broken."""
    reason: str
    """Why."""
    device: str | None
    """Where trtla's own executor runs without --device."""
    cpu_forward: str
    """How the CPU's forward is run."""
    candidate_trees: str
    """How drafts are chosen."""
    cuda_forward: str | None
    """How a model of the usual shape is run on CUDA; None where there is no such device."""
    warnings: tuple[str, ...]


def examine() -> Report:
    """Examine the machine and TensorRT-LLM, which is imported if it is installed."""
    machine, library = look(), trtllm_library.probe()
    backend, reason, device = _choice()
    findings = tuple(_findings(machine, library))
    states = (FORWARD.state(), TREES.state(), _cuda_forward() if machine.usable else None)
    return Report(machine, library, backend, reason, device, *states, findings)


def _cuda_forward() -> str:
    """That of Llama 3's heads in bfloat16."""
    from trtla.formats.config import CheckpointConfig
    from trtla.runtime.models.cuda_check import choose_path

    try:
        import torch

        config = CheckpointConfig(
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
    except Exception as error:  # drivers and PyTorch's builds for them can be broken in many ways
        return sentence(error)


def _choice() -> tuple[str | None, str, str | None]:
    try:
        from trtla.build.engine import choose_backend
        from trtla.runtime.models.load import resolve_device

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # trtla.machine has recorded them
            return *choose_backend(), str(resolve_device("auto"))
    except TrtlaError as error:
        return None, error.message, None
    except Exception as error:  # both import PyTorch, which can be broken in many ways
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
        what = "PyTorch" if torch.version else "PyTorch cannot be imported"
        yield f"{what}: {torch.problem}"
    if torch.version and machine.gpus and not machine.usable:
        built = f"for CUDA {torch.cuda}" if torch.cuda else "without CUDA"
        yield (
            f"nvidia-smi lists {len(machine.gpus)} GPU{'s' if len(machine.gpus) > 1 else ''}, but "
            f"PyTorch {torch.version}, built {built}, sees none: install its build for CUDA that "
            "your driver serves"
        )
    if machine.transformers is None:
        yield "transformers is not installed: install trtla again"


def _library_findings(library: Library) -> Iterator[str]:
    if library.version is None:
        return
    if library.is_foreign and library.has_backend:
        yield (
            f"TensorRT-LLM {library.version} has the TensorRT backend, but trtla is written for "
            f"tensorrt-llm{trtllm_library.SUPPORTED}"
        )
    try:
        trtllm_library.require_backend()
    except TrtlaError as error:
        yield f"{error.message}: {error.hint}"
    else:
        yield from filter(None, [trtllm_library.known_trouble(library.version)])
        for part in library.missing:
            yield f"TensorRT-LLM {library.version} lacks {part}, which trtla does not need"


def document(report: Report) -> dict[str, Any]:
    """The report with JSON types only; unknown values are null, memory is in bytes."""
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
