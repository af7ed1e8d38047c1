"""What the user asks of an engine, and the build limits that follow from it.

The rules are those of TensorRT-LLM's `build()` (builder.py, _common.py): max_seq_len grows by
max_draft_len, and max_num_tokens covers one generation step of a full batch, but no more than a
full batch can hold. Every correction is described in one sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trtla.errors import UsageError
from trtla.files import validate
from trtla.formats.config import (
    LOOKAHEAD_DECODING,
    NO_SPECULATION,
    TOKENS_PER_BLOCK,
    BuildConfig,
    CheckpointConfig,
)
from trtla.settings.fields import wrong
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig

DEFAULT_INPUT_LEN = 1024
DEFAULT_SEQ_LEN = 2048
DEFAULT_NUM_TOKENS = 8192
"""TensorRT-LLM's BuildConfig default."""
RECOMMENDED_NUM_TOKENS = 16384
"""TensorRT-LLM warns of a larger max_num_tokens (check_max_num_tokens)."""


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """The user's limits, in tokens and sequences; None takes a default that fits the model.

    `max_seq_len` is prompt + output of one request, without draft tokens. `max_draft_len` is for
    people who paste it from a TensorRT-LLM command: it must agree with the triple.
    """

    lookahead: LookaheadConfig = AUTOREGRESSIVE
    max_batch_size: int = 32
    max_input_len: int | None = None
    """None: max_seq_len, for TensorRT-LLM at most 1024."""
    max_seq_len: int | None = None
    """None: 2048, at most what the model's positions and sliding window allow."""
    max_num_tokens: int | None = None
    """None: 8192, at least one generation step of a full batch."""
    max_draft_len: int | None = None
    gather_context_logits: bool = False
    """Logits of the prompt; TensorRT-LLM has them in plain engines only."""
    trtllm: tuple[str, ...] = ()
    """KEY=VALUE: fields of TensorRT-LLM's BuildConfig and PluginConfig, by their own names."""
    timing_cache: Path | None = None
    """Where TensorRT's measurements of kernels are read, and written for the next build."""


class PlannedLimits(NamedTuple):
    """The limits of an engine, and a sentence for each one that differs from what was asked."""

    build_config: BuildConfig
    notes: tuple[str, ...]


def plan_limits(
    settings: BuildSettings, config: CheckpointConfig, backend: str = "torch"
) -> PlannedLimits:
    """The limits that an engine of this model stores in its config.json, corrections included.

    Given to TensorRT-LLM's `build()`, they are not corrected any further.
    """
    _check(settings)
    seq_len = _seq_len(settings.max_seq_len, config)
    most = seq_len if backend == "torch" else DEFAULT_INPUT_LEN
    input_len = settings.max_input_len or min(most, seq_len)
    if input_len > seq_len:
        raise UsageError(
            f"max_input_len {input_len} is above max_seq_len {seq_len}",
            "lower --max-input-len, or raise --max-seq-len",
        )
    draft_len = settings.lookahead.max_draft_len
    most_fed = max(settings.max_num_tokens or 0, DEFAULT_NUM_TOKENS)
    if backend == "torch" and draft_len >= most_fed:
        raise UsageError(
            f"lookahead {settings.lookahead} feeds {draft_len + 1} tokens in every step of a "
            f"sequence, above {most_fed}",
            "use a smaller --lookahead; 7,7,7 feeds 84 tokens",
        )
    num_tokens, notes = _num_tokens(settings, input_len, seq_len, compiled=backend != "torch")
    data: dict[str, Any] = {
        "max_batch_size": settings.max_batch_size,
        "max_input_len": input_len,
        "max_seq_len": seq_len + draft_len,
        "max_num_tokens": num_tokens,
        "max_draft_len": draft_len,
        "speculative_decoding_mode": LOOKAHEAD_DECODING if draft_len else NO_SPECULATION,
        "kv_cache_type": "PAGED",
        "gather_context_logits": settings.gather_context_logits,
        "plugin_config": {
            "dtype": config.dtype,
            "remove_input_padding": True,
            "paged_kv_cache": True,
            "tokens_per_block": TOKENS_PER_BLOCK,
        },
    }
    return PlannedLimits(validate(BuildConfig, data, "the build settings"), tuple(notes))


def _num_tokens(
    settings: BuildSettings, input_len: int, seq_len: int, *, compiled: bool
) -> tuple[int, list[str]]:
    """max_num_tokens after all corrections; every limit's corrections, in the order of `build()`.

    Args:
        compiled: whether TensorRT-LLM's own rules hold as well.
    """
    batch_size, draft_len = settings.max_batch_size, settings.lookahead.max_draft_len
    notes: list[str] = []
    if draft_len:
        what = f"max_seq_len {seq_len}"
        raised = f"build() raises {what}" if compiled else f"{what} is raised"
        notes.append(f"{raised} by max_draft_len {draft_len} to {seq_len + draft_len}")
    step = batch_size * (draft_len + 1)
    drafts = f" x (max_draft_len {draft_len} + 1)" if draft_len else ""
    needs = [(step, f" = max_batch_size {batch_size}{drafts}")]
    num_tokens = settings.max_num_tokens or DEFAULT_NUM_TOKENS
    if compiled:
        full = batch_size * seq_len
        if num_tokens > full:
            rule = f"max_batch_size {batch_size} x max_seq_len {seq_len}"
            notes.append(f"build() lowers max_num_tokens {num_tokens} to {full} = {rule}")
            num_tokens = full
        # Longer prompts than max_num_tokens are refused one by one (trtGptModel.h).
        needs.append((input_len, " = max_input_len: a prompt is read in one step"))
        needs.append((TOKENS_PER_BLOCK, ", one block of the K/V cache"))
    for need, rule in needs:
        if need > num_tokens:
            notes.append(f"max_num_tokens {num_tokens} is raised to {need}{rule}")
            num_tokens = need
    if compiled and num_tokens > RECOMMENDED_NUM_TOKENS:
        notes.append(
            f"max_num_tokens {num_tokens} is above {RECOMMENDED_NUM_TOKENS}, which TensorRT-LLM "
            f"advises against: max_batch_size {batch_size} feeds {step} tokens in a step"
        )
    return num_tokens, notes


def _check(settings: BuildSettings) -> None:
    for name in ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise wrong(name, value, "at least 1")
    needed, pasted = settings.lookahead.max_draft_len, settings.max_draft_len
    if pasted is not None and pasted != needed:
        raise UsageError(
            f"max_draft_len {pasted} disagrees with lookahead {settings.lookahead}, "
            f"which needs {needed}",
            "omit --max-draft-len, it is computed, or correct --lookahead",
        )
    if settings.gather_context_logits and needed:
        raise UsageError(
            f"gather_context_logits does not go with lookahead {settings.lookahead}: TensorRT-LLM "
            "gathers no context logits in engines with draft tokens",
            "omit --gather-context-logits, or build a plain engine without --lookahead",
        )


def _seq_len(requested: int | None, config: CheckpointConfig) -> int:
    positions, window = config.max_positions, config.sliding_window
    longest = min(positions, window or positions)
    if requested is None:
        return min(DEFAULT_SEQ_LEN, longest)
    if requested > positions:
        raise UsageError(
            f"max_seq_len {requested} is above the {positions} positions of the model",
            f"use --max-seq-len {longest} or less",
        )
    if requested > longest:
        raise UsageError(
            f"max_seq_len {requested} is above the model's sliding window {longest}, "
            "which trtla does not apply",
            f"use --max-seq-len {longest} or less",
        )
    return requested
