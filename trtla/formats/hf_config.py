"""A decoder's Hugging Face config.json.

Keys have Hugging Face's names, in the spellings of transformers 4 and 5, so that errors name what
is in the file. `read_hf_config` gives the TensorRT-LLM checkpoint's config that a model converts
to.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from trtla.errors import UsageError
from trtla.files import validate
from trtla.formats.arithmetic import ARITHMETIC, unknown_arithmetic
from trtla.formats.config import (
    LARGEST,
    CheckpointConfig,
    Count,
    DType,
    Size,
    as_dtype,
)
from trtla.formats.families import (
    ARCHITECTURES,
    BY_ARCHITECTURE,
    ENCODER_DECODERS,
    FAMILIES,
    MODEL_TYPES,
    architecture,
)
from trtla.formats.family import LAYER_TYPES, SLIDING, Family
from trtla.formats.heads.kinds import drafter_kind, no_model_but
from trtla.formats.hf_rotary import checkpoint_scaling, rotary_keys, share_of_heads
from trtla.formats.model_folder import CONFIG, ModelFolder, config_kind
from trtla.formats.quantised_folder import read_quantization
from trtla.formats.support import check_supported
from trtla.formats.t5_config import refuse_to_convert

_SAME_KEYS = {
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "mlp_bias"),
    *("num_key_value_heads", "intermediate_size", "max_position_embeddings", "tie_word_embeddings"),
    *("qk_layernorm", "qk_norm_all_heads", "sandwich_norms", "offset_norms"),
    *("residual_multiplier", "logits_scaling", "attention_sinks", "swiglu_alpha", "swiglu_limit"),
}
"""Keys that a checkpoint's config has too."""
_EXPERT_KEYS = {
    *("num_experts", "num_experts_per_tok", "norm_topk_prob", "moe_bias"),
    *("shared_expert_gate", "scoring_func", "score_correction", "routed_scaling_factor"),
}
"""Such keys of models with experts."""
_WINDOW_KEYS = ("sliding_window", "use_sliding_window", "max_window_layers")
_OUR_KEYS = (
    *("qk_norm_all_heads", "sandwich_norms", "offset_norms", "scales_embedding"),
    *("attention_sinks", "moe_bias", "shared_expert_gate", "score_correction"),
)
"""Keys that no config.json has; families fix them."""
_NULLS = ("sliding_window", "head_dim", "num_key_value_heads")
"""Keys whose null is a value: no window, or the number that follows from the attention heads."""
_MEND = "copy the file again, or run the model with transformers"


