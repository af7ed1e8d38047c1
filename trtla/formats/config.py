"""The schema of checkpoint files, and the types that weights are stored in.

Key names are TensorRT-LLM's, so that one reader serves the files of both.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

DType = Literal["float16", "bfloat16", "float32"]
"""Weight and activation types of a checkpoint."""
DTYPES: tuple[DType, ...] = get_args(DType)
FP8 = "float8_e4m3fn"
"""The type of FP8 weights: 4 bits of exponent, 3 of mantissa, at most 448, no infinity."""
INT4 = "int4"
"""The type of W4A16_AWQ's weights: two numbers from -8 to 7 a byte."""
WEIGHT_ONLY = {"W8A16": 8, "W4A16": 4, "W4A16_AWQ": 4}
"""TensorRT-LLM's algorithms for weights of integers, and their bits. The first two round when the
library loads a checkpoint, whose weights are plain."""
AWQ_GROUP_SIZES = (64, 128)
"""Inputs that share a scale in W4A16_AWQ."""
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, FP8: 1}
"""Bytes of one element of every type in a checkpoint that is not in blocks."""
BLOCKS = {
    "Q8_0": (32, 34, 8, 0),
    "Q8_G64": (64, 66, 8, 0),
    "Q8_G128": (128, 130, 8, 0),
    "Q4_0": (32, 18, 4, 8),
    "Q4_G64": (64, 34, 4, 8),
    "Q4_G128": (128, 66, 4, 8),
    "Q4_1": (32, 20, 4, 0),
    "Q5_0": (32, 22, 5, 16),
    "Q5_1": (32, 24, 5, 0),
    "Q2_K": (256, 84, 2, 0),
    "Q3_K": (256, 110, 3, 4),
    "Q4_K": (256, 144, 4, 0),
    "Q5_K": (256, 176, 5, 0),
    "Q6_K": (256, 210, 6, 32),
    "IQ4_NL": (32, 18, 4, 0),
    "IQ4_XS": (256, 136, 4, 0),
    "MXFP4": (32, 17, 4, 0),
}
"""Every type of quantised weights, ggml's and with _G our own: inputs and bytes of a block, bits of
a code, and the code of 0 in types with neither minimum nor table. `trtla.formats.blocks` has their
layouts."""
BLOCK_SIZES = {name: (inputs, nbytes) for name, (inputs, nbytes, _, _) in BLOCKS.items()}

OPTIONS = (
    *("qk_layernorm", "sandwich_norms", "offset_norms", "embedding_multiplier", "rotary_pct"),
    *("attention_scale", "residual_multiplier", "logits_scaling"),
    *("local_rotary_base", "unrotated_layers", "num_experts", "num_experts_per_tok"),
    *("moe_intermediate_size", "norm_topk_prob", "dense_layers", "qk_norm_all_heads"),
    *("moe_bias", "attention_sinks", "swiglu_alpha", "swiglu_limit"),
    *("shared_intermediate_size", "shared_expert_gate"),
    *("scoring_func", "score_correction", "routed_scaling_factor"),
)
"""Fields of `CheckpointConfig` for arithmetic that Llama does not have."""

CLAMPED = "clamped_swiglu"
"""The activation of models that have a `swiglu_limit`."""

QWEN2 = "Qwen2ForCausalLM"
QKV_BIASES = (QWEN2, "Qwen2MoeForCausalLM", "Glm4MoeForCausalLM")
"""The architectures whose `attn_bias` means q, k and v only (QWenConfig, models/qwen/model.py)."""

TOKENS_PER_BLOCK = 32
"""Tokens in a block of the paged K/V cache: TensorRT-LLM's default, and the torch executor's."""

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
"""Rotary scalings that trtla converts and runs."""

LARGEST = 2**31 - 1
"""The largest dimension or number of tokens: they are C ints in TensorRT-LLM."""
Size = Annotated[int, Field(ge=1, le=LARGEST)]
Count = Annotated[int, Field(ge=1, le=10_000)]
"""Layers or ranks, which are visited one by one: far above any model."""


def as_dtype(name: str) -> DType | None:
    """The type of this name, with or without torch's prefix; None: weights have no such type."""
    return next((dtype for dtype in DTYPES if dtype == name.removeprefix("torch.")), None)


