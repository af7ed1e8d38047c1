"""What the user asks of an engine, and the build limits that follow from it.

The rules are those of TensorRT-LLM's `build()` (builder.py): max_seq_len grows by max_draft_len,
and max_num_tokens covers one generation step of a full batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtla.config import (
    LOOKAHEAD_DECODING,
    NO_SPECULATION,
    BuildConfig,
    CheckpointConfig,
    validate,
)
from trtla.errors import UsageError
from trtla.lookahead import AUTOREGRESSIVE, LookaheadConfig

DEFAULT_INPUT_LEN = 1024
DEFAULT_SEQ_LEN = 2048
DEFAULT_NUM_TOKENS = 8192
"""TensorRT-LLM's BuildConfig default."""


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """The user's limits, in tokens and sequences; None takes a default that fits the model.

    `max_seq_len` is prompt + output of one request, without draft tokens. `max_draft_len` is for
    people who paste it from a TensorRT-LLM command: it must agree with the triple.
    """

    lookahead: LookaheadConfig = AUTOREGRESSIVE
    max_batch_size: int = 32
    max_input_len: int | None = None
    """None: 1024, at most max_seq_len."""
    max_seq_len: int | None = None
    """None: 2048, at most what the model's positions and sliding window allow."""
    max_num_tokens: int | None = None
    """None: 8192, at least one generation step of a full batch."""
    max_draft_len: int | None = None


def plan_build_config(settings: BuildSettings, config: CheckpointConfig) -> BuildConfig:
    """The limits that an engine of this model stores in its config.json.

    Raises:
        UsageError: a limit is below 1, contradicts another one, or exceeds the model's.
    """
    _check_positive(settings)
    draft_len = _draft_len(settings)
    seq_len = _seq_len(settings.max_seq_len, config)
    input_len = settings.max_input_len or min(DEFAULT_INPUT_LEN, seq_len)
    if input_len > seq_len:
        raise UsageError(
            f"max_input_len {input_len} is above max_seq_len {seq_len}",
            "lower --max-input-len, or raise --max-seq-len",
        )
    step_tokens = settings.max_batch_size * (draft_len + 1)
    data: dict[str, Any] = {
        "max_batch_size": settings.max_batch_size,
        "max_input_len": input_len,
        "max_seq_len": seq_len + draft_len,
        "max_num_tokens": max(settings.max_num_tokens or DEFAULT_NUM_TOKENS, step_tokens),
        "max_draft_len": draft_len,
        "speculative_decoding_mode": LOOKAHEAD_DECODING if draft_len else NO_SPECULATION,
        "plugin_config": {
            "dtype": config.dtype,
            "remove_input_padding": True,
            "paged_kv_cache": True,
            "tokens_per_block": 32,
        },
    }
    return validate(BuildConfig, data, "the build settings")


def _check_positive(settings: BuildSettings) -> None:
    for name in ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            flag = name.replace("_", "-")
            raise UsageError(f"{name} is {value}", f"--{flag} must be at least 1")


def _draft_len(settings: BuildSettings) -> int:
    needed, pasted = settings.lookahead.max_draft_len, settings.max_draft_len
    if pasted is not None and pasted != needed:
        raise UsageError(
            f"max_draft_len {pasted} disagrees with lookahead {settings.lookahead}, "
            f"which needs {needed}",
            "leave --max-draft-len away, it is computed, or correct --lookahead",
        )
    return needed


def _seq_len(asked: int | None, config: CheckpointConfig) -> int:
    positions, window = config.max_positions, config.sliding_window
    longest = min(positions, window or positions)
    if asked is None:
        return min(DEFAULT_SEQ_LEN, longest)
    if asked > positions:
        raise UsageError(
            f"max_seq_len {asked} is above the {positions} positions the model knows",
            f"use --max-seq-len {longest} or less",
        )
    if asked > longest:
        raise UsageError(
            f"max_seq_len {asked} is above the model's sliding window {longest}, "
            "which trtla does not apply",
            f"use --max-seq-len {longest} or less",
        )
    return asked
