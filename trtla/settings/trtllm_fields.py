"""TensorRT-LLM settings that are passed through by its own names, as KEY=VALUE.

Names are those of its classes, nested with dots: `plugin_config.reduce_fusion`. The last part is
enough where it is unique. Settings that trtla chooses itself are refused, with the flag for them
in the hint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trtla.errors import UsageError, did_you_mean

Kind = str | tuple[str, ...]
"""int, number, bool, text, ints (with commas between), any, or the choices."""
Kinds = Mapping[str, Kind]

ON, OFF = ("true", "enable", "on", "yes", "1", "t"), ("false", "disable", "off", "no", "0", "f")
"""Values of a switch, there and here."""
_NOTHING = ("none", "null", "disable")


@dataclass(frozen=True, slots=True)
class Group:
    """The settings that one flag passes through."""

    flag: str
    owner: str
    """The class that has the fields, for errors."""
    kinds: Kinds
    held: Mapping[str, str]
    """Settings that trtla chooses, and how to choose them."""


def read(group: Group, pairs: Sequence[str], more: Callable[[], Kinds] = dict) -> dict[str, Any]:
    """The values by full name; `more` returns fields that the installed library adds to these."""
    values: dict[str, Any] = {}
    for pair in pairs:
        key, mark, text = pair.partition("=")
        if not mark or not key.strip():
            raise UsageError(
                f"{group.flag} {pair} is no KEY=VALUE", f"such as {group.flag} {_example(group)}"
            )
        name, kind = _named(group, key.strip().replace("-", "_"), more)
        values[name] = read_value(f"{group.flag} {name}=", kind, text.strip())
    return values


def _example(group: Group) -> str:
    return next(f"{name}=true" for name, kind in group.kinds.items() if kind == "bool")


def _named(group: Group, key: str, more: Callable[[], Kinds]) -> tuple[str, Kind]:
    held = _find(key, group.held)
    if held is not None:
        raise UsageError(f"{group.flag} {held} is not free: {group.held[held]}", None)
    name, kinds = _find(key, group.kinds), group.kinds
    if name is None:
        kinds = more()
        name = _find(key, kinds)
    if name is None:
        every = [*group.kinds, *kinds]
        shorts = [full.rpartition(".")[2] for full in every]
        raise UsageError(
            f"{group.flag} {key}: TensorRT-LLM's {group.owner} has no such setting, or none that "
            "is a plain value",
            f"{did_you_mean(key, [*every, *shorts])}names are those of its classes, such as "
            f"{_example(group)}",
        )
    return name, kinds[name]


def _find(key: str, names: Mapping[str, Any]) -> str | None:
    """The full name: of this name, or the only one that ends with it."""
    if key in names:
        return key
    ending = [name for name in names if name.endswith(f".{key}")]
    return ending[0] if len(ending) == 1 else None


def read_value(start: str, kind: Kind, text: str) -> Any:
    """The value of a setting; `start` comes before it in an error."""
    low = text.lower()
    if isinstance(kind, tuple):
        match = next((choice for choice in kind if choice.lower() == low), None)
        if match is None and not (low in _NOTHING and "none" in kind):
            raise UsageError(f"{start}{text} is not one of {', '.join(kind)}", "use one of them")
        return None if match in (None, "none") else match
    if kind == "bool":
        if low in ON or low in OFF:
            return low in ON
    elif kind == "text":
        return None if low in _NOTHING else text
    elif kind == "any":
        return _any(text)
    else:
        with suppress(ValueError):
            if kind == "ints":
                return [int(part) for part in text.split(",")]
            return int(text) if kind == "int" else float(text)
    words = {"bool": "true or false", "int": "a whole number", "number": "a number"}
    must = words.get(kind, "whole numbers with commas between")
    raise UsageError(f"{start}{text} is not {must}", "omit it for TensorRT-LLM's default")


def _any(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _kinds(names: Mapping[Kind, str], prefix: str = "") -> dict[str, Kind]:
    return {f"{prefix}{name}": kind for kind, listed in names.items() for name in listed.split()}


_FLOATS = ("auto", "float16", "bfloat16", "float32")
BUILD = Group(
    "--trtllm",
    "BuildConfig",
    _kinds(
        {
            "int": "opt_batch_size opt_num_tokens max_prompt_embedding_table_size "
            "max_encoder_input_len force_num_profiles",
            "bool": "gather_generation_logits strongly_typed enable_debug_output use_refit "
            "weight_sparsity weight_streaming use_strip_plan monitor_memory use_mrope",
            "text": "visualize_network",
            ("layer_names_only", "detailed", "none"): "profiling_verbosity",
        }
    )
    | _kinds(
        {
            "int": "tokens_per_block",
            "bool": "context_fmha use_paged_context_fmha use_fp8_context_fmha norm_quant_fusion "
            "reduce_fusion user_buffer multiple_profiles manage_weights use_fused_mlp",
            (*_FLOATS, "fp8", "nvfp4", "none"): "gemm_plugin",
            (*_FLOATS, "none"): "nccl_plugin",
            ("auto", "float16", "bfloat16", "none"): "fp8_rowwise_gemm_plugin",
            ("float16", "bfloat16", "none"): "gemm_allreduce_plugin",
            ("fp8", "none"): "gemm_swiglu_plugin low_latency_gemm_plugin "
            "low_latency_gemm_swiglu_plugin",
        },
        "plugin_config.",
    ),
    {
        "max_batch_size": "use --max-batch-size",
        "max_input_len": "use --max-input-len",
        "max_seq_len": "use --max-seq-len",
        "max_num_tokens": "use --max-num-tokens",
        "max_draft_len": "it follows from --lookahead",
        "speculative_decoding_mode": "use --lookahead",
        "gather_context_logits": "use --gather-context-logits",
        "dry_run": "use --dry-run",
        "input_timing_cache": "use --timing-cache",
        "output_timing_cache": "use --timing-cache",
        "max_beam_width": "engines are built for one beam, which lookahead needs",
        "kv_cache_type": "the executor needs the paged cache",
        "plugin_config.paged_kv_cache": "the executor needs the paged cache",
        "plugin_config.remove_input_padding": "the executor needs packed input",
        "plugin_config.gpt_attention_plugin": "it takes the model's type, use --dtype",
        "plugin_config.dtype": "use --dtype",
        "plugin_config.streamingllm": "TensorRT-LLM supports it no longer",
        "plugin_config.pp_reduce_scatter": "it is for mixtures of experts",
    },
)
"""Fields of BuildConfig and PluginConfig, releases 0.20 to 1.2."""

_CACHE = "kv_cache_config"
EXECUTOR = Group(
    "--trtllm-executor",
    "ExecutorConfig",
    _kinds(
        {
            "int": "max_tokens sink_token_length host_cache_size secondary_offload_min_priority "
            "event_buffer_max_size",
            "ints": "max_attention_window",
            "bool": "onboard_blocks enable_partial_reuse copy_on_partial_reuse use_uvm",
        },
        f"{_CACHE}.",
    )
    | _kinds(
        {
            "bool": "multi_block_mode enable_context_fmha_fp32_acc cuda_graph_mode",
            "int": "cuda_graph_cache_size",
        },
        "extended_runtime_perf_knob_config.",
    )
    | _kinds(
        {
            "bool": "enable_batch_size_tuning enable_max_num_tokens_tuning",
            "int": "dynamic_batch_moving_average_window",
        },
        "scheduler_config.dynamic_batch_config.",
    )
    | _kinds(
        {
            "int": "max_num_tokens max_queue_size recv_poll_period_ms max_seq_idle_microseconds "
            "request_stats_max_iterations",
            "ints": "parallel_config.device_ids",
            "number": "gpu_weights_percent",
            "bool": "use_gpu_direct_storage normalize_log_probs gather_generation_logits "
            "mm_embedding_offloading enable_trt_overlap",
            (
                "EQUAL_PROGRESS",
                "FIRST_COME_FIRST_SERVED",
            ): "scheduler_config.context_chunking_policy",
        }
    ),
    {
        f"{_CACHE}.enable_block_reuse": "use --kv-cache-enable-block-reuse",
        f"{_CACHE}.free_gpu_memory_fraction": "use --kv-cache-free-gpu-memory-fraction",
        "scheduler_config.capacity_scheduler_policy": "use --scheduler-policy",
        "enable_chunked_context": "use --enable-chunked-context",
        "max_batch_size": "use --max-batch-size",
        "max_beam_width": "texts are decoded with one beam",
        "decoding_config": "use --lookahead",
        "batching_type": "the executor has in-flight batching alone, see --scheduler-policy",
        "iter_stats_max_iterations": "trtla counts steps by these records",
        "fail_fast_on_attention_window_too_large": "it is on: no text is cut short in silence",
        "parallel_config.communication_mode": "start the ranks with mpirun",
        "parallel_config.communication_type": "start the ranks with mpirun",
        "parallel_config.participant_ids": "start the ranks with mpirun",
    },
)
"""Fields of ExecutorConfig and its nested classes, releases 0.20 to 1.2."""
