"""Engine folders as trtllm-build of several releases leaves them, with a few bytes for engines.

The keys and values are those that builder.py and plugin.py of the releases write; 1.2 has a
pydantic BuildConfig without auto_parallel_config and writes kv_cache_type in lower case.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RELEASES = ("0.20.0", "0.21.0", "1.0.0", "1.1.0", "1.2.1")

_PLUGINS: dict[str, Any] = {
    "dtype": "float16",
    "bert_attention_plugin": "auto",
    "gpt_attention_plugin": "float16",
    "gemm_plugin": "float16",
    "nccl_plugin": None,
    "lora_plugin": None,
    "context_fmha": True,
    "paged_kv_cache": True,
    "remove_input_padding": True,
    "tokens_per_block": 32,
    "use_paged_context_fmha": True,
    "use_fp8_context_fmha": False,
    "paged_state": False,
    "use_fused_mlp": True,
}


def write_engine(
    folder: Path,
    release: str = "1.2.1",
    *,
    max_draft_len: int = 83,
    ranks: int = 1,
    stages: int = 1,
    **keys: Any,
) -> Path:
    """An engine of a Llama; `keys` replace those of build_config, None removes one."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "version": release,
        "pretrained_config": _pretrained(release, ranks, stages),
        "build_config": _build_config(release, max_draft_len),
    }
    build = config["build_config"]
    build.update(keys)
    for key in [key for key, value in keys.items() if value is None]:
        del build[key]
    (folder / "config.json").write_text(json.dumps(config, indent=4))
    for rank in range(ranks):
        (folder / f"rank{rank}.engine").write_bytes(b"compiled %d" % rank)
    return folder


def edit_plugins(folder: Path, **values: Any) -> None:
    """Change plugin_config in an engine's config.json."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["build_config"]["plugin_config"].update(values)
    path.write_text(json.dumps(config))


def _pretrained(release: str, ranks: int, stages: int) -> dict[str, Any]:
    mapping = {
        "world_size": ranks,
        "gpus_per_node": 8,
        "cp_size": 1,
        "tp_size": ranks // stages,
        "pp_size": stages,
        "moe_tp_size": ranks,
        "moe_ep_size": 1,
    }
    if release >= "0.21":
        mapping |= {"moe_cluster_size": 1, "attn_tp_size": ranks, "attn_cp_size": 1}
    if release < "1.1":
        mapping["auto_parallel"] = False
    return {
        "mlp_bias": False,
        "attn_bias": False,
        "rotary_base": 500000.0,
        "rotary_scaling": {"factor": 8.0, "rope_type": "llama3", "low_freq_factor": 1.0,
                           "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        "residual_mlp": False,
        "disable_weight_only_quant_plugin": False,
        "moe": {"num_experts": 0, "top_k": 0, "normalization_mode": 1},
        "remove_duplicated_kv_heads": False,
        "fc_after_embed": False,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "layer_idx_offset": 0,
        "architecture": "LlamaForCausalLM",
        "dtype": "float16",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_act": "silu",
        "logits_dtype": "float32",
        "norm_epsilon": 1e-05,
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "mapping": mapping,
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None, "group_size": 128,
                         "smoothquant_val": 0.5, "clamp_val": None, "use_meta_recipe": False,
                         "has_zero_point": False, "pre_quant_scale": False,
                         "exclude_modules": None},
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
        "head_size": 128,
        "qk_layernorm": False,
        "rotary_pct": 1.0,
        "rotary_embedding_dim": 128,
        "tie_word_embeddings": False,
        "runtime_defaults": None,
    }  # fmt: skip


def _build_config(release: str, max_draft_len: int) -> dict[str, Any]:
    config: dict[str, Any] = {
        "max_input_len": 1024,
        "max_seq_len": 2048 + max_draft_len,
        "opt_batch_size": 8,
        "max_batch_size": 32,
        "max_beam_width": 1,
        "max_num_tokens": 8192,
        "opt_num_tokens": 32,
        "max_prompt_embedding_table_size": 0,
        "kv_cache_type": "paged" if release >= "1.2" else "PAGED",
        "gather_context_logits": False,
        "gather_generation_logits": False,
        "strongly_typed": True,
        "force_num_profiles": None,
        "profiling_verbosity": "layer_names_only",
        "enable_debug_output": False,
        "max_draft_len": max_draft_len,
        "speculative_decoding_mode": 8 if max_draft_len else 1,
        "use_refit": False,
        "input_timing_cache": None,
        "output_timing_cache": "model.cache",
        "lora_config": {"lora_dir": [], "lora_ckpt_source": "hf", "max_lora_rank": 64},
        "weight_sparsity": False,
        "weight_streaming": False,
        "plugin_config": dict(_PLUGINS),
        "use_strip_plan": False,
        "max_encoder_input_len": 1024,
        "monitor_memory": False,
        "use_mrope": False,
    }
    if release < "1.1":
        config["auto_parallel_config"] = {"world_size": 1, "gpus_per_node": 8}
    return config
