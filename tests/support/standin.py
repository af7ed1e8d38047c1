"""The stand-in for TensorRT-LLM, as tests see it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / "contract" / "standin"


@dataclass(frozen=True)
class Standin:
    """The stand-in in force; subprocesses inherit it through the environment."""

    version: str

    def load(self, name: str = "") -> ModuleType:
        """Import the package, or one of its modules, e.g. `load("bindings.executor")`."""
        return importlib.import_module(f"tensorrt_llm.{name}" if name else "tensorrt_llm")
