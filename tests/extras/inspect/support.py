"""Packages that look like TensorRT-LLM in one of its states, and GPUs that look like NVIDIA's."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from trtla.trtllm.library import installed

EXECUTOR = "class Executor: ...\nclass LookaheadDecodingConfig: ...\n"
REQUEST = "class Request:\n    lookahead_config = None\n"

without_tensorrt_llm = pytest.mark.skipif(installed(), reason="TensorRT-LLM is installed here")


def install(
    patch: pytest.MonkeyPatch,
    folder: Path,
    version: str = "1.2.1",
    *,
    at_import: str = "",
    builder: bool = True,
    executor: str = EXECUTOR + REQUEST,
) -> None:
    """Put a package tensorrt_llm of these parts first on sys.path."""
    package = folder / "site" / "tensorrt_llm"
    (package / "bindings").mkdir(parents=True)
    (package / "__init__.py").write_text(at_import)
    (package / "bindings" / "__init__.py").touch()
    (package / "bindings" / "executor.py").write_text(executor)
    if builder:
        (package / "builder.py").touch()
    info = folder / "site" / f"tensorrt_llm-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {version}\n"
    )
    forget()
    patch.syspath_prepend(str(package.parent))


def forget() -> None:
    """Make the next import look at sys.path again."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]
    importlib.invalidate_caches()


def put_program(patch: pytest.MonkeyPatch, folder: Path, name: str, text: str) -> None:
    """Put a program first on PATH."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    (place / name).write_text(text)
    (place / name).chmod(0o755)
    patch.setenv("PATH", str(place), prepend=":")


def plug_in(patch: pytest.MonkeyPatch, *capabilities: tuple[int, int]) -> None:
    """Let PyTorch see GPUs of these compute capabilities, each with 24 of 80 GB in use."""
    import torch

    driver = ("580.0", "13.0") if capabilities else (None, None)
    patch.setattr("trtla.runtime.device.loaded_driver", lambda: driver)
    for name, value in {
        "is_available": lambda: bool(capabilities),
        "device_count": lambda: len(capabilities),
        "current_device": lambda: 0,
        "get_device_capability": lambda index=0: capabilities[index],
        "get_device_name": lambda index=0: f"NVIDIA GPU {index}",
        "mem_get_info": lambda index=0: (56 * 10**9, 80 * 10**9),
    }.items():
        patch.setattr(torch.cuda, name, value)