class HFConfig(BaseModel):
    """The keys of config.json that trtla reads; absent ones have the family's class's defaults."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    architectures: list[str] | None = None
    model_type: str | None = None
    dtype: str | None = None
    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Count
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: int | None = Field(default=None, ge=2, le=LARGEST)
    hidden_act: str = "silu"
    rms_norm_eps: float = Field(default=1e-6, gt=0)
    max_position_embeddings: Size = 2048
    rope_theta: float = Field(default=10000.0, gt=0)
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    sliding_window: Size | None = None
    use_sliding_window: bool = True
    max_window_layers: int = 0
    layer_types: list[str] | None = None
    qk_layernorm: bool = False
    qk_norm_all_heads: bool = False
    sandwich_norms: bool = False
    offset_norms: bool = False
    scales_embedding: bool = False
    query_pre_attn_scalar: float | None = Field(default=None, gt=0)
    rope_local_base_freq: float | None = Field(default=None, gt=0)
    sliding_window_pattern: int | None = Field(default=None, ge=1)
    embedding_multiplier: float = Field(default=1.0, gt=0)
    residual_multiplier: float = Field(default=1.0, gt=0)
    logits_scaling: float = Field(default=1.0, gt=0)
    attention_multiplier: float | None = Field(default=None, gt=0)
    partial_rotary_factor: float = Field(default=1.0, gt=0, le=1)
    original_max_position_embeddings: Size | None = None
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: int | None = Field(default=None, ge=1)
    num_experts: int = Field(default=0, ge=0, le=10_000)
    num_experts_per_tok: int = Field(default=0, ge=0, le=10_000)
    moe_intermediate_size: Size | None = None
    norm_topk_prob: bool = False
    decoder_sparse_step: int = Field(default=1, ge=1)
    mlp_only_layers: list[int] = []
    shared_intermediate_size: int = Field(default=0, ge=0)
    n_shared_experts: int = Field(default=0, ge=0)
    first_k_dense_replace: int = Field(default=0, ge=0)
    moe_layer_end_index: int = Field(default=-1, ge=-1)
    scoring_func: Literal["softmax", "sigmoid"] = "softmax"
    score_correction: bool = False
    routed_scaling_factor: float = Field(default=1.0, gt=0)
    shared_expert_gate: bool = False
    moe_bias: bool = False
    attention_sinks: bool = False
    swiglu_alpha: float = Field(default=1.0, gt=0)
    swiglu_limit: float | None = Field(default=None, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _spellings(cls, data: Any, info: ValidationInfo) -> Any:
        """Bring transformers 5 spellings (dtype, rope_parameters) and nulls to one form.

        The context is a family in place of the one that the architecture names.
        """
        if not isinstance(data, dict):
            return data
        family = info.context or _family(data)
        data = {"dtype": data.get("torch_dtype"), **_of_family(data, family)}
        data |= rotary_keys(data, family)
        data |= share_of_heads(data, family)
        return data

    @model_validator(mode="after")
    def _layers(self) -> HFConfig:
        layers = self.num_hidden_layers
        for key in ("layer_types", "no_rope_layers"):
            if (listed := getattr(self, key)) is not None and len(listed) != layers:
                raise ValueError(f"{key} has {len(listed)} entries for {layers} layers")
        kinds = self.layer_types or ()
        if unknown := next((kind for kind in kinds if kind not in LAYER_TYPES), None):
            raise ValueError(f"layer_types has {unknown!r}, none of {', '.join(LAYER_TYPES)}")
        chosen = self.layer_types is not None or self.sliding_window_pattern is not None
        if chosen and any(self._local) and not self._window:
            named = "layers have" if self.layer_types is None else "layer_types has"
            key, value = ("", "null") if self.use_sliding_window else ("use_", "false")
            why = f"{key}sliding_window is {value}"
            raise ValueError(f"{named} {SLIDING}, and the model has no sliding window ({why})")
        return self

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        """Each layer's attention window; none where no layer has one."""
        local, window = self._local, self._window
        if not (window and any(local)):
            return ()
        return tuple(window if is_local else None for is_local in local)

    @property
    def _window(self) -> int | None:
        return self.sliding_window if self.use_sliding_window else None

    @property
    def _local(self) -> list[bool]:
        """The layers that have the window, if there is one."""
        layers, every = range(self.num_hidden_layers), self.sliding_window_pattern
        if self.layer_types is not None:
            return [kind == SLIDING for kind in self.layer_types]
        if self.no_rope_layer_interval is not None:
            return [index in self.unrotated_layers for index in layers]
        if every is not None:
            return [(index + 1) % every > 0 for index in layers]
        return [index >= self.max_window_layers for index in layers]  # others read everything

    @property
    def expert_width(self) -> int:
        """The width of an expert."""
        return self.moe_intermediate_size or self.intermediate_size

    @property
    def shared_width(self) -> int:
        """The width of the experts that all tokens share, together."""
        return self.shared_intermediate_size or self.n_shared_experts * self.expert_width

    @property
    def dense_layers(self) -> tuple[int, ...]:
        """The layers without experts in a model that has some."""
        if not self.num_experts:
            return ()
        every, named = self.decoder_sparse_step, self.mlp_only_layers
        layers, end = range(self.num_hidden_layers), self.moe_layer_end_index
        mixed = range(self.first_k_dense_replace, len(layers) if end < 0 else end + 1)
        return tuple(i for i in layers if i not in mixed or i in named or (i + 1) % every)

    @property
    def unrotated_layers(self) -> tuple[int, ...]:
        """The layers without rotary embedding; `no_rope_layers` has a 1 for each that has one."""
        every, rotated = self.no_rope_layer_interval, self.no_rope_layers
        if rotated is None and every is not None:
            rotated = [(index + 1) % every for index in range(self.num_hidden_layers)]
        return tuple(index for index, has in enumerate(rotated or ()) if not has)


