"""Building: from a checkpoint or a Hugging Face folder to an engine on disk.

A Hugging Face folder is converted on the way, tensor by tensor. TensorRT-LLM reads checkpoints
only, so its builder has one on disk for as long as it works.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtla.build.atomic import atomic_directory, check_target
from trtla.build.backend import choose_backend, gpu_capability
from trtla.build.build_source import open_source, read_source
from trtla.build.engine_folder import MANIFEST, Engine, open_engine
from trtla.build.memory import MemoryEstimate, estimate_memory
from trtla.build.plan import single_rank
from trtla.build.rank_writer import Progress
from trtla.build.settings import BuildSettings, plan_build_config, plan_limits
from trtla.build.side_files import side_files
from trtla.build.torch import TorchBuild
from trtla.build.trtllm import TrtllmBuild
from trtla.build.trtllm_check import check_trtllm
from trtla.build.trtllm_command import TrtllmCommand
from trtla.config import BuildConfig
from trtla.trtllm_library import installed_version

_NO_COMMAND = (
    "TensorRT-LLM cannot change a checkpoint's dtype, so no command of its own builds this engine"
)


@dataclass(frozen=True, slots=True)
class BuildDescription:
    """What a build would do, for `--dry-run`. Sizes are in bytes."""

    source_kind: str
    backend: str
    reason: str
    dtype: str
    lookahead: tuple[int, int, int]
    build_config: BuildConfig
    memory: MemoryEstimate
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What is corrected, switched off or not verified, a sentence each."""
    commands: tuple[str, ...] = ()
    """The command lines of TensorRT-LLM that build the same engine; none for a torch engine."""

    @property
    def max_draft_len(self) -> int:
        """Draft tokens fed in one step."""
        return self.build_config.max_draft_len


def build_engine(
    checkpoint_dir: str | Path,
    output_dir: str | Path,
    settings: BuildSettings,
    *,
    backend: str = "auto",
    dtype: str | None = None,
    workers: int = 1,
    force: bool = False,
    sources: dict[str, str] | None = None,
    progress: Progress | None = None,
) -> Engine:
    """Build an engine folder.

    Args:
        checkpoint_dir: a TensorRT-LLM checkpoint of any tp and pp, or a Hugging Face folder.
        output_dir: absent or empty, or a checkpoint or engine to be replaced with `force`.
        settings: the limits asked for.
        backend: auto, torch or tensorrt-llm.
        dtype: float16, bfloat16 or float32; None or auto keeps the checkpoint's. For a Hugging Face
            folder as in `convert`.
        workers: ranks built at a time by tensorrt-llm, each on a GPU of its own.
        sources: where each setting came from (flag, environment, ...), kept in trtla.json.
        progress: called with (bytes done, bytes in total).

    Raises:
        UsageError: input, settings or output folder are not usable; nothing was written.
        TrtlaError: the backend cannot build, the disk is full, or permission is missing.
    """
    source_dir, target = Path(checkpoint_dir), Path(output_dir)
    check_target(target, force=force, sources=(source_dir,))
    chosen, _ = choose_backend(backend)
    source, tensors = open_source(source_dir, dtype)
    limits = plan_build_config(settings, source.config, chosen)
    origin = dict(sources or {})
    build: TorchBuild | TrtllmBuild
    if chosen == "tensorrt-llm":
        check_trtllm(source.config, limits, gpu_capability())
        build = TrtllmBuild(source, tensors, limits, settings.lookahead, origin, workers)
        build.check_machine()
    else:
        build = TorchBuild(tensors, source_dir, source.config, limits, settings.lookahead, origin)
    with atomic_directory(target, force=force, sources=(source_dir,)) as folder:
        build.write(folder, progress)
    return open_engine(target)


def describe_build(
    checkpoint_dir: str | Path,
    settings: BuildSettings,
    *,
    output_dir: str | Path = "ENGINE",
    backend: str = "auto",
    dtype: str | None = None,
    workers: int = 1,
) -> BuildDescription:
    """What `build_engine` would do with the same arguments; reads config.json only.

    TensorRT-LLM need not be installed.

    Raises:
        UsageError: input or settings are not usable.
    """
    folder, (chosen, reason) = Path(checkpoint_dir), choose_backend(backend)
    source = read_source(folder, dtype)
    limits = plan_limits(settings, source.config, chosen)
    notes: list[str] = list(limits.notes)
    commands: tuple[str, ...] = ()
    if chosen == "tensorrt-llm":
        config, suffix = source.config, "engine"
        machine = gpu_capability(), installed_version()
        notes += check_trtllm(config, limits.build_config, *machine)
        commands = TrtllmCommand(source, Path(output_dir), limits.build_config, workers).lines()
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
        lookahead=settings.lookahead.as_tuple(),
        build_config=limits.build_config,
        memory=estimate_memory(config, limits.build_config),
        files=("config.json", *ranks, MANIFEST, *side_files(folder)),
        notes=tuple(notes),
        commands=commands,
    )