class Mapping(BaseModel):
    """The split of a checkpoint over ranks: rank = pp_rank * tp_size + tp_rank.

    Only the keys that every release from 0.20 to 1.2 accepts are written.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    world_size: Count = 1
    gpus_per_node: int = Field(default=8, ge=1)
    tp_size: Count = 1
    pp_size: Count = 1

    @model_validator(mode="after")
    def _product(self) -> Mapping:
        if self.world_size != self.tp_size * self.pp_size:
            raise ValueError(
                f"world_size {self.world_size} is not "
                f"tp_size {self.tp_size} x pp_size {self.pp_size}"
            )
        return self


class Quantization(BaseModel):
    """A checkpoint's `quantization` block: QuantConfig of TensorRT-LLM's models/modeling_utils.py.

    QuantConfig's constructor gets it as it is, so only keys that all releases know are
    written; keys of theirs that trtla does not use are kept.
    """

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    exclude_modules: list[str] | None = None
    """Names or fnmatch patterns of modules that stay as they are; None: TensorRT-LLM's own list,
    which holds lm_head and the embedding."""
    group_size: int | None = None
    """Weights of a group that share a scale, for W4A16_AWQ; TensorRT-LLM's default is 128."""
    has_zero_point: bool | None = None
    pre_quant_scale: bool | None = None
    """W4A16_AWQ multiplies the inputs of every linear by a vector first."""
    block_types: dict[str, str] | None = None
    """Hugging Face's name of a weight in blocks -> their type; trtla's own key."""

    @field_validator("block_types")
    @classmethod
    def _known(cls, types: dict[str, str] | None) -> dict[str, str] | None:
        for name, kind in (types or {}).items():
            if kind not in BLOCK_SIZES:
                raise ValueError(f"{name} is {kind!r}, not one of {', '.join(BLOCK_SIZES)}")
        return types or None

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = dump(self)
        for key in set(Quantization.model_fields) - {"quant_algo", "kv_cache_quant_algo"}:
            if data[key] is None:
                del data[key]
        return data


