"""The flags of trtllm-build; TensorRT-LLM commands/build.py. Unknown flags are an error."""

from __future__ import annotations

import argparse
from typing import Any

from .._version import at_least
from ..bindings import KVCacheType
from ..builder import BuildConfig
from ..logger import severity_map
from ..plugin import add_plugin_argument

_SIZES = (
    ("max_batch_size", ()),
    ("max_input_len", ()),
    ("max_seq_len", ("--max_decoder_seq_len",)),
    ("max_beam_width", ()),
    ("max_num_tokens", ()),
    ("opt_num_tokens", ()),
    ("max_encoder_input_len", ()),
    ("max_prompt_embedding_table_size", ("--max_multimodal_len",)),
)
_TEXTS: tuple[tuple[str, str | None], ...] = (
    ("checkpoint_dir", None),
    ("model_config", None),
    ("build_config", None),
    ("model_cls_file", None),
    ("model_cls_name", None),
    ("output_dir", "engine_outputs"),
    ("input_timing_cache", None),
    ("output_timing_cache", "model.cache"),
    ("visualize_network", None),
)
_SWITCHES = (
    "strip_plan",
    "weight_sparsity",
    "weight_streaming",
    "fast_build",
    "enable_debug_output",
    "dry_run",
    "monitor_memory",
    "gather_context_logits",
    "gather_generation_logits",
    "gather_all_token_logits",
)
_MODES = ("draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens", "eagle")


def parse_arguments() -> argparse.ArgumentParser:
    """The parser. Abbreviated flags work, as argparse has it by default."""
    parser = argparse.ArgumentParser(
        "trtllm-build", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, default in _TEXTS:
        parser.add_argument(f"--{name}", default=default)
    for name, aliases in _SIZES:
        value = getattr(BuildConfig, name)
        parser.add_argument(f"--{name}", *aliases, dest=name, type=int, default=value)
    for name in _SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--kv_cache_type", type=_kv_cache_type, default=argparse.SUPPRESS)
    parser.add_argument("--paged_kv_cache", default=argparse.SUPPRESS)
    verbosity = ["layer_names_only", "detailed", "none"]
    parser.add_argument("--profiling_verbosity", default=verbosity[0], choices=verbosity)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--log_level", default="info", choices=list(severity_map))
    parser.add_argument("--logits_dtype", choices=["float16", "float32"])
    parser.add_argument("--lora_dir", nargs="+")
    parser.add_argument("--lora_ckpt_source", default="hf", choices=["hf", "nemo"])
    parser.add_argument("--lora_target_modules", nargs="+")
    parser.add_argument("--max_lora_rank", type=int, default=64)
    parser.add_argument("--speculative_decoding_mode", choices=_MODES)
    parser.add_argument("--max_draft_len", type=int, default=0)
    if not at_least(1, 1):
        parser.add_argument("--auto_parallel", type=int, default=1)
        parser.add_argument("--gpus_per_node", type=int, default=8)
        parser.add_argument("--cluster_key")
    add_plugin_argument(parser)
    return parser


def _kv_cache_type(value: str) -> Any:
    try:
        return KVCacheType.from_string(value)
    except KeyError:
        known = [kind.name.lower() for kind in KVCacheType]
        raise argparse.ArgumentTypeError(
            f"Invalid value '{value}'. Expected one of {known}"
        ) from None
