"""The config.json of the T5 family: T5, Flan-T5, mT5 and UMT5, which are run as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trtla.errors import UsageError
from trtla.files import validate
from trtla.formats.config import DTYPES, LARGEST, CheckpointConfig, Count, Size
from trtla.formats.families import architecture
from trtla.formats.model_folder import CONFIG, ModelFolder
from trtla.formats.special_tokens import GENERATION_CONFIG

_POSITIONS = 1024  # the plan for models that name none: relative positions have no limit


class T5Config(BaseModel):
    """The keys of config.json that trtla reads; absent ones have transformers' defaults for T5."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    dtype: str = "float32"
    vocab_size: Size
    d_model: Size = 512
    d_kv: int = Field(default=64, ge=2, le=LARGEST)
    d_ff: Size = 2048
    num_layers: Count = 6
    num_decoder_layers: Count
    num_heads: Size = 8
    relative_attention_num_buckets: int = Field(default=32, ge=4, le=LARGEST)
    relative_attention_max_distance: int = Field(default=128, ge=2, le=LARGEST)
    layer_norm_epsilon: float = Field(default=1e-6, gt=0)
    feed_forward_proj: str = Field(default="relu", pattern="^(gated-)?[a-z_]+$")
    n_positions: int = Field(default=_POSITIONS, ge=2, le=LARGEST)
    decoder_start_token_id: int = Field(default=0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _spellings(cls, data: Any) -> Any:
        """Bring nulls and absent keys to one form; the pad token starts where nothing else does."""
        if not isinstance(data, dict):
            return data
        named = {key: value for key, value in data.items() if value is not None}
        dtype = str(named.get("dtype") or named.get("torch_dtype") or "float32")
        named["dtype"] = dtype.removeprefix("torch.")
        named.setdefault("decoder_start_token_id", named.get("pad_token_id", 0))
        named.setdefault("num_decoder_layers", named.get("num_layers", 6))
        return named

    @model_validator(mode="after")
    def _fits(self) -> T5Config:
        exact, longest = self.relative_attention_num_buckets // 2, "relative_attention_max_distance"
        if self.relative_attention_max_distance <= exact:
            raise ValueError(f"{longest} must be above {exact}, half of the buckets")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype} is not one of {', '.join(DTYPES)}")
        if self.decoder_start_token_id >= self.vocab_size:
            raise ValueError(
                f"decoder_start_token_id {self.decoder_start_token_id} is outside the vocabulary"
            )
        return self

    @property
    def activation(self) -> str:
        """transformers' name of it; `gated-gelu` stands for the tanh form, as T5 1.1 has it."""
        if self.feed_forward_proj == "gated-gelu":
            return "gelu_new"
        return self.feed_forward_proj.removeprefix("gated-")


def read_t5_config(folder: ModelFolder) -> T5Config:
    """The config of a folder; generation_config.json comes first where it names the start token."""
    data, named = folder.read(CONFIG), (folder.path / GENERATION_CONFIG).is_file()
    content = folder.read(GENERATION_CONFIG) if named else None
    if isinstance(content, dict) and content.get("decoder_start_token_id") is not None:
        data = {**data, "decoder_start_token_id": content["decoder_start_token_id"]}
    return validate(T5Config, data, str(folder.path / CONFIG), "copy the file again")


def decoder_config(folder: ModelFolder, config: T5Config) -> CheckpointConfig:
    """The decoder in terms of a checkpoint's config."""
    data = {
        "architecture": architecture(folder.read(CONFIG)),
        "dtype": config.dtype,
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.num_decoder_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_heads,
        "head_size": config.d_kv,
        "intermediate_size": config.d_ff,
        "hidden_act": config.activation,
        "norm_epsilon": config.layer_norm_epsilon,
        "position_embedding_type": "relative",
        "max_position_embeddings": config.n_positions,
    }
    return validate(CheckpointConfig, data, str(folder.path / CONFIG), "copy the file again")


def refuse_to_convert(folder: Path, name: str) -> UsageError:
    """The refusal to make a checkpoint or engine of a model of the T5 family."""
    return UsageError(
        f"{folder} is an encoder-decoder ({name}), which is neither converted nor built",
        f"run it as it is: trtla run --engine-dir {folder} --input-text '...'",
    )
