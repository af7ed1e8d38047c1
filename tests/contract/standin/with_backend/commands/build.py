"""trtllm-build: one engine for every rank of a checkpoint; TensorRT-LLM commands/build.py."""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

import torch

from .._deprecation import emit_engine_arch_deprecation
from .._standin import StandinUndefinedBehaviour
from .._utils import mpi_rank, mpi_world_size
from ..bindings import KVCacheType
from ..builder import BuildConfig, build
from ..logger import logger, severity_map
from ..models import MODEL_MAP, PretrainedConfig, SpeculativeDecodingMode
from ..plugin import PluginConfig, add_plugin_argument

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
_UNMODELLED = ("model_config", "build_config", "model_cls_file", "lora_dir", "logits_dtype")
_TEXTS: tuple[tuple[str, str | None], ...] = (
    ("checkpoint_dir", None),
    *((name, None) for name in _UNMODELLED),
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
    parser.add_argument("--speculative_decoding_mode", choices=_MODES)
    parser.add_argument("--max_draft_len", type=int, default=0)
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


_CONFIG_NAMES = (
    *(name for name, _ in _SIZES),
    "gather_context_logits",
    "gather_generation_logits",
    "weight_sparsity",
    "profiling_verbosity",
    "enable_debug_output",
    "max_draft_len",
    "input_timing_cache",
    "output_timing_cache",
    "dry_run",
    "visualize_network",
    "weight_streaming",
    "monitor_memory",
)


def main() -> None:
    args = parse_arguments().parse_args()
    emit_engine_arch_deprecation("trtllm-build")
    if args.gather_all_token_logits:
        args.gather_context_logits = args.gather_generation_logits = True
    if args.gather_context_logits and args.max_draft_len > 0:
        raise RuntimeError(
            "Gather context logits is not support with draft len > 0. If want to get the accepted "
            "tokens' logits from target model, please just enable gather_generation_logits"
        )
    logger.set_level(args.log_level)
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    _refuse_unmodelled(args)
    workers = min(torch.cuda.device_count(), args.workers)
    config, folder = _build_config(args), Path(args.checkpoint_dir)
    model_config = PretrainedConfig.from_checkpoint(folder)
    for rank in range(model_config.mapping.world_size):  # one after another here
        if rank % mpi_world_size() == mpi_rank():
            _build_and_save(rank, rank % workers, folder, config, args.output_dir, model_config)


def _refuse_unmodelled(args: argparse.Namespace) -> None:
    for name in _UNMODELLED:
        if getattr(args, name) is not None:
            raise StandinUndefinedBehaviour(f"--{name} is not modelled")


def _build_config(args: argparse.Namespace) -> Any:
    plugin_config = PluginConfig.from_arguments(args)
    values = {name: getattr(args, name) for name in _CONFIG_NAMES}
    values["use_strip_plan"] = args.strip_plan
    if args.multiple_profiles == "enable" and args.opt_num_tokens is not None:
        raise RuntimeError(
            "multiple_profiles is enabled, while opt_num_tokens is set. They are not supposed to "
            "be working in the same time for now."
        )
    values["speculative_decoding_mode"] = SpeculativeDecodingMode.from_arguments(args)
    config = BuildConfig.from_dict(values, plugin_config=plugin_config)
    if hasattr(args, "kv_cache_type"):
        config.kv_cache_type = args.kv_cache_type
    return config


def _build_and_save(
    rank: int,
    gpu_id: int,
    folder: Path,
    build_config: Any,
    output_dir: str,
    model_config: PretrainedConfig,
) -> None:
    torch.cuda.set_device(gpu_id)
    config = copy.deepcopy(model_config)
    config.set_rank(rank)
    if config.architecture not in MODEL_MAP:
        raise AssertionError(f"Unsupported model architecture: {config.architecture}")
    model = MODEL_MAP[config.architecture].from_checkpoint(folder, config=config)
    build(model, build_config).save(output_dir)


if __name__ == "__main__":
    main()
