"""How a model runs on CUDA: by the fast path, or by PyTorch's operations, and why."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from trtla.errors import UsageError
from trtla.formats.config import CheckpointConfig
from trtla.runtime.models.cuda.capture import CudaCapture
from trtla.runtime.models.cuda.fused import fused_problem
from trtla.runtime.models.cuda.self_test import remembered_problem

VARIABLE = "TRTLA_CUDA_PATH"


@dataclass(frozen=True, slots=True)
class CudaPath:
    """The choice for one model."""

    problem: str | None
    """Why not the fast path; None: that is it."""

    @property
    def fast(self) -> bool:
        """Attention over pages, CUDA graphs, fused kernels."""
        return self.problem is None

    def __str__(self) -> str:
        if self.problem is None:
            return "CUDA graphs, and Triton kernels over pages"
        return f"PyTorch's operations: {self.problem}"


def choose_path(config: CheckpointConfig, dtype: torch.dtype, device: torch.device) -> CudaPath:
    """The fast path where it can run and has passed its test."""
    asked = os.environ.get(VARIABLE) or "auto"
    if asked not in ("auto", "plain"):
        raise UsageError(f"{VARIABLE} is {asked!r}", "use auto or plain")
    if asked == "plain":
        return CudaPath(f"{VARIABLE}=plain says so")
    found = fused_problem(config, dtype, device)
    if found is None:
        found = remembered_problem(config, dtype, device, CudaCapture)
    return CudaPath(found)
