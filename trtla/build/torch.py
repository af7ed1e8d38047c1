"""The torch builder: an engine folder in TensorRT-LLM's layout, with its weights as safetensors.

Whatever the source's split, the engine has one rank: `rank0.safetensors`, config.json, trtla.json
and the tokenizer files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

import trtla
from trtla.build.background_hash import BackgroundHash
from trtla.build.convert import config_json
from trtla.build.plan import single_rank
from trtla.build.rank_writer import Progress, RankWriter, write_json
from trtla.build.side_files import copy_side_files
from trtla.build.source import TensorSource
from trtla.config import BuildConfig, CheckpointConfig, EngineConfig, EngineManifest
from trtla.lookahead import LookaheadConfig


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """Everything that goes into a torch engine; `config` has the engine's dtype."""

    source: TensorSource
    source_dir: Path
    config: CheckpointConfig
    build_config: BuildConfig
    lookahead: LookaheadConfig
    settings: dict[str, str]

    def engine_config(self) -> EngineConfig:
        """The engine's config.json."""
        return EngineConfig(
            version=trtla.__version__,
            pretrained_config=single_rank(self.config),
            build_config=self.build_config,
        )

    def write(self, folder: Path, progress: Progress | None = None) -> None:
        """Write all files into an existing folder.

        Raises:
            OSError: the disk is full, or permission is missing.
            UsageError: a source file ends early, or a value does not fit the dtype.
        """
        config = self.engine_config()
        pretrained = config_json(config.pretrained_config)
        # The same model gives the same digest however it was split over ranks.
        with BackgroundHash() as digest:
            digest.update(json.dumps(pretrained, sort_keys=True).encode())
            RankWriter(folder, config.pretrained_config, progress, digest).write(self.source)
            sha256 = digest.hexdigest()
        copy_side_files(self.source_dir, folder)
        write_json(
            folder / "config.json",
            {**config.model_dump(mode="json"), "pretrained_config": pretrained},
        )
        manifest = self._manifest(sha256)
        write_json(folder / "trtla.json", manifest.model_dump(mode="json"))

    def _manifest(self, sha256: str) -> EngineManifest:
        return EngineManifest(
            backend="torch",
            lookahead=self.lookahead.as_tuple(),
            dtype=self.config.dtype,
            trtla_version=trtla.__version__,
            torch_version=torch.__version__,
            source=self.source_dir.name or str(self.source_dir),
            source_sha256=sha256,
            settings=self.settings,
        )
