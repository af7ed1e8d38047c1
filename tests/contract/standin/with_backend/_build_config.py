"""BuildConfig: defaults, dictionaries, and the kind of K/V cache; TensorRT-LLM builder.py.

A dataclass. `from_dict` needs the six sizes and ignores keys that it does not know.
"""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Any

from ._version import at_least
from .bindings import KVCacheType
from .models.modeling_utils import SpeculativeDecodingMode
from .plugin import PluginConfig


@dataclass
class LoraConfig:
    """Adapters; the stand-in builds none."""

    lora_dir: list[str] = field(default_factory=list)
    lora_ckpt_source: str = "hf"
    max_lora_rank: int = 64
    lora_target_modules: list[str] = field(default_factory=list)
    trtllm_modules_to_hf_modules: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> LoraConfig:
        return cls(**config)


@dataclass
class AutoParallelConfig:
    """The planner that was removed after 1.0."""

    world_size: int = 1
    gpus_per_node: int = 8
    cluster_key: str | None = None

    @property
    def enabled(self) -> bool:
        return self.world_size > 1

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> AutoParallelConfig:
        """The configuration of a dictionary; the planner's many other keys are dropped."""
        known = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in config.items() if name in known})


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
    lora_config: LoraConfig = field(default_factory=LoraConfig)
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
    def from_dict(cls, config: dict[str, Any], plugin_config: Any = None) -> _BuildConfig:
        """The configuration of a dictionary, which must have the six sizes.

        Raises:
            KeyError: one of them is missing.
        """
        config = copy.deepcopy(config)
        given = {name: config[name] for name in _SIZES}
        plugin = plugin_config or PluginConfig()
        if "plugin_config" in config:
            given["kv_cache_type"] = KVCacheType.from_string(config["kv_cache_type"])
            for name, value in config.pop("plugin_config").items():
                if hasattr(plugin, name):
                    setattr(plugin, name, value)
        nested: dict[str, Any] = {
            "lora_config": LoraConfig,
            "auto_parallel_config": AutoParallelConfig,
        }
        for item in fields(cls):
            if item.name in nested:
                given[item.name] = nested[item.name].from_dict(config.get(item.name, {}))
            elif item.name in config and item.name != "kv_cache_type":
                given[item.name] = config[item.name]
        return cls(**{**given, "plugin_config": plugin})

    @classmethod
    def from_json_file(cls, config_file: str | Path, plugin_config: Any = None) -> _BuildConfig:
        return cls.from_dict(json.loads(Path(config_file).read_text()), plugin_config)

    def to_dict(self) -> dict[str, Any]:
        """All fields; enumerations by name or number, nested configurations as dictionaries."""
        output = {item.name: copy.deepcopy(getattr(self, item.name)) for item in fields(self)}
        if self.kv_cache_type is not None:
            output["kv_cache_type"] = self.kv_cache_type.name
        for name in ("plugin_config", "lora_config", "auto_parallel_config"):
            if name in output:
                output[name] = output[name].to_dict()
        return output

    def update_from_dict(self, config: dict[str, Any]) -> None:
        """Set fields.

        Raises:
            AttributeError: there is no such field.
        """
        for name, value in config.items():
            if not hasattr(self, name):
                raise AttributeError(f"{type(self)} object has no attribute {name}")
            setattr(self, name, value)

    def update(self, **kwargs: Any) -> None:
        self.update_from_dict(kwargs)


_removed_later: list[Any] = [
    ("auto_parallel_config", AutoParallelConfig, field(default_factory=AutoParallelConfig))
]
BuildConfig: Any = make_dataclass(
    "BuildConfig", [] if at_least(1, 1) else _removed_later, bases=(_BuildConfig,)
)
BuildConfig.__module__ = "tensorrt_llm.builder"
BuildConfig.__doc__ = "What an engine is built for."
