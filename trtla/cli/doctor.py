"""`trtla doctor`: what this machine can run, and whether a model runs on it.

The facts are collected in trtla.doctor; the tables are made here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.command import Command
from trtla.cli.options import json_flag
from trtla.console import Console
from trtla.errors import CheckFailed
from trtla.trtllm import rules as kernels
from trtla.trtllm.library import SUPPORTED, Library
from trtla.version import __version__

if TYPE_CHECKING:
    from trtla.doctor.model import ModelCheck
    from trtla.doctor.report import Report
    from trtla.machine import Cpu, Driver, Gpu, Torch


SCHEMA_VERSION = 1


@click.command(
    cls=Command,
    short_help="What this machine can run, and with which backend.",
    config=False,
    examples=["trtla doctor", "trtla doctor engine", "trtla doctor --json > machine.json"],
)
@click.argument("model", type=click.Path(), required=False)
@json_flag("Print one JSON document.")
@click.pass_obj
def doctor(console: Console, model: str | None) -> None:
    """Tell versions, GPUs, whether TensorRT-LLM has its TensorRT backend, and what to do about it.

    With MODEL, a Hugging Face model, checkpoint or engine folder, also whether it can run here with
    lookahead decoding; exit code 3 when not.
    """
    from trtla.doctor.report import examine

    if model is not None:
        _require_folder(model)
    report = examine()
    check = _check(model, report) if model is not None else None
    _show(console, report, check)
    if check is not None and check.problems:
        number = len(check.problems)
        raise CheckFailed(
            f"{model} cannot run here with {check.backend}: "
            f"{number} problem{'s' if number > 1 else ''}",
            _way_out(check),
        )


def _require_folder(model: str) -> None:
    """Tell of a wrong path at once, before the slow imports."""
    from trtla.formats.folder import folder_kind

    folder_kind(Path(model))


def _check(model: str, report: Report) -> ModelCheck:
    from trtla.doctor.model import check_model

    return check_model(model, report)


def _show(console: Console, report: Report, check: ModelCheck | None) -> None:
    from trtla.doctor.report import document

    if console.json:
        found = {"schema_version": SCHEMA_VERSION, **document(report)}
        console.document({**found, "model": check and check_document(check)})
        return
    console.table(("what", "value"), list(machine_rows(report)))
    if check is not None:
        console.out()
        console.table(("model", "value"), list(model_rows(check)))
        for problem in check.problems:
            console.out(f"problem: {problem}")
    for warning in (*report.warnings, *(check.warnings if check else ())):
        console.out(f"warning: {warning}")


def _way_out(check: ModelCheck) -> str:
    if check.backend != "tensorrt-llm":
        return "correct what is told above, or make the folder again; trtla inspect tells more"
    if check.kind == "engine":
        return "build an engine for this machine; --backend torch runs everywhere"
    return "build it with --backend torch, which runs everywhere"


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
    yield (
        "TensorRT-LLM",
        report.library.version or _ABSENT,
    )
    yield "TensorRT backend", _backend(report.library)
    yield "--backend auto", f"{report.backend or 'none'}: {report.reason}"
    yield "--device auto", report.device
    yield "CPU forward", report.cpu_forward
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
    capability = kernels.show(gpu.capability) if gpu.capability else "unknown"
    memory = _memory(gpu.memory_bytes, gpu.free_bytes)
    yield name, f"{gpu.name}, compute capability {capability}, {memory}"
    verdict = kernels.lookahead_on(gpu.capability)
    yield (
        f"{name}: lookahead on TensorRT-LLM",
        ": ".join(filter(None, (verdict.word, verdict.reason))),
    )
    yield f"{name}: FP8 on TensorRT-LLM", _fp8(gpu)


def _fp8(gpu: Gpu) -> str:
    allowed = kernels.fp8_on(gpu.capability)
    if allowed is None:
        return "unverified"
    needed = kernels.show(kernels.FP8_CAPABILITY)
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
    sizes = " and ".join(map(str, kernels.HEAD_SIZES))
    return (
        f"head sizes {sizes}; other multiples of {kernels.JIT_MULTIPLE} up to "
        f"{kernels.JIT_LARGEST} in some releases; at most {kernels.MAX_QUERY_GROUP} query heads "
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


def check_document(check: ModelCheck) -> dict[str, Any]:
    """The check with JSON types only."""
    found = asdict(check)
    return {**found, "problems": list(check.problems), "warnings": list(check.warnings)}
