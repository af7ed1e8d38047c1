"""Which executor an engine is built for: TensorRT-LLM's or trtla's own on torch."""

from __future__ import annotations

import importlib.util

import torch

from trtla.errors import UsageError

BACKENDS = ("torch", "tensorrt-llm")
_MIN_CAPABILITY = (8, 0)


def choose_backend(backend: str = "auto") -> tuple[str, str]:
    """(backend, why) for auto, torch or tensorrt-llm.

    `auto` takes tensorrt-llm where it is installed and a GPU of compute capability >= 8.0 is
    present.

    Raises:
        UsageError: unknown backend.
    """
    if backend in BACKENDS:
        return backend, f"asked for with --backend {backend}"
    if backend != "auto":
        raise UsageError(f"backend {backend!r} is unknown", "use auto, torch or tensorrt-llm")
    if importlib.util.find_spec("tensorrt_llm") is None:
        return "torch", "TensorRT-LLM is not installed"
    if not torch.cuda.is_available():
        return "torch", "TensorRT-LLM is installed, but there is no CUDA GPU"
    capability = torch.cuda.get_device_capability()
    shown = f"compute capability {capability[0]}.{capability[1]}"
    if capability < _MIN_CAPABILITY:
        return "torch", f"TensorRT-LLM is installed, but the GPU has {shown}, below 8.0"
    return "tensorrt-llm", f"TensorRT-LLM is installed and the GPU has {shown}"
