"""Engines: open them, build them, or make one in memory from a Hugging Face folder.

The public face of trtla.build; the pieces are in engine_folder, in_memory, settings, backend and
builder.
"""

from __future__ import annotations

from trtla.build.backend import choose_backend
from trtla.build.builder import BuildDescription, build_engine, describe_build
from trtla.build.engine_folder import Engine, open_engine
from trtla.build.in_memory import engine_from_hugging_face
from trtla.build.settings import BuildSettings, plan_build_config

__all__ = [
    "BuildDescription",
    "BuildSettings",
    "Engine",
    "build_engine",
    "choose_backend",
    "describe_build",
    "engine_from_hugging_face",
    "open_engine",
    "plan_build_config",
]
