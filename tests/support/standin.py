"""The stand-in for TensorRT-LLM, as tests see it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

_OLDEST, _BETWEEN, _NEWEST = "0.20.0", ("0.21.0", "1.0.0", "1.1.0"), "1.2.1"
EVERY_RELEASE = pytest.mark.parametrize(
    "standin",
    [_OLDEST, _NEWEST, *(pytest.param(one, marks=pytest.mark.deep) for one in _BETWEEN)],
    indirect=True,
)
"""Runs on each release that has the TensorRT backend, by default on the oldest and the newest."""
FOLDER = Path(__file__).parents[1] / "contract" / "standin"


@dataclass(frozen=True)
class Standin:
    """The stand-in in force; subprocesses inherit it through the environment."""

    version: str

    def load(self, name: str = "") -> ModuleType:
        """Import the package, or one of its modules, e.g. `load("bindings.executor")`."""
        return importlib.import_module(f"tensorrt_llm.{name}" if name else "tensorrt_llm")
