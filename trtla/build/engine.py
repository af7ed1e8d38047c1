"""Builds an engine folder from a checkpoint or a Hugging Face folder, or describes the build.

A Hugging Face folder is converted on the way, tensor by tensor. TensorRT-LLM only reads
checkpoints, so its builder has one on disk while it works.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtla.errors import UsageError
from trtla.files import write_json
from trtla.formats.atomic import atomic_directory, check_target
from trtla.formats.checkpoint import Progress, link_ranks, write_ranks
from trtla.formats.config import DTYPE_BYTES, CheckpointConfig
from trtla.formats.engine import MANIFEST, Engine, new_manifest, open_engine
from trtla.formats.engine_config import BuildConfig, EngineConfig
from trtla.formats.engine_limits import BuildSettings, plan_limits
from trtla.formats.folder import copy_side_files, side_files
from trtla.formats.gguf.folder import model_inputs
from trtla.formats.heads.copying import copy_head, head_files
from trtla.formats.plan import single_rank, stored_plan
from trtla.formats.source import EngineBuild, config_json, open_source, read_source
from trtla.formats.support import kv_bytes_per_token
from trtla.settings.lookahead import LookaheadConfig
from trtla.trtllm import library as trtllm_library
from trtla.trtllm import rules as kernels
from trtla.trtllm.build import check_machine, read_builder_fields, write_compiled
from trtla.trtllm.library import installed_version
from trtla.trtllm.rank_builds import command_lines
from trtla.trtllm.rules import check_trtllm, gpu_capability
from trtla.version import __version__

BACKENDS = ("torch", "tensorrt-llm")
_NO_COMMAND = (
    "no command of TensorRT-LLM's own builds this engine: none changes a checkpoint's dtype, and "
    "trtllm-build has no flag for some fields of its BuildConfig"
)


@dataclass(frozen=True, slots=True)
class BuildDescription:
    """The effect of a build, for `--dry-run`."""

    source_kind: str
    backend: str
    reason: str
    dtype: str
    lookahead: tuple[int, int, int]
    build_config: BuildConfig
    memory: MemoryEstimate
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Corrections, disabled features and unverified parts, a sentence each."""
    commands: tuple[str, ...] = ()
    """The command lines of TensorRT-LLM that build the same engine; none for a torch engine."""
    trtllm: Mapping[str, Any] = field(default_factory=dict)
    """Fields for TensorRT-LLM's builder by its own names."""

    @property
    def max_draft_len(self) -> int:
        return self.build_config.max_draft_len


def build_engine(
    checkpoint_dir: str | Path,
    output_dir: str | Path,
    settings: BuildSettings,
    *,
    backend: str = "auto",
    dtype: str | None = None,
    workers: int = 1,
    head: str | Path | None = None,
    force: bool = False,
    sources: dict[str, str] | None = None,
    progress: Progress | None = None,
) -> Engine:
    """Build an engine folder.

    Args:
        checkpoint_dir: a TensorRT-LLM checkpoint of any tp and pp, or a Hugging Face folder.
        output_dir: absent or empty, or a checkpoint or engine to be replaced with `force`.
        settings: the requested limits.
        backend: auto, torch or tensorrt-llm.
        dtype: float16, bfloat16 or float32; None or auto keeps the checkpoint's. For a Hugging Face
            folder as in `convert`.
        workers: ranks built at a time by tensorrt-llm, each on a GPU of its own.
        head: a trained head of the model, which is copied into the engine and drafts there.
        sources: the origin of each setting (flag, environment, ...), kept in trtla.json.
        progress: called with (bytes done, bytes in total).
    """
    source_dir, target = Path(checkpoint_dir), Path(output_dir)
    inputs = model_inputs(source_dir)
    check_target(target, force=force, sources=inputs)
    chosen, _ = choose_backend(backend)
    source, tensors = open_source(source_dir, dtype)
    planned = plan_limits(settings, source.config, chosen)
    limits, fields = planned.build_config, read_builder_fields(settings, chosen)
    copied = _copied(head, source.config, chosen, planned.lookahead)
    rest = (planned.lookahead, settings, sources or {}, fields)
    build = EngineBuild(source, tensors, limits, *rest)
    if chosen == "tensorrt-llm":
        check_trtllm(source.config, limits, gpu_capability())
        check_machine(workers, fields)
    with closing(tensors), atomic_directory(target, force=force, sources=inputs) as folder:
        if chosen == "tensorrt-llm":
            write_compiled(build, folder, workers, progress)
        else:
            _write_torch(build, folder, progress)
        copy_head(copied, folder)
    return open_engine(target)


def _copied(
    head: str | Path | None, config: CheckpointConfig, backend: str, lookahead: LookaheadConfig
) -> dict[str, Path]:
    """The files of a head by their names in the engine, which must have a place for it."""
    if head is None:
        return {}
    if backend != "torch":
        raise UsageError(
            f"an engine of {backend} has no place for the head {head}",
            "omit --head, or add --backend torch",
        )
    if lookahead.is_autoregressive:
        raise UsageError(
            f"a plain engine has no room for the drafts of the head {head}",
            "omit --head, or build an engine for lookahead",
        )
    return head_files(head, config)


