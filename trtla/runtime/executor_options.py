"""What an executor is opened with: one object from `LLM` down to both executors."""

from __future__ import annotations

from dataclasses import dataclass

from trtla.drafting import LOOKAHEAD, DrafterSettings
from trtla.lookahead import LookaheadConfig
from trtla.runtime.drafters.options import DraftOptions
from trtla.runtime.trtllm_settings import TrtllmSettings

TRTLLM_DEFAULTS = TrtllmSettings()
TENSORRT_LLM_DRAFTS = DraftOptions()
"""Lookahead as TensorRT-LLM drafts."""


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """Choices beside the engine; the defaults are the engine's own.

    What only one of the executors has is refused by the other when it differs from its default.
    """

    lookahead: LookaheadConfig | None = None
    """The server's triple; None takes the engine's own."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N (torch)."""
    dtype: str = "auto"
    """auto (the engine's), float32, bfloat16 or float16 (torch)."""
    max_batch_size: int | None = None
    """Requests in flight at once; None takes the engine's limit."""
    trtllm: TrtllmSettings = TRTLLM_DEFAULTS
    """Settings of TensorRT-LLM's executor."""
    draft_options: DraftOptions = TENSORRT_LLM_DRAFTS
    """How lookahead drafts (torch)."""
    drafter: DrafterSettings = LOOKAHEAD
    """What drafts for requests that ask for no other (torch)."""
    draft_device: str | None = None
    """Where draft models run; None is `device` (torch)."""
    draft_dtype: str | None = None
    """What draft models compute in; None is `dtype` (torch)."""
    block_reuse: bool = False
    """Keep ended texts' K/V blocks while there is room, and begin prompts that share their first
    tokens behind them (torch); benchmarks must not profit from it in silence."""


ENGINE_OPTIONS = ExecutorOptions()
"""All as the engine has it."""
