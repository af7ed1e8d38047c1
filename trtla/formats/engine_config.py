"""The schemas of an engine's files: TensorRT-LLM's config.json, and trtla.json."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trtla.formats.config import LARGEST, CheckpointConfig, DType, Size
from trtla.settings.lookahead import LookaheadConfig

LOOKAHEAD_DECODING = 8
"""TensorRT-LLM's SpeculativeDecodingMode.LOOKAHEAD_DECODING as config.json stores it."""
NO_SPECULATION = 1
"""TensorRT-LLM's SpeculativeDecodingMode.NONE."""


class BuildConfig(BaseModel):
    """The limits of an engine: the part of TensorRT-LLM's BuildConfig that both executors read.

    `max_seq_len` already includes `max_draft_len`, as TensorRT-LLM's `build()` stores it: prompt
    and output together may use `max_seq_len - max_draft_len` tokens. Engines of TensorRT-LLM 0.20
    to 1.2 read as they are: keys trtla does not use are kept.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    max_batch_size: Size
    max_beam_width: Size = 1
    max_input_len: Size
    max_seq_len: Size
    max_num_tokens: int = Field(ge=1, le=2**63 - 1)
    max_draft_len: int = Field(default=0, ge=0, le=LARGEST)
    speculative_decoding_mode: int = NO_SPECULATION
    kv_cache_type: str | None = None
    """PAGED, CONTINUOUS or DISABLED in any case; absent means CONTINUOUS (gptJsonConfig.cpp)."""
    gather_context_logits: bool = False
    plugin_config: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_token_limit(cls, data: Any) -> Any:
        """Fill a missing max_num_tokens with a full batch of full sequences."""
        if not isinstance(data, dict) or data.get("max_num_tokens") is not None:
            return data
        sizes = data.get("max_batch_size"), data.get("max_seq_len")
        if not all(isinstance(size, int) for size in sizes):
            return data
        return {**data, "max_num_tokens": data["max_batch_size"] * data["max_seq_len"]}

    @model_validator(mode="after")
    def _mode(self) -> BuildConfig:
        if self.speculative_decoding_mode == LOOKAHEAD_DECODING and self.max_draft_len < 1:
            raise ValueError(
                f"max_draft_len {self.max_draft_len} must be above 0 in a lookahead engine"
            )
        if self.max_seq_len <= self.max_draft_len:
            raise ValueError(
                f"max_seq_len {self.max_seq_len} leaves no room beside "
                f"max_draft_len {self.max_draft_len}"
            )
        return self

    @property
    def max_text_len(self) -> int:
        """Prompt + output tokens that one request may use."""
        return self.max_seq_len - self.max_draft_len


class EngineConfig(BaseModel):
    """An engine directory's config.json, TensorRT-LLM's layout."""

    model_config = ConfigDict(frozen=True, extra="allow")

    version: str
    pretrained_config: CheckpointConfig
    build_config: BuildConfig


class EngineManifest(BaseModel):
    """An engine's trtla.json: facts that config.json has no place for. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: Literal[1] = 1
    backend: Literal["torch", "tensorrt-llm"]
    lookahead: tuple[int, int, int]
    dtype: DType
    trtla_version: str
    torch_version: str | None = None
    tensorrt_llm_version: str | None = None
    """The release that compiled a tensorrt-llm engine; it runs on that one only."""
    compute_capability: str | None = Field(default=None, pattern=r"^\d+\.\d+$")
    """The GPU that a tensorrt-llm engine was compiled on, such as 9.0; it runs on that kind only.
    None where it is not known, for engines that trtllm-build made."""
    source: str
    source_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """The digest of the weights and config.json that the engine was built from; where trtllm-build
    made it, of its own files."""
    settings: dict[str, str] = {}
    """The origin of each build setting (flag, environment, config, default)."""
    trtllm: dict[str, Any] = {}
    """Options of TensorRT-LLM's builder, by its own names."""

    @property
    def triple(self) -> LookaheadConfig:
        """The lookahead triple; (1,1,0) for a plain engine."""
        return LookaheadConfig(*self.lookahead)
