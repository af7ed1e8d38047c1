"""build(), Engine and EngineConfig; TensorRT-LLM builder.py.

The engine is the rank's tensors behind a header that names the release and the GPU architecture,
because real engines run on those that built them only.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from ._build_config import BuildConfig
from ._build_rules import apply_rules
from ._deprecation import emit_engine_arch_deprecation
from ._engine_blob import pack
from ._utils import get_sm_version
from ._version import __version__
from .logger import logger
from .models import LLaMAForCausalLM, PretrainedConfig

__all__ = ["BuildConfig", "Engine", "EngineConfig", "build"]


class EngineConfig:
    def __init__(
        self, pretrained_config: PretrainedConfig, build_config: Any, version: str
    ) -> None:
        self.pretrained_config = pretrained_config
        self.build_config = build_config
        self.version = version

    def to_dict(self) -> dict[str, Any]:
        """What config.json holds: no dry_run, no visualize_network, no rank."""
        build_config = self.build_config.to_dict()
        for name in ("dry_run", "visualize_network"):
            build_config.pop(name, None)
        return {
            "version": self.version,
            "pretrained_config": self.pretrained_config.to_dict(),
            "build_config": build_config,
        }


class Engine:
    """One rank's engine; `engine` is None after a dry run."""

    def __init__(self, config: EngineConfig, engine: bytes | None) -> None:
        self.config = config
        self.engine = engine

    def save(self, engine_dir: str | Path) -> None:
        """Write rank{r}.engine, and config.json for rank 0."""
        folder = Path(engine_dir)
        folder.mkdir(parents=True, exist_ok=True)
        rank = self.config.pretrained_config.mapping.rank
        if rank == 0:
            text = json.dumps(self.config.to_dict(), indent=4)
            (folder / "config.json").write_text(text, encoding="utf-8")
        if self.engine is not None:
            path = folder / f"rank{rank}.engine"
            logger.info(f"Serializing engine to {path}...")
            path.write_bytes(self.engine)


def _time_kernels(model: LLaMAForCausalLM, build_config: Any) -> None:
    """Read the measurements that are there; rank 0 writes them with its own.

    The default, a file in the working directory, is left out.
    """
    cache = build_config.input_timing_cache
    known = Path(cache).read_bytes() if cache is not None and Path(cache).exists() else b""
    written = build_config.output_timing_cache
    if written not in (None, "model.cache") and model.config.mapping.rank == 0:
        Path(written).write_bytes(known + b"measured\n")


def build(model: LLaMAForCausalLM, build_config: Any) -> Engine:
    """Build one rank's engine; the given configuration is not changed."""
    emit_engine_arch_deprecation("builder.build()")
    if not isinstance(build_config, BuildConfig):
        raise AttributeError(f"'{type(build_config).__name__}' object is no BuildConfig")
    build_config = copy.deepcopy(build_config)
    apply_rules(model.config, build_config, get_sm_version())
    if not model.tensors:
        raise RuntimeError("Engine building failed, please check the error log.")
    config = EngineConfig(copy.deepcopy(model.config), build_config, __version__)
    if build_config.dry_run:
        return Engine(config, None)
    logger.info("Build TensorRT engine Unnamed Network 0")
    _time_kernels(model, build_config)
    blob = pack(model.tensors, __version__, get_sm_version())
    logger.info("Total time of building Unnamed Network 0: 00:00:00")
    return Engine(config, blob)
