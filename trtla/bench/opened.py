"""A model opened to be measured: what it runs on and in, and its tokenizer, which is taken away
from it so that no arm pays for text while it is timed.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trtla.data.prompt_sets import prompt_room
from trtla.errors import UsageError
from trtla.runtime.models.load import resolve_dtype

if TYPE_CHECKING:
    from trtla.llm.llm import LLM
    from trtla.llm.text import Tokenizer


class OpenedModel:
    """An `LLM` from which measuring takes over; it is used for nothing else.

    Args:
        llm: the model.
        device: what it was opened on.
        dtype: the type that was asked for; auto is the engine's.
        ignore_eos: whether texts go on behind an end token.

    Raises:
        UsageError: it has no tokenizer.
    """

    def __init__(self, llm: LLM, device: torch.device, dtype: str, *, ignore_eos: bool) -> None:
        self.llm, self.device = llm, device
        self.checkpoint = llm.engine.config.pretrained_config
        self.dtype = resolve_dtype(dtype, self.checkpoint.dtype, device)
        self.tokenizer = take_tokenizer(llm)
        if ignore_eos:
            llm.end_ids = frozenset()

    @property
    def dtype_name(self) -> str:
        """Such as `bfloat16`."""
        return str(self.dtype).removeprefix("torch.")

    def room(self, max_output_len: int) -> int:
        """Tokens that a prompt may have.

        Raises:
            UsageError: there are none.
        """
        return prompt_room(self.llm.limits, max_output_len)


def take_tokenizer(llm: LLM) -> Tokenizer:
    """The model's tokenizer, taken away from it: no arm pays for text.

    Raises:
        UsageError: it has none.
    """
    tokenizer, llm.tokenizer = llm.tokenizer, None
    if tokenizer is None:
        raise UsageError(
            f"{llm.engine.name} has no tokenizer files", "give them with --tokenizer-dir"
        )
    return tokenizer


_BYTES = 2**29
_TRIES = 5
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def read_bandwidth(device: torch.device, size: int = _BYTES) -> float:
    """Bytes a second, the best of some tries: a sum on the CPU, a copy on CUDA (read + write)."""
    data = torch.ones(size // 4, device=device)
    target = torch.empty_like(data) if device.type == "cuda" else None
    best = float("inf")
    for _ in range(_TRIES + 1):
        start = time.perf_counter()
        if target is None:
            data.sum()
        else:
            target.copy_(data)
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return size * (1 if target is None else 2) / best


def reset_peak(device: torch.device) -> None:
    """Start counting peak memory anew, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _CLEAR.write_text("5")  # Linux: VmHWM starts again at the resident size
    except OSError:
        return


def peak_bytes(device: torch.device) -> int:
    """Most memory since `reset_peak`: of the device on CUDA, else resident in this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        match = re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        match = None
    return int(match[1]) * 1024 if match else _max_resident()


def _max_resident() -> int:
    try:
        import resource
    except ImportError:  # not on every system
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit
