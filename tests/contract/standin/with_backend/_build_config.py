"""BuildConfig: defaults, dictionaries, and the kind of K/V cache; TensorRT-LLM builder.py.

A dataclass. `from_dict` needs the six sizes and ignores keys that it does not know.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any

from ._version import at_least
from .bindings import KVCacheType
from .models.modeling_utils import SpeculativeDecodingMode
from .plugin import PluginConfig

_LORA: dict[str, Any] = {
    "lora_dir": [],
    "lora_ckpt_source": "hf",
    "max_lora_rank": 64,
    "lora_target_modules": [],
    "trtllm_modules_to_hf_modules": {},
}
"""Adapters, of which the stand-in builds none: what config.json holds of them."""
_AUTO_PARALLEL = {"world_size": 1, "gpus_per_node": 8, "cluster_key": None}
"""The planner that was removed after 1.0."""
_SIZES = (
    "max_input_len",
    "max_seq_len",
    "max_batch_size",
    "max_beam_width",
    "max_num_tokens",
    "opt_num_tokens",
)


@dataclass
class _BuildConfig:
    max_input_len: int = 1024
    max_seq_len: int | None = None
    opt_batch_size: int = 8
    max_batch_size: int = 2048
    max_beam_width: int = 1
    max_num_tokens: int = 8192
    opt_num_tokens: int | None = None
    max_prompt_embedding_table_size: int = 0
    kv_cache_type: KVCacheType | None = None
    gather_context_logits: bool = False
    gather_generation_logits: bool = False
    strongly_typed: bool = True
    force_num_profiles: int | None = None
    profiling_verbosity: str = "layer_names_only"
    enable_debug_output: bool = False
    max_draft_len: int = 0
    speculative_decoding_mode: SpeculativeDecodingMode = SpeculativeDecodingMode.NONE
    use_refit: bool = False
    input_timing_cache: str | None = None
    output_timing_cache: str | None = "model.cache"
    lora_config: dict[str, Any] = field(default_factory=_LORA.copy)
    weight_sparsity: bool = False
    weight_streaming: bool = False
    plugin_config: Any = field(default_factory=PluginConfig)
    use_strip_plan: bool = False
    max_encoder_input_len: int = 1024
    dry_run: bool = False
    visualize_network: str | None = None
    monitor_memory: bool = False
    use_mrope: bool = False

    def update_kv_cache_type(self, model_architecture: str) -> None:
        """Make kv_cache_type and plugin_config.paged_kv_cache agree; paged when neither is set."""
        paged = self.plugin_config.paged_kv_cache
        if self.kv_cache_type is None:
            kinds = {False: KVCacheType.CONTINUOUS}
            self.kv_cache_type = kinds.get(paged, KVCacheType.PAGED)
        elif paged is not None and paged != (self.kv_cache_type == KVCacheType.PAGED):
            raise AssertionError("kv_cache_type and paged_kv_cache contradict each other")
        self.plugin_config.paged_kv_cache = self.kv_cache_type == KVCacheType.PAGED
        self.plugin_config.paged_state = False

    @classmethod
    def from_dict(cls, config: dict[str, Any], plugin_config: Any) -> _BuildConfig:
        """The configuration of a dictionary, which must have the six sizes.

        Raises:
            KeyError: one of them is missing.
        """
        sizes = {name: config[name] for name in _SIZES}
        known = {item.name: config[item.name] for item in fields(cls) if item.name in config}
        return cls(**{**sizes, **known, "plugin_config": plugin_config})

    def to_dict(self) -> dict[str, Any]:
        """All fields; enumerations by name or number, nested configurations as dictionaries."""
        output = {item.name: copy.deepcopy(getattr(self, item.name)) for item in fields(self)}
        if self.kv_cache_type is not None:
            output["kv_cache_type"] = self.kv_cache_type.name
        output["plugin_config"] = self.plugin_config.to_dict()
        return output


_removed_later: list[Any] = [
    ("auto_parallel_config", dict[str, Any], field(default_factory=_AUTO_PARALLEL.copy))
]
BuildConfig: Any = make_dataclass(
    "BuildConfig", [] if at_least(1, 1) else _removed_later, bases=(_BuildConfig,)
)
BuildConfig.__module__ = "tensorrt_llm.builder"
BuildConfig.__doc__ = "What an engine is built for."
