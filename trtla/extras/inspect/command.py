"""`trtla doctor`: checks of this machine, and of a model on it; `trtla inspect`: of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.shared.command import Command
from trtla.cli.shared.options import PATH, json_flag, model_flag
from trtla.console import Console, counted, size
from trtla.errors import CheckFailed, install_hint
from trtla.version import __version__

if TYPE_CHECKING:
    from trtla.extras.inspect.report import ModelCheck, Report
    from trtla.machine import Gpu, Torch
    from trtla.trtllm.library import Library

Row = tuple[str, object]
SCHEMA_VERSION = 1
_NO_GRAMMARS = "not installed; the extra trtla[structured] brings it for structured output"
_MEND = "make or copy its files again, or take a model that the guide's model families list"
_FOLDER = (
    "A folder: a Hugging Face model, a checkpoint made by trtla convert or an engine; a GGUF file; "
    "or a name on the hub."
)


@click.command(
    cls=Command,
    short_help="What this machine can run, and with which backend.",
    config=False,
    examples=["trtla doctor", "trtla doctor engine", "trtla doctor --json > machine.json"],
)
@model_flag(type=PATH, required=False, help=_FOLDER)
@json_flag("Print one JSON document.")
@click.pass_obj
def doctor(console: Console, engine_dir: str | None) -> None:
    """Show versions, GPUs, whether TensorRT-LLM has its TensorRT backend, and what to do about it.

    With MODEL, a Hugging Face model, checkpoint or engine folder or a GGUF file, also whether it
    can run here with lookahead decoding; exit code 3 when not.
    """
    check, model = None, engine_dir
    if model is not None:
        from trtla.formats.model import Model

        _ = Model.at(model).kind  # refuses a wrong path before the slow imports
    from trtla.extras.inspect.report import examine

    report = examine()
    if model is not None:
        from trtla.extras.inspect.report import check_model

        check = check_model(model, report)
    _show(console, report, check)
    if check is not None and check.problems:
        raise CheckFailed(
            f"{model} cannot run here with {check.backend}: "
            f"{counted(len(check.problems), 'problem')}",
            _way_out(check),
        )


def _show(console: Console, report: Report, check: ModelCheck | None) -> None:
    from trtla.extras.inspect.report import document

    if console.json:
        content = {"schema_version": SCHEMA_VERSION, **document(report)}
        console.document({**content, "model": check and asdict(check)})
        return
    console.table(("what", "value"), list(_machine_rows(report)))
    if check is not None:
        console.out()
        console.table(("model", "value"), list(_model_rows(check)))
        for problem in check.problems:
            console.out(f"problem: {problem}")
    for warning in (*report.warnings, *(check.warnings if check else ())):
        console.out(f"warning: {warning}")


def _way_out(check: ModelCheck) -> str:
    from trtla.extras.inspect.report import NEEDS_TORCH

    if all(problem.startswith(NEEDS_TORCH) for problem in check.problems):
        return install_hint("torch")
    if check.backend != "tensorrt-llm":
        return f"{_MEND}; trtla inspect shows more"
    if check.kind == "engine":
        return "build an engine for this machine; --backend torch runs everywhere"
    return "build it with --backend torch, which runs everywhere"


@click.command(
    "inspect",
    cls=Command,
    short_help="What a model, checkpoint or engine folder is.",
    config=False,
    examples=["trtla inspect engine", "trtla inspect llama-3-8b --json"],
)
@model_flag(type=PATH, help=_FOLDER)
@json_flag("Print one JSON document.")
@click.pass_obj
def inspect_path(console: Console, engine_dir: str) -> None:
    """Show what a folder is: Hugging Face model, checkpoint or engine; or a GGUF file.

    Prints shape, dtype, sizes, limits and the lookahead triple, and what is wrong with it (exit
    code 3).
    """
    from trtla.extras.inspect.folder import inspect

    content = inspect(engine_dir)
    problems = content["problems"]
    if console.json:
        console.document({"schema_version": SCHEMA_VERSION, **content})
    else:
        console.table(("what", "value"), _flat(_readable(content)))
        for note in content["notes"]:
            console.out(f"note: {note}")
        for problem in problems:
            console.out(f"problem: {problem}")
    if problems:
        raise CheckFailed(f"{engine_dir} has {counted(len(problems), 'problem')}", content["hint"])


def _readable(content: dict[str, Any]) -> dict[str, Any]:
    """The report on a folder as people read it, with units."""
    types = {
        kind: f"{counted(each['tensors'], 'tensor')}, {size(each['bytes'])}, "
        f"{each['bits_per_weight']:g} bits per weight"
        for kind, each in content.get("weight_types", {}).items()
    }
    omitted = ("bytes", "end_ids", "hint", "notes", "problems", "tensor_types", "kv_cache_bytes")
    template = content["template"] or {}
    return {
        **{key: value for key, value in content.items() if key not in omitted},
        "ends": {f"id {key}": _sourced(token) for key, token in content["ends"].items()},
        "begins": content["begins"] and _sourced(content["begins"]),
        "template": {
            "source": template.get("source"),
            **{role: _sourced(token) for role, token in template.get("tokens", {}).items()},
        },
        **({"weight_types": types} if types else {}),
        "size": size(content["bytes"]),
        **_parameters(content),
        **_cache(content),
        **({"problems": len(content["problems"])} if content["problems"] else {}),
    }


def _sourced(token: dict[str, str | None]) -> str:
    """A token with the source that names it."""
    return ": ".join(filter(None, (token["token"], token["source"])))


def _parameters(content: dict[str, Any]) -> dict[str, str]:
    if "parameters" not in content:
        return {}
    return {"parameters": f"{content['parameters'] / 1e6:,.1f} M"}


def _cache(content: dict[str, Any]) -> dict[str, str]:
    if "kv_cache_bytes" not in content:
        return {}
    whole = size(content["kv_cache_bytes"])
    return {"kv_cache": f"{whole} for a text of {content['max_text_len']} tokens"}


def _flat(value: dict[str, Any], prefix: str = "") -> list[Row]:
    """Nested dictionaries as rows of dotted names, without those that are None."""
    rows: list[Row] = []
    for key, item in value.items():
        if isinstance(item, dict):
            rows += _flat(item, f"{prefix}{key}.")
        elif isinstance(item, bool):
            rows.append((f"{prefix}{key}", _yes(item)))
        elif item is not None:
            shown = ", ".join(map(str, item)) if isinstance(item, list | tuple) else item
            rows.append((f"{prefix}{key}", shown))
    return rows


def _machine_rows(report: Report) -> Iterator[Row]:
    from trtla.trtllm import rules
    from trtla.trtllm.library import SUPPORTED

    absent = f"not installed; the extra trtla[tensorrt-llm] brings {SUPPORTED}"
    machine, cpu, driver = report.machine, report.machine.cpu, report.machine.driver
    yield "trtla", __version__
    yield "Python", f"{machine.python} on {machine.platform}"
    yield "PyTorch", _torch(machine.torch)
    yield "transformers", machine.transformers
    yield "llguidance", machine.llguidance or _NO_GRAMMARS
    memory = _memory(cpu.memory_bytes, cpu.free_bytes)
    quota = "" if cpu.quota is None else f" (a control group's quota is {round(cpu.quota, 2):g})"
    yield "CPU", f"{cpu.model}, {counted(cpu.cores, 'core')}{quota}, {memory}"
    yield "CPU instruction sets", " ".join(cpu.instruction_sets) or None
    parts = (driver.version, driver.cuda and f"CUDA {driver.cuda}")
    yield "CUDA driver", ", ".join(filter(None, parts)) or None
    for gpu in machine.gpus:
        yield from _gpu_rows(gpu)
    if not machine.gpus:
        yield "GPU", "none"
    yield "TensorRT-LLM", report.library.version or absent
    yield "TensorRT backend", _backend(report.library)
    yield "--backend auto", f"{report.backend or 'none'}: {report.reason}"
    yield "--device auto", report.device
    yield "CPU forward", report.cpu_forward
    yield "candidate trees", report.candidate_trees
    if report.cuda_forward is not None:
        yield "CUDA forward", report.cuda_forward
    yield (
        "lookahead kernels",
        f"head sizes {' and '.join(map(str, rules.HEAD_SIZES))}; other multiples of "
        f"{rules.JIT_MULTIPLE} up to {rules.JIT_LARGEST} in some releases; at most "
        f"{rules.MAX_QUERY_GROUP} query heads for a K/V head",
    )


def _torch(torch: Torch) -> str | None:
    if torch.version is None:
        return None
    return f"{torch.version}, {f'CUDA {torch.cuda}' if torch.cuda else 'built without CUDA'}"


def _gpu_rows(gpu: Gpu) -> Iterator[Row]:
    from trtla.trtllm import rules

    name = f"GPU {gpu.index}"
    capability = rules.show(gpu.capability) if gpu.capability else "unknown"
    memory = _memory(gpu.memory_bytes, gpu.free_bytes)
    yield name, f"{gpu.name}, compute capability {capability}, {memory}"
    verdict = rules.lookahead_on(gpu.capability)
    shown = ": ".join(filter(None, (verdict.word, verdict.reason)))
    yield f"{name}: lookahead on TensorRT-LLM", shown
    needed = rules.show(rules.FP8_CAPABILITY)
    refused = f"not allowed: compute capability is below {needed}"
    words = {None: "unverified", True: "allowed", False: refused}
    yield f"{name}: FP8 on TensorRT-LLM", words[rules.fp8_on(gpu.capability)]


def _backend(library: Library) -> str | None:
    if library.version is None:
        return None
    if library.failure:
        return f"unusable: {library.failure}"
    lacks = f"lacks {', '.join(library.missing)}" if library.missing else ""
    if library.has_backend:
        return f"complete, but {lacks}" if lacks else "complete"
    return lacks


def _memory(total: int | None, free: int | None) -> str:
    if total is None:
        return "memory unknown"
    gib = 2**30
    return f"{total / gib:.1f} GiB" + (f" ({free / gib:.1f} free)" if free is not None else "")


def _model_rows(check: ModelCheck) -> Iterator[Row]:
    yield "path", check.path
    yield "kind", check.kind
    for name, value in check.model.items():
        yield name, _yes(value) if isinstance(value, bool) else value
    yield "backend", f"{check.backend or 'none'}: {check.reason}"
    yield "runs here", _yes(not check.problems)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
