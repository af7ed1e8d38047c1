"""What an executor is opened with: one object from `LLM` down to both executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtla.settings.drafting import LOOKAHEAD, DrafterSettings, DraftOptions
from trtla.settings.fields import check, option
from trtla.settings.lookahead import LookaheadConfig

_LEAST_SHARE = 5e-324  # the smallest number above 0


@dataclass(frozen=True, slots=True)
class TrtllmSettings:
    """Settings of TensorRT-LLM's executor.

    Raises:
        UsageError: a value is out of its range.
    """

    kv_cache_free_gpu_memory_fraction: float = option(
        0.9,
        "Share of the free GPU memory that the K/V cache takes.",
        rule="above 0 and at most 1",
        least=_LEAST_SHARE,
        most=1.0,
    )
    kv_cache_enable_block_reuse: bool = option(
        False, "Share K/V blocks between prompts with the same beginning."
    )
    enable_chunked_context: bool = option(
        False, "Let prompts be longer than max_num_tokens; plain engines only."
    )
    scheduler_policy: Literal["guaranteed_no_evict", "max_utilization", "static_batch"] = option(
        "guaranteed_no_evict",
        "Whether a running request may be evicted to fill the batch; with static-batch none joins "
        "a running one.",
    )
    trtllm_executor: tuple[str, ...] = option(
        (),
        "Settings of its ExecutorConfig by their own names, such as "
        "kv_cache_config.max_tokens=8192 or enable_context_fmha_fp32_acc=true.",
        metavar="KEY=VALUE",
    )

    def __post_init__(self) -> None:
        check(self)


TRTLLM_DEFAULTS = TrtllmSettings()
_DRAFT_OPTIONS = DraftOptions()


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """Choices beside the engine; the defaults are the engine's own.

    What only one of the executors has is refused by the other when it differs from its default.

    Raises:
        UsageError: kv_cache_dtype is not known.
    """

    lookahead: LookaheadConfig | None = None
    """The default triple of requests; None takes the engine's own."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N (torch)."""
    dtype: str = "auto"
    """auto (the engine's), float32, bfloat16 or float16 (torch)."""
    kv_cache_dtype: Literal["auto", "int8"] = option(
        "auto",
        "Type of cached keys and values; auto is that of the arithmetic. int8 halves the "
        "memory of bfloat16 and rounds them (torch engines on CPUs).",
    )
    tp_size: int | None = option(
        None,
        "Processes that share the model out among them, each with its part of the weights: tensor "
        "parallelism. They are started here, unless torchrun has (torch engines).",
        shown="1, or as many as torchrun has started",
        least=1,
        most=1024,
    )
    lookahead_parallel: int | None = option(
        None,
        "Processes that each have the whole model and share out the drafts of every step, where "
        "tokens cost more than weights: lookahead parallelism, in place of tensor parallelism. "
        "They are started here, unless torchrun has (torch engines).",
        shown="1",
        least=1,
        most=1024,
    )
    max_batch_size: int | None = None
    """Requests in flight at once; None takes the engine's limit."""
    trtllm: TrtllmSettings = TRTLLM_DEFAULTS
    """Settings of TensorRT-LLM's executor."""
    draft_options: DraftOptions = _DRAFT_OPTIONS
    """How lookahead drafts (torch)."""
    drafter: DrafterSettings = LOOKAHEAD
    """What drafts for requests that ask for no other (torch)."""
    draft_device: str | None = None
    """Where draft models run; None is `device` (torch)."""
    draft_dtype: str | None = None
    """What draft models compute in; None is `dtype` (torch)."""
    block_reuse: bool = False
    """Keep texts' K/V blocks while there is room, and begin prompts that share their first tokens
    behind them (torch); benchmarks must not profit from it in silence."""
    bounded_steps: bool = False
    """Limit the prompt tokens of a step beside running texts, so that it takes about 4 times a step
    without any: for servers, as whole batches end a little later (torch)."""

    def __post_init__(self) -> None:
        check(self)


ENGINE_OPTIONS = ExecutorOptions()
"""All as the engine has it."""
