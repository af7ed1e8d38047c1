"""What build() changes and refuses; TensorRT-LLM builder.py, attentionOp.cpp, xqaDispatcher.cpp."""

from __future__ import annotations

import math
from typing import Any

from ._version import at_least
from .logger import logger
from .models import LLaMAConfig, SpeculativeDecodingMode

_WEIGHT_ONLY = ("W8A16", "W4A16", "W4A16_AWQ")
_ROPE_WITHOUT_FACTOR = ("su", "longrope", "llama3")


def apply_rules(model: LLaMAConfig, build: Any, sm: int) -> None:
    """Change the configuration as build() does, in its order."""
    build.plugin_config.dtype = model.dtype
    build.update_kv_cache_type(model.architecture)
    _init_max_seq_len(model.__dict__, build)
    _init_max_num_tokens(build)
    _read_rope(model.__dict__["rotary_scaling"] or {})
    if build.plugin_config.reduce_fusion and model.mapping.tp_size == 1:
        logger.warning("Overriding reduce_fusion to False")
        build.plugin_config.reduce_fusion = False
    if "FP8" in (model.quant_algo, model.quantization.kv_cache_quant_algo):
        build.strongly_typed = True
    if model.quant_algo in _WEIGHT_ONLY:
        _weight_only(model, build.plugin_config, sm)
    if build.speculative_decoding_mode != SpeculativeDecodingMode.NONE:
        _make_room_for_drafts(build)
    _context_fmha(model, build.plugin_config, sm)
    if "FP8" in (model.quant_algo, model.quantization.kv_cache_quant_algo) and sm < 89:
        raise RuntimeError(f"FP8 is not supported on SM {sm}")
    if build.speculative_decoding_mode == SpeculativeDecodingMode.LOOKAHEAD_DECODING:
        _find_kernel(model, sm)


def _weight_only(model: LLaMAConfig, plugin: Any, sm: int) -> None:
    """build() switches the plugin of the products on by itself."""
    if 100 <= sm < 120:
        raise RuntimeError(f"{model.quant_algo} is not supported on SM {sm}")
    if model.__dict__["disable_weight_only_quant_plugin"]:
        return
    if model.quant_algo == "W4A16_AWQ":
        plugin.weight_only_groupwise_quant_matmul_plugin = model.dtype
    else:
        plugin.weight_only_quant_matmul_plugin = model.dtype


def _init_max_seq_len(model: dict[str, Any], build: Any) -> None:
    scaling = model["rotary_scaling"] or {}
    kind = scaling.get("type", scaling.get("rope_type"))
    factor = 1 if kind in _ROPE_WITHOUT_FACTOR else scaling.get("factor", 1.0)
    positions = model["max_position_embeddings"]
    if build.max_seq_len is None:
        deduced = math.ceil((positions or 2048) * factor)
        if factor != 1:
            logger.warning(f"max_seq_len is scaled to {deduced} by rotary scaling {factor}")
        build.max_seq_len = int(deduced)
        logger.info(f"max_seq_len is not specified, using deduced value {deduced}")
    elif positions is not None and build.max_seq_len > positions * factor:
        logger.warning(
            f"max_seq_len {build.max_seq_len} is larger than max_position_embeddings {positions} "
            f"* rotary scaling {factor}, the model accuracy might be affected"
        )
    if build.max_input_len > build.max_seq_len:
        logger.warning(
            f"max_input_len is {build.max_input_len} is larger than max_seq_len "
            f"{build.max_seq_len}, clipping it to max_seq_len"
        )
        build.max_input_len = build.max_seq_len
    if build.plugin_config.remove_input_padding and build.plugin_config.context_fmha:
        logger.warning(
            "padding removal and fMHA are both enabled, max_input_len is not required and will be "
            "ignored"
        )