def _family(data: dict[str, Any]) -> Family:
    return BY_ARCHITECTURE[architecture(data)]


def _of_family(data: dict[str, Any], family: Family) -> dict[str, Any]:
    """Fill absent keys with the defaults of the family's class in transformers, and fix others.

    An absent key and a null mean the same, except where null has a meaning of its own.
    """
    named = {key: value for key, value in data.items() if value is not None or key in _NULLS}
    unread = {*_OUR_KEYS, *(ours for _, ours in family.spelled)}
    unread |= set() if family.has_windows else {*_WINDOW_KEYS}
    keys = {key: value for key, value in named.items() if key not in unread}
    if "num_local_experts" in keys and "num_local_experts" in family.reads:
        keys["num_experts"] = keys["num_local_experts"]
    keys |= {ours: keys[theirs] for theirs, ours in family.spelled if theirs in keys}
    keys = {**family.absent, **keys, **family.fixed}
    if keys.get("use_sliding_window") is False and keys.get("sliding_window") == 0:
        keys["sliding_window"] = None  # as transformers writes it
    return keys


def read_hf_config(location: Path | ModelFolder) -> tuple[CheckpointConfig, DType | None]:
    """The checkpoint config of a model folder's config.json, and the dtype the file names, if any.

    The returned config's own dtype is that one, or float32 as a placeholder.
    """
    folder = ModelFolder.of(location)
    config, dtype = parse_hf_config(folder.read(CONFIG), folder.path / CONFIG)
    quantization = read_quantization(folder, config)
    return config.model_copy(update={"quantization": quantization}), dtype


def parse_hf_config(data: Any, path: Path) -> tuple[CheckpointConfig, DType | None]:
    """Parse the content of a config.json as `read_hf_config` does; `path` is for the messages."""
    name = _supported_architecture(data, path)
    _check_arithmetic(data, _family(data), path)
    config = validate(HFConfig, data, str(path), _MEND)
    _check_fixed(data, config, path)
    dtype = _dtype(config.dtype, path)
    keys = {"architecture": name, **_checkpoint_keys(config, dtype)}
    checkpoint = validate(CheckpointConfig, keys, str(path), _MEND)
    check_supported(checkpoint, str(path))
    return checkpoint, dtype


def _supported_architecture(data: Any, path: Path) -> str:
    """Check the architecture first: another one has other keys, whose absence is not the fault."""
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no JSON object", "copy the file again")
    if (kind := config_kind(data)) in ("checkpoint", "engine"):
        raise UsageError(
            f"{path.parent} is not a Hugging Face model but a trtla {kind}",
            "give the Hugging Face folder that it came from",
        )
    if (drafter := drafter_kind(data)) is not None:
        raise no_model_but(path.parent, drafter)
    name = architecture(data)
    if name in ENCODER_DECODERS.values():
        raise refuse_to_convert(path.parent, str(name))
    if name not in ARCHITECTURES:
        others = ", ".join(ENCODER_DECODERS.values())
        raise UsageError(
            f"{path}: architecture {name} is not supported",
            f"trtla runs {FAMILIES}, and the encoder-decoders {others}",
        )
    if (named := MODEL_TYPES.get(str(data.get("model_type")), name)) != name:
        raise UsageError(
            f'{path}: "architectures" names {name}, and "model_type" {named}',
            "correct the one that the weights are not of",
        )
    return str(name)


