"""The TensorRT-LLM builder: a checkpoint becomes compiled engines, one for every rank.

What comes from elsewhere is made a TensorRT-LLM checkpoint first, inside the folder that is being
written. What TensorRT-LLM then wrote into config.json is compared with what was planned.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from trtla.console import counted
from trtla.errors import TrtlaError, UsageError
from trtla.files import read_json, validate, write_json
from trtla.formats.config import BuildConfig, CheckpointConfig, EngineConfig
from trtla.formats.engine import MANIFEST, new_manifest
from trtla.formats.folder import copy_side_files
from trtla.formats.source import EngineBuild, config_json
from trtla.formats.writer import Progress, write_ranks
from trtla.trtllm.library import installed_version, require_backend
from trtla.trtllm.ranks import TIMING_CACHE, RankBuild, build_ranks
from trtla.trtllm.rules import gpu_capability, show

_PLANNED = (
    "max_draft_len",
    "max_batch_size",
    "max_beam_width",
    "max_input_len",
    "max_seq_len",
    "max_num_tokens",
    "speculative_decoding_mode",
    "gather_context_logits",
)
_PIECE = 2**22


def check_machine(workers: int) -> None:
    """Whether this machine can build, before anything is written.

    Raises:
        TrtlaError: TensorRT-LLM is absent or lacks its TensorRT backend.
        UsageError: there is no GPU, or there are fewer than workers.
    """
    require_backend()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not gpus:
        raise UsageError(
            "TensorRT-LLM builds on a GPU, and PyTorch sees none here", "use --backend torch"
        )
    if workers > gpus:
        raise UsageError(
            f"workers {workers} are more than the {counted(gpus, 'GPU')} here",
            f"use --workers {gpus}: every worker has a GPU of its own",
        )


def write_compiled(
    build: EngineBuild, folder: Path, workers: int, progress: Progress | None = None
) -> None:
    """Write all files of a compiled engine into an existing folder.

    Raises:
        OSError: the disk is full, or permission is missing.
        UsageError: a source file ends early, or a value does not fit the dtype.
        TrtlaError: a rank cannot be built, or came out other than planned.
    """
    config = build.source.config
    ranks = config.mapping.world_size
    with _checkpoint(build, folder, progress) as checkpoint:
        build_ranks(RankBuild(checkpoint, folder, build.limits, config.dtype), ranks, workers)
        sha256 = folder_digest(checkpoint, ranks, "safetensors")
    (folder / TIMING_CACHE).unlink(missing_ok=True)
    check_written(folder, build.limits, config)
    copy_side_files(build.source.folder, folder)
    capability = gpu_capability()
    manifest = new_manifest(
        "tensorrt-llm",
        build,
        sha256,
        tensorrt_llm_version=installed_version(),
        compute_capability=show(capability) if capability else None,
    )
    write_json(folder / MANIFEST, manifest.model_dump(mode="json"))


@contextmanager
def _checkpoint(build: EngineBuild, folder: Path, progress: Progress | None) -> Iterator[Path]:
    """The source itself, or a checkpoint made of it that is removed at the end."""
    if build.source.is_checkpoint:
        yield build.source.folder
        return
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    try:
        write_ranks(checkpoint, build.source.config, build.tensors, progress)
        write_json(checkpoint / "config.json", config_json(build.source.config))
        yield checkpoint
    finally:
        shutil.rmtree(checkpoint)


def folder_digest(folder: Path, ranks: int, suffix: str) -> str:
    """SHA-256 over the bytes of config.json and the rank files."""
    digest = hashlib.sha256()
    for name in ("config.json", *(f"rank{rank}.{suffix}" for rank in range(ranks))):
        with (folder / name).open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    return digest.hexdigest()


def check_written(folder: Path, planned: BuildConfig, config: CheckpointConfig) -> None:
    """Compare what TensorRT-LLM wrote with what was planned.

    Raises:
        TrtlaError: a rank is missing, or a key of build_config differs; both values are named.
    """
    path = folder / "config.json"
    written = validate(EngineConfig, read_json(path), str(path)).build_config
    wanted = {name: getattr(planned, name) for name in _PLANNED}
    found = {name: getattr(written, name) for name in _PLANNED}
    wanted["kv_cache_type"], found["kv_cache_type"] = "PAGED", str(written.kv_cache_type).upper()
    for name, value in (
        ("gpt_attention_plugin", config.dtype),
        ("gemm_plugin", config.dtype),
        ("remove_input_padding", True),
        ("paged_kv_cache", True),
    ):
        wanted[f"plugin_config.{name}"] = value
        found[f"plugin_config.{name}"] = written.plugin_config.get(name)
    for name, value in wanted.items():
        if found[name] != value:
            raise TrtlaError(
                f"TensorRT-LLM wrote {name} {found[name]} into the engine, planned was {value}",
                "this release corrects settings in a way that is new to trtla: report it",
            )
    for rank in range(config.mapping.world_size):
        if not (folder / f"rank{rank}.engine").is_file():
            raise TrtlaError(
                f"TensorRT-LLM wrote no rank{rank}.engine", "its log above may say why"
            )
