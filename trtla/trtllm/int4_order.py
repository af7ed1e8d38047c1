"""Whether the installed TensorRT-LLM orders int4 weights as GeForce Blackwell's kernels read them.

Kernels of compute capability 12.x read the order of 8.0. Some releases order weights of two
dimensions by the capability itself (quantization/functional.py): what is computed then is wrong,
and nothing says so. The function runs on the CPU, so it is asked.
"""

from __future__ import annotations

from functools import cache

from trtla.machine import Capability
from trtla.trtllm.library import installed, load

_READ = 80
_SIZES = (128, 64)
"""Inputs, and bytes of outputs: whole tiles of every order."""


def is_affected(capability: Capability) -> bool:
    """Whether the order matters on a GPU."""
    return capability[0] == 12


@cache
def order_is_right(capability: Capability) -> bool | None:
    """Whether weights are ordered for a GPU as for 8.0; None: it cannot be asked here."""
    if not installed():
        return None
    import torch

    generator = torch.Generator().manual_seed(0)
    weights = torch.randint(-128, 128, _SIZES, dtype=torch.int8, generator=generator)
    major, minor = capability
    try:
        ordered = load("quantization.functional").preprocess_weights_for_mixed_gemm
        here, read = (
            ordered(weights.clone(), torch.quint4x2, torch.float16, sm_=sm)
            for sm in (10 * major + minor, _READ)
        )
    except Exception:  # releases before the function or its argument, or a library that is broken
        return None
    return torch.equal(here, read)
