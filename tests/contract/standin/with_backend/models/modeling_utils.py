"""Configurations of models and quantisation; TensorRT-LLM models/modeling_utils.py."""

from __future__ import annotations

import enum
import json
from argparse import Namespace
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..logger import logger
from ..mapping import Mapping

QUANT_ALGOS = (
    *("W8A16", "W4A16", "W4A16_AWQ", "W4A8_AWQ", "W4A16_GPTQ", "W8A16_GPTQ", "NVFP4"),
    *("W8A8_SQ_PER_CHANNEL", "W8A8_SQ_PER_TENSOR_PLUGIN", "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"),
    *("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_BLOCK_SCALES", "MIXED_PRECISION"),
)
KV_CACHE_QUANT_ALGOS = ("FP8", "INT8")


class SpeculativeDecodingMode(enum.IntFlag):
    NONE = 1
    DRAFT_TOKENS_EXTERNAL = 2
    MEDUSA = 4
    LOOKAHEAD_DECODING = 8
    EXPLICIT_DRAFT_TOKENS = 16
    EAGLE = 32

    @staticmethod
    def from_arguments(args: Namespace) -> SpeculativeDecodingMode:
        name = args.speculative_decoding_mode
        if name is None:
            return SpeculativeDecodingMode.NONE
        return SpeculativeDecodingMode[str(name).upper()]


@dataclass
class QuantConfig:
    """What is quantised and how. The stand-in runs FP8, W8A16, W4A16 and W4A16_AWQ."""

    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    group_size: int = 128
    smoothquant_val: float = 0.5
    clamp_val: list[float] | None = None
    use_meta_recipe: bool = False
    has_zero_point: bool = False
    pre_quant_scale: bool = False
    exclude_modules: list[str] | None = None

    def __post_init__(self) -> None:
        for value, known in (
            (self.quant_algo, QUANT_ALGOS),
            (self.kv_cache_quant_algo, KV_CACHE_QUANT_ALGOS),
        ):
            if value is not None and value not in known:
                raise ValueError(f"Unsupported quant_algo: {value}")

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> QuantConfig:
        return cls(**config)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


_REQUIRED = (
    *("architecture", "dtype", "vocab_size"),
    *("hidden_size", "num_hidden_layers", "num_attention_heads"),
)
_DEFAULTS: dict[str, Any] = {
    "hidden_act": "gelu",
    "logits_dtype": "float32",
    "norm_epsilon": 1e-5,
    "position_embedding_type": "learned_absolute",
    "use_parallel_embedding": False,
    "embedding_sharding_dim": 0,
    "qk_layernorm": False,
    "tie_word_embeddings": False,
    **dict.fromkeys(("max_position_embeddings", "num_key_value_heads", "intermediate_size")),
    **dict.fromkeys(("head_size", "rotary_embedding_dim", "runtime_defaults")),
}


class PretrainedConfig:
    """A checkpoint's config.json. Unknown keys become attributes, with a warning."""

    _own: ClassVar[dict[str, Any]] = {}
    """Keys and defaults of a subclass."""
    architecture: str
    dtype: str
    mapping: Mapping
    quantization: QuantConfig

    def __init__(
        self,
        *,
        mapping: Mapping | dict[str, Any] | None = None,
        quantization: QuantConfig | dict[str, Any] | None = None,
        **values: Any,
    ) -> None:
        missing = [name for name in _REQUIRED if name not in values]
        if missing:
            raise TypeError(
                f"__init__() missing {len(missing)} required keyword-only arguments: "
                + " and ".join(repr(name) for name in missing)
            )
        self.mapping = _made(mapping, Mapping)
        self.quantization = _made(quantization, QuantConfig)
        known = {**_DEFAULTS, **self._own}
        for name, value in values.items():
            if name not in known and name not in _REQUIRED:
                logger.warning(f"Implicitly setting {type(self).__name__}.{name} = {value}")
        self.__dict__.update({**known, **values})
        self._resolve()

    def _resolve(self) -> None:
        values = self.__dict__
        if values["num_key_value_heads"] is None:
            values["num_key_value_heads"] = values["num_attention_heads"]
        if values["intermediate_size"] is None:
            values["intermediate_size"] = 4 * values["hidden_size"]
        if values["head_size"] is None:
            values["head_size"] = values["hidden_size"] // values["num_attention_heads"]

    @property
    def quant_algo(self) -> str | None:
        return self.quantization.quant_algo

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> PretrainedConfig:
        """The configuration class that the architecture names, filled."""
        from . import MODEL_MAP

        config = dict(config)
        model = MODEL_MAP.get(config.get("architecture", ""))
        return (model.config_class if model else cls)(**config)

    @classmethod
    def from_json_file(cls, config_file: str | Path) -> PretrainedConfig:
        return cls.from_dict(json.loads(Path(config_file).read_text()))

    @classmethod
    def from_checkpoint(cls, ckpt_dir: str | Path) -> PretrainedConfig:
        return cls.from_json_file(Path(ckpt_dir) / "config.json")

    def set_rank(self, rank: int) -> None:
        values = self.mapping.to_dict()
        values["rank"] = rank
        self.mapping = Mapping.from_dict(values)

    def to_dict(self) -> dict[str, Any]:
        """All attributes; the mapping without the rank."""
        output = {**self.__dict__, "mapping": self.mapping.to_dict()}
        output["mapping"].pop("rank")
        output["quantization"] = self.quantization.to_dict()
        return output


def _made(given: Any, cls: Any) -> Any:
    if given is None:
        return cls()
    return given if isinstance(given, cls) else cls.from_dict(given)