def _write_torch(build: EngineBuild, folder: Path, progress: Progress | None) -> None:
    config, source = single_rank(build.source.config), build.source.folder
    pretrained = config_json(config)
    # The same model gives the same digest however it was split over ranks.
    digest = hashlib.sha256(json.dumps(pretrained, sort_keys=True).encode())
    is_checkpoint = build.source.is_checkpoint
    linked = link_ranks(source, folder, config) if is_checkpoint else frozenset[int]()
    write_ranks(folder, config, build.tensors, progress, digest.update, linked)
    copy_side_files(source, folder)
    engine = EngineConfig(
        version=__version__, pretrained_config=config, build_config=build.limits
    ).model_dump(mode="json")
    write_json(folder / "config.json", {**engine, "pretrained_config": pretrained})
    manifest = new_manifest("torch", build, digest.hexdigest())
    write_json(folder / MANIFEST, manifest.model_dump(mode="json"))


def describe_build(
    checkpoint_dir: str | Path,
    settings: BuildSettings,
    *,
    output_dir: str | Path = "ENGINE",
    backend: str = "auto",
    dtype: str | None = None,
    workers: int = 1,
    head: str | Path | None = None,
) -> BuildDescription:
    """Describe `build_engine` with the same arguments; reads config.json, and headers of a head.

    TensorRT-LLM need not be installed.
    """
    folder, (chosen, reason) = Path(checkpoint_dir), choose_backend(backend)
    source = read_source(folder, dtype)
    limits = plan_limits(settings, source.config, chosen)
    copied = _copied(head, source.config, chosen, limits.lookahead)
    notes: list[str] = list(limits.notes)
    fields = read_builder_fields(settings, chosen)
    commands: tuple[str, ...] = ()
    if chosen == "tensorrt-llm":
        config, suffix = source.config, "engine"
        machine = gpu_capability(), installed_version()
        notes += check_trtllm(config, limits.build_config, *machine)
        arguments = workers, fields, settings.timing_cache
        commands = command_lines(source, Path(output_dir), limits.build_config, *arguments)
        notes += [] if commands else [_NO_COMMAND]
    else:
        config, suffix = single_rank(source.config), "safetensors"
        notes += ["workers are not used, a torch engine has one rank"] if workers > 1 else []
    ranks = [f"rank{rank}.{suffix}" for rank in range(config.mapping.world_size)]
    return BuildDescription(
        source_kind=source.kind,
        backend=chosen,
        reason=reason,
        dtype=config.dtype,
        lookahead=limits.lookahead.as_tuple(),
        build_config=limits.build_config,
        memory=estimate_memory(config, limits.build_config),
        files=("config.json", *ranks, MANIFEST, *side_files(folder), *copied),
        notes=tuple(notes),
        commands=commands,
        trtllm=fields,
    )


def choose_backend(backend: str = "auto") -> tuple[str, str]:
    """Choose a backend for auto, torch or tensorrt-llm; return it with the reason.

    `auto` takes tensorrt-llm if it is installed with its TensorRT backend, and there is a GPU that
    it can run lookahead on. It is imported only if the other conditions hold.
    """
    if backend in BACKENDS:
        return backend, f"asked for with --backend {backend}"
    if backend != "auto":
        raise UsageError(f"backend {backend!r} is unknown", "use auto, torch or tensorrt-llm")
    if not trtllm_library.installed():
        return "torch", "TensorRT-LLM is not installed"
    capability = gpu_capability()
    if capability is None:
        return "torch", "TensorRT-LLM is installed, but there is no CUDA GPU"
    lookahead = kernels.lookahead_on(capability)
    if lookahead.allowed is False:
        return "torch", f"TensorRT-LLM has no lookahead on this GPU: {lookahead.reason}"
    library = trtllm_library.probe()
    if library.failure is not None:
        return "torch", f"TensorRT-LLM {library.version} cannot be imported: {library.failure}"
    if library.missing:
        return "torch", f"TensorRT-LLM {library.version} lacks {' and '.join(library.missing)}"
    shown = kernels.show(capability)
    return "tensorrt-llm", f"TensorRT-LLM is installed and the GPU has compute capability {shown}"


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The memory of an engine on its largest rank (`_per_rank`) and on all ranks together.

    The K/V cache is that of a full batch of sequences of max_seq_len tokens; `draft_kv_cache_bytes`
    is the draft tokens' part of it. The logits are those of one step of a full batch.
    """

    ranks: int
    weight_bytes: int
    weight_bytes_per_rank: int
    kv_cache_bytes: int
    kv_cache_bytes_per_rank: int
    draft_kv_cache_bytes: int
    draft_kv_cache_bytes_per_rank: int
    step_tokens: int
    """The tokens of a full batch's step: one for each sequence, and its drafts."""
    logits_bytes: int


def estimate_memory(config: CheckpointConfig, build_config: BuildConfig) -> MemoryEstimate:
    """Estimate the memory of an engine with the ranks of the config's mapping."""
    ranks, batch_size = config.mapping.world_size, build_config.max_batch_size
    step_tokens = batch_size * (build_config.max_draft_len + 1)
    weights = [sum(target.nbytes for target in stored_plan(config, rank)) for rank in range(ranks)]
    token_bytes = kv_bytes_per_token(config)
    cache = batch_size * build_config.max_seq_len * token_bytes
    drafts = batch_size * build_config.max_draft_len * token_bytes
    return MemoryEstimate(
        ranks=ranks,
        weight_bytes=sum(weights),
        weight_bytes_per_rank=max(weights),
        kv_cache_bytes=cache * ranks,
        kv_cache_bytes_per_rank=cache,
        draft_kv_cache_bytes=drafts * ranks,
        draft_kv_cache_bytes_per_rank=drafts,
        step_tokens=step_tokens,
        logits_bytes=step_tokens * config.vocab_size * DTYPE_BYTES[config.logits_dtype],
    )
