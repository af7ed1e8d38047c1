"""Building: from a checkpoint or a Hugging Face folder to an engine, on disk or in memory.

A Hugging Face folder is converted on the way, tensor by tensor, without a second copy on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtla import __version__
from trtla.build import trtllm
from trtla.build.atomic import atomic_directory, check_target
from trtla.build.backend import choose_backend
from trtla.build.checkpoint import Checkpoint, torch_dtype
from trtla.build.convert import checkpoint_config, resolve_dtype
from trtla.build.engine_folder import MANIFEST, Engine, open_engine
from trtla.build.folder_kind import folder_kind
from trtla.build.hf import HFModel
from trtla.build.hf_config import read_hf_config
from trtla.build.plan import single_rank
from trtla.build.rank_writer import Progress, weight_bytes
from trtla.build.settings import BuildSettings, plan_build_config
from trtla.build.side_files import side_files
from trtla.build.source import TensorSource
from trtla.build.torch import TorchBuild
from trtla.config import BuildConfig, CheckpointConfig, EngineConfig, read_json, validate
from trtla.errors import UsageError


@dataclass(frozen=True, slots=True)
class BuildDescription:
    """What a build would do, for `--dry-run`. Sizes are in bytes."""

    source_kind: str
    backend: str
    reason: str
    dtype: str
    lookahead: tuple[int, int, int]
    build_config: BuildConfig
    weight_bytes: int
    kv_cache_bytes: int
    """Keys and values of max_batch_size sequences of max_seq_len tokens."""
    files: tuple[str, ...]

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
        sources: where each setting came from (flag, environment, ...), kept in trtla.json.
        progress: called with (bytes done, bytes in total).

    Raises:
        UsageError: input, settings or output folder are not usable; nothing was written.
        TrtlaError: the backend cannot build, the disk is full, or permission is missing.
    """
    source_dir, target = Path(checkpoint_dir), Path(output_dir)
    check_target(target, force=force, sources=(source_dir,))
    chosen, _ = choose_backend(backend)
    source, config = _open_source(source_dir, dtype)
    build_config = plan_build_config(settings, config)
    if chosen == "tensorrt-llm":
        trtllm.refuse()
    build = TorchBuild(
        source, source_dir, config, build_config, settings.lookahead, dict(sources or {})
    )
    with atomic_directory(target, force=force, sources=(source_dir,)) as folder:
        build.write(folder, progress)
    return open_engine(target)


def engine_from_hugging_face(
    path: str | Path, settings: BuildSettings | None = None, dtype: str = "auto"
) -> Engine:
    """An engine in memory: nothing is written, `weights()` converts on the fly.

    Here `auto` keeps the stored dtype: the float16 rule of `convert` is for TensorRT-LLM's files.

    Raises:
        UsageError: the folder or the settings are not usable.
    """
    asked, model = settings or BuildSettings(), HFModel.open(path)
    config = model.config if dtype == "auto" else checkpoint_config(model.config, dtype)
    engine = EngineConfig(
        version=__version__,
        pretrained_config=config,
        build_config=plan_build_config(asked, config),
    )
    return Engine(Path(path), engine, None, model, asked.lookahead)


def describe_build(
    checkpoint_dir: str | Path,
    settings: BuildSettings,
    *,
    backend: str = "auto",
    dtype: str | None = None,
) -> BuildDescription:
    """What `build_engine` would do with the same arguments; reads config.json only.

    Raises:
        UsageError: input or settings are not usable.
    """
    folder = Path(checkpoint_dir)
    kind, (chosen, reason) = folder_kind(folder), choose_backend(backend)
    config = _read_config(folder, dtype)
    build_config = plan_build_config(settings, config)
    weights = "rank0.safetensors" if chosen == "torch" else "rank0.engine"
    return BuildDescription(
        source_kind=kind,
        backend=chosen,
        reason=reason,
        dtype=config.dtype,
        lookahead=settings.lookahead.as_tuple(),
        build_config=build_config,
        weight_bytes=weight_bytes(single_rank(config)),
        kv_cache_bytes=kv_cache_bytes(config, build_config),
        files=("config.json", weights, MANIFEST, *side_files(folder)),
    )


def kv_cache_bytes(config: CheckpointConfig, build_config: BuildConfig) -> int:
    """Bytes of keys and values when every sequence of a full batch has its full length."""
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_size
    tokens = build_config.max_batch_size * build_config.max_seq_len
    return tokens * per_token * torch_dtype(config.dtype).itemsize


def _open_source(folder: Path, dtype: str | None) -> tuple[TensorSource, CheckpointConfig]:
    if _kind_to_build(folder) == "checkpoint":
        checkpoint = Checkpoint.open(folder)
        return checkpoint, _with_dtype(checkpoint.config, dtype)
    model = HFModel.open(folder)
    return model, checkpoint_config(model.config, dtype or "auto")


def _read_config(folder: Path, dtype: str | None) -> CheckpointConfig:
    path = folder / "config.json"
    if _kind_to_build(folder) == "checkpoint":
        return _with_dtype(validate(CheckpointConfig, read_json(path), str(path)), dtype)
    config, named = read_hf_config(path)
    return checkpoint_config(config, dtype or ("auto" if named else "float16"))


def _kind_to_build(folder: Path) -> str:
    kind = folder_kind(folder)
    if kind == "engine":
        raise UsageError(
            f"{folder} is an engine already",
            "give its checkpoint or Hugging Face folder as --checkpoint-dir",
        )
    return kind


def _with_dtype(config: CheckpointConfig, dtype: str | None) -> CheckpointConfig:
    if dtype is None or dtype == "auto":
        return config
    return config.model_copy(update={"dtype": resolve_dtype(dtype, config.dtype)})
