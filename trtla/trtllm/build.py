"""The TensorRT-LLM builder: a checkpoint becomes compiled engines, one for every rank.

What comes from elsewhere is made a TensorRT-LLM checkpoint first, inside the folder that is being
written. What TensorRT-LLM then wrote into config.json is compared with what was planned.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from trtla.errors import TrtlaError, UsageError
from trtla.files import read_json, validate, write_json
from trtla.formats.checkpoint import TensorSource
from trtla.formats.config import BuildConfig, CheckpointConfig, EngineConfig, EngineManifest
from trtla.formats.engine import MANIFEST
from trtla.formats.folder import copy_side_files
from trtla.formats.source import BuildSource, config_json
from trtla.formats.writer import Progress, RankWriter
from trtla.settings.lookahead import LookaheadConfig
from trtla.trtllm import rules as kernels
from trtla.trtllm.library import installed_version, require_backend
from trtla.trtllm.ranks import TIMING_CACHE, RankBuild, build_ranks
from trtla.trtllm.rules import gpu_capability
from trtla.version import __version__

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


@dataclass(frozen=True, slots=True)
class TrtllmBuild:
    """Everything that goes into a tensorrt-llm engine."""

    source: BuildSource
    tensors: TensorSource
    limits: BuildConfig
    lookahead: LookaheadConfig
    settings: dict[str, str]
    workers: int = 1

    def check_machine(self) -> None:
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
        if self.workers > gpus:
            raise UsageError(
                f"workers {self.workers} are more than the {gpus} GPU{'s' if gpus > 1 else ''} "
                "here",
                f"use --workers {gpus}: every worker has a GPU of its own",
            )

    def write(self, folder: Path, progress: Progress | None = None) -> None:
        """Write all files into an existing folder.

        Raises:
            OSError: the disk is full, or permission is missing.
            UsageError: a source file ends early, or a value does not fit the dtype.
            TrtlaError: a rank cannot be built, or came out other than planned.
        """
        config = self.source.config
        ranks = config.mapping.world_size
        with self._checkpoint(folder, progress) as checkpoint:
            build = RankBuild(checkpoint, folder, self.limits, config.dtype)
            build_ranks(build, ranks, self.workers)
            names = ["config.json", *(f"rank{rank}.safetensors" for rank in range(ranks))]
            sha256 = file_digest(checkpoint / name for name in names)
        (folder / TIMING_CACHE).unlink(missing_ok=True)
        check_written(folder, self.limits, config)
        copy_side_files(self.source.folder, folder)
        write_json(folder / MANIFEST, self._manifest(sha256).model_dump(mode="json"))

    @contextmanager
    def _checkpoint(self, folder: Path, progress: Progress | None) -> Iterator[Path]:
        """The source itself, or a checkpoint made of it that goes away at the end."""
        if self.source.is_checkpoint:
            yield self.source.folder
            return
        checkpoint = folder / "checkpoint"
        checkpoint.mkdir()
        try:
            RankWriter(checkpoint, self.source.config, progress).write(self.tensors)
            write_json(checkpoint / "config.json", config_json(self.source.config))
            yield checkpoint
        finally:
            shutil.rmtree(checkpoint)

    def _manifest(self, sha256: str) -> EngineManifest:
        capability = gpu_capability()
        return EngineManifest(
            backend="tensorrt-llm",
            lookahead=self.lookahead.as_tuple(),
            dtype=self.source.config.dtype,
            trtla_version=__version__,
            torch_version=torch.__version__,
            tensorrt_llm_version=installed_version(),
            compute_capability=kernels.show(capability) if capability else None,
            source=self.source.folder.name or str(self.source.folder),
            source_sha256=sha256,
            settings=self.settings,
        )


def file_digest(paths: Iterator[Path]) -> str:
    """SHA-256 over the bytes of files, in their order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
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
                "this release corrects settings in a way that trtla does not know: report it",
            )
    for rank in range(config.mapping.world_size):
        if not (folder / f"rank{rank}.engine").is_file():
            raise TrtlaError(
                f"TensorRT-LLM wrote no rank{rank}.engine", "its log above may tell why"
            )