class CheckpointConfig(BaseModel):
    """A TensorRT-LLM checkpoint's config.json for dense Llama (LLaMAConfig) or Qwen2 (QWenConfig).

    Keys trtla does not use are kept as they are, so an engine made by `trtllm-build` reads as well.
    """

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    architecture: str
    dtype: DType
    """The type of activations, of the K/V cache and of all weights that are not quantised."""
    logits_dtype: Literal["float16", "float32"] = "float32"
    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: Count
    num_attention_heads: Size
    num_key_value_heads: Size
    head_size: int = Field(ge=2, le=LARGEST)
    intermediate_size: Size
    hidden_act: str = "silu"
    norm_epsilon: float = Field(default=1e-5, gt=0)
    position_embedding_type: str = "rope_gpt_neox"
    max_position_embeddings: Size
    rotary_base: float = Field(default=10000.0, gt=0)
    rotary_scaling: dict[str, Any] | None = None
    attn_bias: bool = False
    """Biases of q, k and v, and of all but these also of the linear behind them (`dense_bias`)."""
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    use_parallel_embedding: bool = False
    embedding_sharding_dim: int = Field(default=0, ge=0, le=1)
    mapping: Mapping = Mapping()
    quantization: Quantization = Quantization()
    qk_layernorm: bool = False
    """Each head's queries and keys are normalised before they are rotated."""
    qk_norm_all_heads: bool = False
    """A token's queries of all heads are normalised together, and so are its keys."""
    sandwich_norms: bool = False
    """The outputs of attention and MLP are normalised too, before they are added."""
    offset_norms: bool = False
    """Hugging Face's files hold the weights of norms less 1; here 1 has been added."""
    embedding_multiplier: float = Field(default=1.0, gt=0)
    attention_scale: float | None = Field(default=None, gt=0)
    """The factor of attention's scores; None: 1 / sqrt(head_size)."""
    residual_multiplier: float = Field(default=1.0, gt=0)
    """The factor of the outputs of attention and MLP before they are added."""
    logits_scaling: float = Field(default=1.0, gt=0)
    """The divisor of logits."""
    rotary_pct: float = Field(default=1.0, ge=0, le=1)
    """The share of a head's numbers that rotary embedding rotates."""
    local_rotary_base: float | None = Field(default=None, gt=0)
    """The base of layers with a window, which then have no rotary scaling; None: that of all."""
    unrotated_layers: tuple[int, ...] = ()
    """Layers without rotary embedding."""
    num_experts: int = Field(default=0, ge=0, le=10_000)
    """The experts of each layer that is a mixture; 0: all layers are dense."""
    num_experts_per_tok: int = Field(default=0, ge=0, le=10_000)
    moe_intermediate_size: int = Field(default=0, ge=0, le=LARGEST)
    norm_topk_prob: bool = False
    """The shares of a token's experts add up to 1; else they are of the softmax over all."""
    scoring_func: Literal["softmax", "sigmoid"] = "softmax"
    """The function that makes chances of a router's scores."""
    score_correction: bool = False
    """A learnt number is added to each expert's chance where experts are chosen."""
    routed_scaling_factor: float = Field(default=1.0, gt=0)
    """The factor of experts' shares."""
    dense_layers: tuple[int, ...] = ()
    """The layers of a model with experts that have none."""
    moe_bias: bool = False
    """Routers and experts have biases."""
    shared_intermediate_size: int = Field(default=0, ge=0, le=LARGEST)
    """The width of the expert that all tokens of a mixture share; 0: there is none."""
    shared_expert_gate: bool = False
    """A sigmoid decides what it counts for a token."""
    attention_sinks: bool = False
    """Each head has a score that takes a share of its attention, without a value."""
    swiglu_alpha: float = Field(default=1.0, gt=0)
    """The factor of a gate in the sigmoid that multiplies it."""
    swiglu_limit: float | None = Field(default=None, gt=0)
    """The limit of a gate, and of both sides of what it gates, to which 1 is added; None: plain
    SwiGLU."""
    layer_windows: tuple[Size | None, ...] = ()
    """The last tokens of a text that each layer's attention sees; None: all. Empty: all do."""

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """Fill keys that TensorRT-LLM derives: biases, kv heads, head size, intermediate size."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        data["quantization"] = data.get("quantization") or Quantization()
        data.setdefault("attn_bias", data.get("architecture") == QWEN2)
        hidden, heads = data.get("hidden_size"), data.get("num_attention_heads")
        if isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
            for key, value in (
                ("num_key_value_heads", heads),
                ("head_size", hidden // heads),
                ("intermediate_size", 4 * hidden),
            ):
                if data.get(key) is None:
                    data[key] = value
        return data

    @model_validator(mode="after")
    def _shape(self) -> CheckpointConfig:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_size % 2:
            raise ValueError(f"head_size {self.head_size} is odd; rotary embedding needs pairs")
        if self.rotary_size % 2:
            raise ValueError(f"rotary embedding turns pairs, not {self.rotary_size} numbers")
        if (self.model_extra or {}).get("attention_multiplier") not in (None, 1.0):
            raise ValueError("attention_multiplier is TensorRT-LLM's, which trtla does not read")
        if self.num_experts and not 0 < self.num_experts_per_tok <= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok is {self.num_experts_per_tok}, of {self.num_experts} experts"
            )
        if self.num_experts and not self.moe_intermediate_size:
            raise ValueError("moe_intermediate_size is 0")
        if len(self.layer_windows) not in (0, self.num_hidden_layers):
            raise ValueError(
                f"layer_windows has {len(self.layer_windows)} entries for "
                f"{self.num_hidden_layers} layers"
            )
        return self

    @property
    def rotary_size(self) -> int:
        """The number of a head's dimensions that rotary embedding rotates."""
        return int(self.head_size * self.rotary_pct + 1e-6)  # a share may be rounded down

    @property
    def activation(self) -> str:
        """The activation of MLPs: `hidden_act`, or CLAMPED."""
        return self.hidden_act if self.swiglu_limit is None else CLAMPED

    def has_experts(self, layer: int) -> bool:
        """Return True if a layer is a mixture of experts."""
        return self.num_experts > 0 and layer not in self.dense_layers

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The attention window of each layer; None: it sees the whole text."""
        return self.layer_windows or (None,) * self.num_hidden_layers

    @property
    def shortest_window(self) -> int | None:
        """The window that texts outgrow first; None: no layer has one."""
        return min(filter(None, self.layer_windows), default=None)

    @property
    def dense_bias(self) -> bool:
        """Return True if attention's output linear has a bias."""
        return self.attn_bias and self.architecture not in QKV_BIASES

    @property
    def fp8(self) -> bool:
        return self.quantization.quant_algo == "FP8"

    @property
    def awq_group_size(self) -> int | None:
        """Inputs that share a scale in W4A16_AWQ; None for any other algorithm."""
        awq = self.quantization.quant_algo == "W4A16_AWQ"
        return self.quantization.group_size or 128 if awq else None

    @property
    def rounded_when_built(self) -> bool:
        """Return True if weights are plain here, and integers in TensorRT-LLM."""
        return self.quantization.quant_algo in ("W8A16", "W4A16")

    @property
    def fp8_kv_cache(self) -> bool:
        return self.quantization.kv_cache_quant_algo == "FP8"

    @property
    def block_types(self) -> dict[str, str]:
        """Type of every weight in blocks, by Hugging Face's name; empty if none is."""
        return self.quantization.block_types or {}

    @property
    def rope_type(self) -> str:
        """The rotary scaling's name in either spelling; `default` without one."""
        scaling = self.rotary_scaling or {}
        return str(scaling.get("rope_type") or scaling.get("type") or "default")

    @property
    def max_positions(self) -> int:
        """Tokens the model can read: linear, dynamic and yarn scaling stretch the trained length.

        With yarn `max_position_embeddings` is either of the two lengths.
        """
        scaling, trained = self.rotary_scaling or {}, self.max_position_embeddings
        factor = float(scaling.get("factor") or 1.0)
        if self.rope_type == "yarn":
            before = scaling.get("original_max_position_embeddings") or trained
            return max(trained, int(before * factor))
        return int(trained * factor) if self.rope_type in ("linear", "dynamic") else trained
