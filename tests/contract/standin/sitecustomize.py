"""What a process with the stand-in's folder on PYTHONPATH gets at its start.

Package metadata that names the release played, and, where TENSORRT_LLM_STANDIN_GPU is set, such as
to 9.0, a torch that reports a GPU once it is imported. Torch itself is not imported here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from typing import Any

VERSION = os.environ.get("TENSORRT_LLM_STANDIN_VERSION") or "1.2.1"
CAPABILITY = os.environ.get("TENSORRT_LLM_STANDIN_GPU")


class _Metadata(Distribution):
    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {VERSION}\n"

    def locate_file(self, path: Any) -> Path:
        return Path(__file__).parent / path


class _Finder(DistributionFinder):
    """Finds the distribution, and torch as usual, to patch it after its import."""

    def find_distributions(self, context: Any = None) -> Iterator[Distribution]:
        name = getattr(context, "name", None)
        if name is None or name.replace("-", "_").lower() == "tensorrt_llm":
            yield _Metadata()

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != "torch" or not CAPABILITY:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_patch(module: Any) -> None:
            import standin_gpu

            run(module)
            standin_gpu.patch(module.cuda, str(CAPABILITY))

        spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
