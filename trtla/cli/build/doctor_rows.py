"""The tables of `trtla doctor`: what was found, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trtla.trtllm import rules
from trtla.trtllm.library import SUPPORTED, Library
from trtla.version import __version__

if TYPE_CHECKING:
    from trtla.doctor.model import ModelCheck
    from trtla.doctor.report import Report
    from trtla.machine import Cpu, Driver, Gpu, Torch

Row = tuple[str, object]
_GIB = 2**30
_ABSENT = f"not installed; the extra trtla[tensorrt-llm] brings {SUPPORTED}"


def machine_rows(report: Report) -> Iterator[Row]:
    """The machine and what can run on it."""
    machine = report.machine
    yield "trtla", __version__
    yield "Python", f"{machine.python} on {machine.platform}"
    yield "PyTorch", _torch(machine.torch)
    yield "transformers", machine.transformers
    yield "CPU", _cpu(machine.cpu)
    yield "CPU instruction sets", " ".join(machine.cpu.instruction_sets) or None
    yield "CUDA driver", _driver(machine.driver)
    for gpu in machine.gpus:
        yield from _gpu_rows(gpu)
    if not machine.gpus:
        yield "GPU", "none"
    yield "TensorRT-LLM", report.library.version or _ABSENT
    yield "TensorRT backend", _backend(report.library)
    yield "--backend auto", f"{report.backend or 'none'}: {report.reason}"
    yield "--device auto", report.device
    yield "CPU forward", report.cpu_forward
    yield "candidate trees", report.candidate_trees
    if report.cuda_forward is not None:
        yield "CUDA forward", report.cuda_forward
    yield "lookahead kernels", _kernels()


def _torch(torch: Torch) -> str | None:
    if torch.version is None:
        return None
    return f"{torch.version}, {f'CUDA {torch.cuda}' if torch.cuda else 'built without CUDA'}"


def _cpu(cpu: Cpu) -> str:
    return f"{cpu.model}, {cpu.cores} cores, {_memory(cpu.memory_bytes, cpu.free_bytes)}"


def _driver(driver: Driver) -> str | None:
    parts = (driver.version, driver.cuda and f"CUDA {driver.cuda}")
    return ", ".join(part for part in parts if part) or None


def _gpu_rows(gpu: Gpu) -> Iterator[Row]:
    name = f"GPU {gpu.index}"
    capability = rules.show(gpu.capability) if gpu.capability else "unknown"
    memory = _memory(gpu.memory_bytes, gpu.free_bytes)
    yield name, f"{gpu.name}, compute capability {capability}, {memory}"
    verdict = rules.lookahead_on(gpu.capability)
    shown = ": ".join(filter(None, (verdict.word, verdict.reason)))
    yield f"{name}: lookahead on TensorRT-LLM", shown
    yield f"{name}: FP8 on TensorRT-LLM", _fp8(gpu)


def _fp8(gpu: Gpu) -> str:
    allowed = rules.fp8_on(gpu.capability)
    if allowed is None:
        return "unverified"
    needed = rules.show(rules.FP8_CAPABILITY)
    return "allowed" if allowed else f"not allowed: compute capability is below {needed}"


def _backend(library: Library) -> str | None:
    if library.version is None:
        return None
    if library.failure:
        return f"unusable: {library.failure}"
    lacks = f"lacks {', '.join(library.missing)}" if library.missing else ""
    if library.has_backend:
        return f"complete, but {lacks}" if lacks else "complete"
    return lacks


def _kernels() -> str:
    sizes = " and ".join(map(str, rules.HEAD_SIZES))
    return (
        f"head sizes {sizes}; other multiples of {rules.JIT_MULTIPLE} up to "
        f"{rules.JIT_LARGEST} in some releases; at most {rules.MAX_QUERY_GROUP} query heads "
        "for a K/V head"
    )


def _memory(total: int | None, free: int | None) -> str:
    if total is None:
        return "memory unknown"
    return f"{total / _GIB:.1f} GiB" + (f" ({free / _GIB:.1f} free)" if free is not None else "")


def model_rows(check: ModelCheck) -> Iterator[Row]:
    """A model against the machine."""
    yield "path", check.path
    yield "kind", check.kind
    for name, value in check.model.items():
        yield name, _yes(value) if isinstance(value, bool) else value
    yield "backend", f"{check.backend or 'none'}: {check.reason}"
    yield "runs here", _yes(not check.problems)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
