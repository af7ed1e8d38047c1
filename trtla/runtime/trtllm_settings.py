"""How TensorRT-LLM's executor runs an engine; names and defaults of its run.py.

Checked values only: the command line fills them in, trtla.runtime.trtllm_start reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtla.errors import UsageError


@dataclass(frozen=True, slots=True)
class TrtllmSettings:
    """Settings of TensorRT-LLM's executor.

    Raises:
        UsageError: a value is out of its range.
    """

    kv_cache_free_gpu_memory_fraction: float = 0.9
    """Share of the GPU memory left after loading that the K/V cache takes."""
    kv_cache_enable_block_reuse: bool = False
    """Share blocks between requests with the same beginning."""
    enable_chunked_context: bool = False
    """Let prompts be longer than max_num_tokens; plain engines only."""
    scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] = "guaranteed_no_evict"

    def __post_init__(self) -> None:
        share = self.kv_cache_free_gpu_memory_fraction
        if not 0.0 < share <= 1.0:
            raise UsageError(
                f"kv_cache_free_gpu_memory_fraction is {share}",
                "--kv-cache-free-gpu-memory-fraction must be above 0 and at most 1",
            )
