"""Programmatic dependent launches: a kernel's programs start while the one before it still ends.

What has been launched so waits for the kernel before it as a whole, and only then reads or writes;
so it must begin with `after_previous`. GPUs before compute capability 9.0 launch one after another.
"""

# Triton comes without type hints and is not there on every machine; its constants are capitals.
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl

_CAPABILITY = (9, 0)
LEVEL = 2


@triton.jit
def after_previous(PDL: tl.constexpr) -> None:
    """Wait for the kernel before this one, and let the next one's programs start."""
    if PDL:
        tl.extra.cuda.gdc_wait()
    if PDL == 2:
        tl.extra.cuda.gdc_launch_dependents()


@lru_cache(maxsize=16)
def overlapping(device: torch.device) -> dict[str, bool]:
    """Arguments of a launch of a kernel that begins with `after_previous`."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _CAPABILITY:
        return {}
    return {"PDL": LEVEL, "launch_pdl": True}