def _check_arithmetic(data: dict[str, Any], family: Family, path: Path) -> None:
    """Refuse a key that would change the text and that the family is not known to have."""
    key = unknown_arithmetic(data, ARITHMETIC, family.reads)
    if key is not None:
        raise UsageError(
            f'{path}: "{key}" {str(data[key])[:60]} is not supported in a {family.architecture}',
            "the text would be another one; run the model with transformers",
        )


def _check_fixed(data: dict[str, Any], config: HFConfig, path: Path) -> None:
    """Refuse a key that the family's class does not read and that names another model."""
    family = _family(data)
    for key in (*family.fixed, *(ours for _, ours in family.spelled)):
        if key in _OUR_KEYS or data.get(key) in (None, getattr(config, key)):
            continue
        if not _is_same(config, _honouring(data, family, key)):
            raise UsageError(
                f'{path}: "{key}" {str(data[key])[:60]} is not supported in a '
                f"{family.architecture}",
                "transformers ignores the key; delete it for the text that transformers gives",
            )


def _honouring(data: dict[str, Any], family: Family, key: str) -> HFConfig | None:
    """The config if the family read this key; None: there would be no model."""
    fixed = {name: value for name, value in family.fixed.items() if name != key}
    spelled = tuple(pair for pair in family.spelled if pair[1] != key)
    try:
        return HFConfig.model_validate(
            data, context=dataclasses.replace(family, fixed=fixed, spelled=spelled)
        )
    except ValidationError:
        return None


def _is_same(config: HFConfig, other: HFConfig | None) -> bool:
    return other is not None and _checkpoint_keys(config, None) == _checkpoint_keys(other, None)


def _dtype(name: str | None, path: Path) -> DType | None:
    dtype = as_dtype(name or "")
    if name and dtype is None:
        raise UsageError(
            f"{path}: dtype {name} is not supported",
            "trtla reads float16, bfloat16 and float32 checkpoints",
        )
    return dtype


def _checkpoint_keys(config: HFConfig, dtype: DType | None) -> dict[str, Any]:
    return {
        **config.model_dump(include=_SAME_KEYS),
        "dtype": dtype or "float32",
        "head_size": config.head_dim,
        "hidden_act": "silu" if config.hidden_act == "swish" else config.hidden_act,
        "norm_epsilon": config.rms_norm_eps,
        "rotary_base": config.rope_theta,
        "rotary_scaling": _scaling(config),
        "rotary_pct": config.partial_rotary_factor,
        "attn_bias": config.attention_bias,
        "attention_scale": config.attention_multiplier or _query_scale(config),
        "embedding_multiplier": _embedding_multiplier(config),
        "local_rotary_base": config.rope_local_base_freq,
        "unrotated_layers": config.unrotated_layers,
        "layer_windows": config.layer_windows,
        **(_expert_keys(config) if config.num_experts else {}),
    }


def _expert_keys(config: HFConfig) -> dict[str, Any]:
    return {
        **config.model_dump(include=_EXPERT_KEYS),
        "moe_intermediate_size": config.expert_width,
        "shared_intermediate_size": config.shared_width,
        "dense_layers": config.dense_layers,
    }


def _query_scale(config: HFConfig) -> float | None:
    divisor = config.query_pre_attn_scalar
    return None if divisor is None else float(divisor**-0.5)


def _embedding_multiplier(config: HFConfig) -> float:
    return (
        float(config.hidden_size**0.5) if config.scales_embedding else config.embedding_multiplier
    )


def _scaling(config: HFConfig) -> dict[str, Any] | None:
    by_kind = config.rope_local_base_freq is not None  # where the length beside it has no meaning
    trained = None if by_kind else config.original_max_position_embeddings
    return checkpoint_scaling(config.rope_scaling, config.max_position_embeddings, trained)


def built_of(folder: Path) -> str | None:
    """The model_type that the source of a checkpoint or engine had; None: a folder is neither."""
    data = ModelFolder(folder).object(CONFIG)
    if config_kind(data) not in ("checkpoint", "engine"):
        return None
    name = data.get("pretrained_config", data).get("architecture")
    return next((kind for kind, architecture in MODEL_TYPES.items() if architecture == name), None)
