"""A stand-in for TensorRT-LLM, for contract tests. It is not TensorRT-LLM: see ../README.md.

Importing prints the banner on stdout as the real package does. What the releases with the TensorRT
backend have on top (builder, models, plugin, commands) lies in ../with_backend.
"""

from __future__ import annotations

from pathlib import Path

from . import logger as _logger_module
from ._utils import mpi_rank, mpi_world_size
from ._version import HAS_BACKEND, __version__
from .mapping import Mapping

logger = _logger_module.logger

__all__ = ["Mapping", "__version__", "logger", "mpi_rank", "mpi_world_size"]

if HAS_BACKEND:
    __path__.append(str(Path(__file__).parents[1] / "with_backend"))
    from .builder import BuildConfig, build

    __all__ += ["BuildConfig", "build"]

print(f"[TensorRT-LLM] TensorRT-LLM version: {__version__}", flush=True)
