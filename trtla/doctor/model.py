"""Whether one model, checkpoint or engine can run on this machine, and why not.

The folder's own soundness is checked in trtla.doctor.report.folder, the rules for kernels are in
trtla.trtllm.rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtla.doctor.folder import inspect
from trtla.doctor.report import Report
from trtla.errors import TrtlaError, UsageError
from trtla.files import read_json, validate
from trtla.formats.compiled import stage_problems
from trtla.formats.config import CheckpointConfig
from trtla.formats.engine import read_engine
from trtla.formats.folder import FolderKind, folder_kind
from trtla.formats.hf_config import read_hf_config
from trtla.formats.t5_config import decoder_config, is_encoder_decoder, read_t5_config
from trtla.machine import Gpu
from trtla.trtllm import rules as kernels
from trtla.trtllm.library import require_backend, same_release
from trtla.trtllm.rules import Verdict


@dataclass(frozen=True, slots=True)
class _Facts:
    """What decides whether a folder runs."""

    config: CheckpointConfig
    lookahead: bool
    """False for engines without drafts, which need no lookahead kernels."""
    backend: str | None = None
    """The backend that an engine was built for, or the only one that runs the model."""
    reason: str | None = None
    """Why that backend, where no engine was built for it."""
    release: str | None = None
    """The release of TensorRT-LLM that built it."""
    capability: str | None = None
    """The compute capability that it was built on."""


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """A model against this machine."""

    path: str
    kind: FolderKind
    backend: str | None
    reason: str
    """Why this backend."""
    model: dict[str, Any] = field(default_factory=dict)
    """What decided: sizes, types, lookahead. Empty where config.json is broken."""
    problems: tuple[str, ...] = ()
    """Why it cannot run."""
    warnings: tuple[str, ...] = ()


def check_model(path: str | Path, report: Report) -> ModelCheck:
    """Check a folder against the machine of the report.

    Raises:
        UsageError: the path is no folder, or of none of the three kinds.
    """
    folder = Path(path)
    kind = folder_kind(folder)
    problems = list(inspect(folder)["problems"])
    try:
        facts = _facts(folder, kind)
    except UsageError as error:
        told = problems or [error.message]
        return ModelCheck(str(folder), kind, report.backend, report.reason, problems=tuple(told))
    backend = facts.backend or report.backend
    built = f"{folder} was built for it" if facts.backend else report.reason
    reason = facts.reason or built
    warnings: list[str] = []
    for verdict in _verdicts(facts, report) if backend == "tensorrt-llm" else ():
        if verdict.allowed is False:
            problems.append(verdict.reason)
        elif verdict.allowed is None:
            warnings.append(verdict.reason)
    shown = _shown(facts)
    return ModelCheck(str(folder), kind, backend, reason, shown, tuple(problems), tuple(warnings))


def _facts(folder: Path, kind: FolderKind) -> _Facts:
    path = folder / "config.json"
    if is_encoder_decoder(folder):
        decoder = decoder_config(folder, read_t5_config(folder))
        why = "only the torch executor runs encoder-decoders"
        return _Facts(decoder, lookahead=True, backend="torch", reason=why)
    if kind == "Hugging Face model":
        return _Facts(read_hf_config(path)[0], lookahead=True)
    if kind == "checkpoint":
        return _Facts(validate(CheckpointConfig, read_json(path), str(path)), lookahead=True)
    engine = read_engine(folder)
    return _Facts(
        engine.config.pretrained_config,
        lookahead=engine.config.build_config.max_draft_len > 0,
        backend=engine.backend,
        release=engine.config.version,
        capability=engine.manifest.compute_capability if engine.manifest else None,
    )


def _verdicts(facts: _Facts, report: Report) -> Iterator[Verdict]:
    """What TensorRT-LLM needs, installed or not."""
    yield from _library_verdicts(facts, report)
    yield from _gpu_verdicts(facts, report)
    if facts.release is None:  # an engine's are among the problems of the folder itself
        yield kernels.rope_scaling(facts.config.rope_type)
        for problem in stage_problems(facts.config, lookahead=facts.lookahead):
            yield Verdict(False, problem.message)
    if facts.lookahead:
        config = facts.config
        yield kernels.head_size(config.head_size)
        yield kernels.query_group(config.num_attention_heads, config.num_key_value_heads)
        yield kernels.activations(config.dtype)


def _library_verdicts(facts: _Facts, report: Report) -> Iterator[Verdict]:
    try:
        require_backend()
    except TrtlaError as error:
        yield Verdict(False, error.message)
        return
    installed = report.library.version
    if facts.release and installed and not same_release(facts.release, installed):
        yield Verdict(
            False, f"built with TensorRT-LLM {facts.release}, and {installed} is installed"
        )


def _gpu_verdicts(facts: _Facts, report: Report) -> Iterator[Verdict]:
    ranks = facts.config.mapping.world_size
    gpus = report.machine.gpus[:ranks] if report.machine.usable else ()
    if not gpus:
        yield Verdict(False, "there is no GPU that PyTorch can use")
    elif len(gpus) < ranks:
        yield Verdict(None, f"split over {ranks} GPUs, and this machine has {len(gpus)}")
    for gpu in gpus:
        for verdict in _on_gpu(facts, gpu):
            yield Verdict(verdict.allowed, f"GPU {gpu.index}: {verdict.reason}")


def _on_gpu(facts: _Facts, gpu: Gpu) -> Iterator[Verdict]:
    if facts.lookahead:
        yield kernels.lookahead_on(gpu.capability)
    config = facts.config
    if (config.fp8 or config.fp8_kv_cache) and not kernels.fp8_on(gpu.capability):
        yield Verdict(False, f"FP8 needs compute capability {kernels.show(kernels.FP8_CAPABILITY)}")
    here = kernels.show(gpu.capability) if gpu.capability else None
    if facts.capability and here and facts.capability != here:
        yield Verdict(False, f"compute capability is {here}, built for {facts.capability}")


def _shown(facts: _Facts) -> dict[str, Any]:
    config = facts.config
    return {
        "dtype": config.dtype,
        "quant_algo": config.quantization.quant_algo,
        "kv_cache_quant_algo": config.quantization.kv_cache_quant_algo,
        "head_size": config.head_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "world_size": config.mapping.world_size,
        "lookahead": facts.lookahead,
    }