def _init_max_num_tokens(build: Any) -> None:
    """Corrects both token limits; drafts are not counted yet."""
    full = build.max_batch_size * build.max_seq_len
    if build.max_num_tokens > full:
        logger.warning(
            f"max_num_tokens ({build.max_num_tokens}) shouldn't be greater than max_seq_len * "
            f"max_batch_size ({full}), specifying to max_seq_len * max_batch_size ({full})."
        )
        build.max_num_tokens = full
    plugin = build.plugin_config
    least = plugin.tokens_per_block if plugin.context_fmha else build.max_input_len
    if build.max_num_tokens < least:
        logger.warning(f"max_num_tokens ({build.max_num_tokens}) is raised to {least}.")
        build.max_num_tokens = least
    asked = build.opt_num_tokens or build.max_batch_size * build.max_beam_width
    build.opt_num_tokens = min(build.max_num_tokens, asked)


def _read_rope(scaling: dict[str, Any]) -> None:
    """From 1.1 on this kind is Hunyuan's (functional.py), which has another key."""
    if scaling.get("type", scaling.get("rope_type")) == "dynamic" and at_least(1, 1):
        scaling["alpha"]


def _make_room_for_drafts(build: Any) -> None:
    longer = build.max_seq_len + build.max_draft_len
    logger.info(
        f"Increasing max_seq_len ({build.max_seq_len}) by max_draft_len ({build.max_draft_len}) to "
        "account for speculative decoding implementation specifics. Maximum number of generated "
        f"tokens remains the same. New max_seq_len is set to {longer}"
    )
    build.max_seq_len = longer
    tokens = build.max_batch_size * (build.max_draft_len + 1)
    if build.max_num_tokens < tokens:
        logger.info(
            f"max_num_tokens ({build.max_num_tokens}) is smaller than max_batch_size * "
            f"(max_draft_len + 1) = ({build.max_batch_size} * ({build.max_draft_len} + 1)). "
            f"New max_num_tokens is set to {tokens}."
        )
        build.max_num_tokens = tokens


def _context_fmha(model: LLaMAConfig, plugin: Any, sm: int) -> None:
    fp8_cache = model.quantization.kv_cache_quant_algo == "FP8"
    if not plugin.context_fmha:
        plugin.use_fp8_context_fmha = plugin.use_paged_context_fmha = False
        logger.warning(
            "Context FMHA is disabled, FP8 Context FMHA and Paged Context FMHA are disabled."
        )
        return
    fp8_model = model.quant_algo in ("FP8", "W4A8_AWQ", "NVFP4")
    if not fp8_model or sm < 89:
        plugin.use_fp8_context_fmha = False
        why = (
            "it is only supported on Ada and Hopper Arch"
            if fp8_model
            else "it must be used together with the fp8 quantization workflow"
        )
        logger.warning(f"FP8 Context FMHA is disabled because {why}.")
        if plugin.use_paged_context_fmha and fp8_cache:
            plugin.use_paged_context_fmha = False
            logger.warning(
                "FP8 Paged Context FMHA is disabled because FP8 context FMHA is disabled."
            )
    elif plugin.use_paged_context_fmha and plugin.use_fp8_context_fmha and not fp8_cache:
        plugin.use_fp8_context_fmha = False
        logger.warning(
            "FP8 Paged Context FMHA is disabled because it must be used together with fp8 KV Cache."
        )
    elif plugin.use_paged_context_fmha and fp8_cache:
        plugin.use_fp8_context_fmha = True


def _find_kernel(model: LLaMAConfig, sm: int) -> None:
    """Multi-token attention kernels exist for few shapes and architectures."""
    v = model.__dict__
    heads, kv_heads, size = v["num_attention_heads"], v["num_key_value_heads"], v["head_size"]
    if heads % kv_heads:
        raise RuntimeError("mNumHeads should be multiples of mNumKVHeads.")
    if 100 <= sm < 120:
        raise RuntimeError("TRTLLM-GEN does not support Speculative decoding.")
    just_in_time = size % 16 == 0 and size <= 256 and heads <= 32 * kv_heads
    compiled = size in (64, 128) and sm <= 90
    fp8_cache = model.quantization.kv_cache_quant_algo == "FP8"
    if (
        sm < 80
        or model.dtype not in ("float16", "bfloat16")
        or not (compiled or (just_in_time and (at_least(1, 2) or (sm == 90 and fp8_cache))))
    ):
        raise RuntimeError("No available XQA kernels are found for speculative decoding mode.")
