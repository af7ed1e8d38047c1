"""A Hugging Face Llama, Mistral or Qwen2 config.json, in the spellings of transformers 4 and 5.

Keys have Hugging Face's names, so that errors name what is in the file; `read_hf_config` gives the
TensorRT-LLM checkpoint's config that the model converts to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trtla.errors import UsageError
from trtla.files import read_json, validate
from trtla.formats.config import LARGEST, CheckpointConfig, Count, DType, Size, as_dtype
from trtla.formats.folder import config_kind
from trtla.formats.support import ARCHITECTURES, FAMILIES, check_supported
from trtla.formats.t5_config import ENCODER_DECODERS, architecture, refuse_to_convert

_WINDOW = 4096  # MistralConfig's and Qwen2Config's default where the key is absent
_QWEN2_POSITIONS = 32768  # Qwen2Config's


class HFConfig(BaseModel):
    """What trtla reads of config.json; absent keys have the defaults of the family's class."""

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
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    sliding_window: Size | None = None
    use_sliding_window: bool = True
    max_window_layers: int = 0
    layer_types: list[str] | None = None
    quantization_config: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _spellings(cls, data: Any) -> Any:
        """Bring transformers 5 spellings (dtype, rope_parameters) and nulls to one form."""
        if not isinstance(data, dict):
            return data
        data = {"dtype": data.get("torch_dtype"), **_of_family(data)}
        rope = data.get("rope_parameters")
        if isinstance(rope, dict):
            data.setdefault("rope_scaling", rope)
            if rope.get("rope_theta") is not None:
                data["rope_theta"] = rope["rope_theta"]
        return data

    @property
    def window(self) -> int | None:
        """The attention window of the layers that have one; None if no layer has."""
        if not self.use_sliding_window:
            return None
        if self.layer_types is not None:
            windowed = "sliding_attention" in self.layer_types
        else:  # the first max_window_layers read everything
            windowed = self.max_window_layers < self.num_hidden_layers
        return self.sliding_window if windowed else None


def _of_family(data: dict[str, Any]) -> dict[str, Any]:
    """Fill what the family's class in transformers has for absent keys, and what it fixes.

    An absent key and a null mean the same, except for a window: null is no window.
    """
    kept = {key: value for key, value in data.items() if value is not None}
    family = str(data.get("model_type") or data.get("architectures")).lower()
    window = {"sliding_window": data.get("sliding_window", _WINDOW)}
    if "qwen2" in family:
        absent = {"max_position_embeddings": _QWEN2_POSITIONS, "max_window_layers": 28}
        fixed = {"attention_bias": True, "mlp_bias": False}
        return {**absent, "use_sliding_window": False, **kept, **window, **fixed}
    for key in ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"):
        kept.pop(key, None)
    return {**kept, **window} if "mistral" in family else kept


def read_hf_config(path: Path) -> tuple[CheckpointConfig, DType | None]:
    """The checkpoint config of a model folder's config.json, and the dtype the file names, if any.

    The returned config's own dtype is that one, or float32 as a placeholder.
    """
    return parse_hf_config(read_json(path), path)


def parse_hf_config(data: Any, path: Path) -> tuple[CheckpointConfig, DType | None]:
    """As `read_hf_config`, of what is in the file; `path` is for the messages."""
    name = _supported_architecture(data, path)
    config = validate(HFConfig, data, str(path))
    if config.quantization_config is not None:
        method = config.quantization_config.get("quant_method", "an unnamed method")
        raise UsageError(
            f"{path}: the weights are quantised ({method})", "convert the unquantised model"
        )
    dtype = _dtype(config.dtype, path)
    keys = {"architecture": name, **_checkpoint_keys(config, dtype)}
    checkpoint = validate(CheckpointConfig, keys, str(path))
    check_supported(checkpoint, str(path))
    return checkpoint, dtype


def _supported_architecture(data: Any, path: Path) -> str:
    """Before the keys: another architecture's config has other keys, which is not what is wrong."""
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no JSON object", "copy the file again")
    if (kind := config_kind(data)) in ("checkpoint", "engine"):
        raise UsageError(
            f"{path.parent} is not a Hugging Face model but a trtla {kind}",
            "give the Hugging Face folder that it came from",
        )
    name = architecture(data)
    if name in ENCODER_DECODERS:
        raise refuse_to_convert(path.parent, str(name))
    if name not in ARCHITECTURES:
        raise UsageError(
            f"{path}: architecture {name} is not supported",
            f"trtla converts {FAMILIES}",
        )
    return str(name)


def _dtype(name: str | None, path: Path) -> DType | None:
    found = as_dtype(name or "")
    if name and found is None:
        raise UsageError(
            f"{path}: dtype {name} is not supported",
            "trtla reads float16, bfloat16 and float32 checkpoints",
        )
    return found


def _checkpoint_keys(config: HFConfig, dtype: DType | None) -> dict[str, Any]:
    return {
        "dtype": dtype or "float32",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_size": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "hidden_act": "silu" if config.hidden_act == "swish" else config.hidden_act,
        "norm_epsilon": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "rotary_base": config.rope_theta,
        "rotary_scaling": _scaling(config.rope_scaling),
        "attn_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tie_word_embeddings,
        "sliding_window": config.window,
    }


def _scaling(scaling: dict[str, Any] | None) -> dict[str, Any] | None:
    """The rotary scaling, its type in both spellings because readers differ; None if default."""
    if not scaling:
        return None
    kept = {key: value for key, value in scaling.items() if key != "rope_theta"}
    kind = kept.get("rope_type") or kept.get("type") or "default"
    if kind == "default" and kept.get("partial_rotary_factor", 1.0) == 1.0:
        return None
    return {**kept, "type": kind, "rope_type": kind}
