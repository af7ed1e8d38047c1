"""Which executor an engine is built for: TensorRT-LLM's or trtla's own on torch."""

from __future__ import annotations

import torch

from trtla import kernels, trtllm_library
from trtla.errors import UsageError
from trtla.kernels import Capability

BACKENDS = ("torch", "tensorrt-llm")


def choose_backend(backend: str = "auto") -> tuple[str, str]:
    """(backend, why) for auto, torch or tensorrt-llm.

    `auto` takes tensorrt-llm where it is installed with its TensorRT backend, and a GPU is present
    on which it can run lookahead. It is imported only where the rest is there.

    Raises:
        UsageError: unknown backend.
    """
    if backend in BACKENDS:
        return backend, f"asked for with --backend {backend}"
    if backend != "auto":
        raise UsageError(f"backend {backend!r} is unknown", "use auto, torch or tensorrt-llm")
    return _auto()


def gpu_capability() -> Capability | None:
    """The compute capability of the first GPU that PyTorch can use; None without one."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return major, minor


def _auto() -> tuple[str, str]:
    """The cheap reasons first: importing TensorRT-LLM takes seconds."""
    if not trtllm_library.installed():
        return "torch", "TensorRT-LLM is not installed"
    capability = gpu_capability()
    if capability is None:
        return "torch", "TensorRT-LLM is installed, but there is no CUDA GPU"
    lookahead = kernels.lookahead_on(capability)
    if lookahead.allowed is False:
        return "torch", f"TensorRT-LLM has no lookahead on this GPU: {lookahead.reason}"
    library = trtllm_library.probe()
    if library.failure is not None:
        return "torch", f"TensorRT-LLM {library.version} cannot be imported: {library.failure}"
    if library.lost:
        return "torch", f"TensorRT-LLM {library.version} lacks {' and '.join(library.lost)}"
    shown = kernels.show(capability)
    return "tensorrt-llm", f"TensorRT-LLM is installed and the GPU has compute capability {shown}"
