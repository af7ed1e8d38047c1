"""The source of an engine and its dtype: a checkpoint, Hugging Face folder or GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtla.errors import UsageError
from trtla.files import validate
from trtla.formats.checkpoint import Checkpoint, read_checkpoint_config
from trtla.formats.config import DTYPES, OPTIONS, QWEN2, CheckpointConfig, Mapping
from trtla.formats.engine_config import BuildConfig
from trtla.formats.engine_limits import BuildSettings
from trtla.formats.gguf.folder import find_folder, weight_file
from trtla.formats.hf import HFModel
from trtla.formats.hf_config import read_hf_config
from trtla.formats.model_folder import FolderKind, ModelFolder
from trtla.formats.support import check_mapping
from trtla.formats.tensors import Dequantized, FileSource
from trtla.settings.lookahead import LookaheadConfig


@dataclass(frozen=True, slots=True)
class BuildSource:
    """A folder to build from; `config` has the dtype of the engine and the folder's mapping."""

    folder: Path
    kind: FolderKind
    config: CheckpointConfig
    stored: CheckpointConfig
    """The config with the folder's own dtype and blocks."""

    @property
    def is_checkpoint(self) -> bool:
        """Return True if TensorRT-LLM reads it as it is: a checkpoint of the engine's dtype."""
        return self.kind == "checkpoint" and self.config == self.stored


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """Everything that goes into an engine."""

    source: BuildSource
    tensors: FileSource
    limits: BuildConfig
    lookahead: LookaheadConfig
    settings: BuildSettings
    origin: dict[str, str]
    """The origin of each setting."""
    trtllm: dict[str, Any]
    """Fields of TensorRT-LLM's BuildConfig and, behind `plugin_config.`, of its PluginConfig."""


def read_source(folder: Path, dtype: str | None) -> BuildSource:
    """Read config.json only; without a dtype there or here, a Hugging Face folder is float16."""
    model_folder = _local(folder)
    folder, kind = model_folder.path, model_folder.kind
    if kind == "checkpoint":
        return _checkpoint_source(folder, read_checkpoint_config(model_folder), dtype)
    if weight_file(folder) is not None:  # the types of its blocks are in the header
        return open_source(folder, dtype)[0]
    config, named = read_hf_config(model_folder)
    target = "float16" if dtype in (None, "auto") and not named else dtype or "auto"
    return BuildSource(folder, kind, checkpoint_config(config, target), config)


def open_source(folder: Path, dtype: str | None) -> tuple[BuildSource, FileSource]:
    """Read config.json and the headers of the weight files."""
    model_folder = _local(folder)
    if model_folder.kind == "checkpoint":
        checkpoint = Checkpoint.open(model_folder)
        source = _checkpoint_source(model_folder.path, checkpoint.config, dtype)
        return source, in_type(checkpoint, source.stored, source.config)
    model = HFModel.open(model_folder)
    config = checkpoint_config(model.config, dtype or "auto")
    source = BuildSource(model_folder.path, model_folder.kind, config, model.config)
    return source, in_type(model, model.config, config)


def in_type(source: FileSource, stored: CheckpointConfig, target: CheckpointConfig) -> FileSource:
    """The source itself, or one that dequantises blocks that the target config does not have."""
    dequantized = stored.block_types and not target.block_types
    return Dequantized(source, stored.block_types) if dequantized else source


def _checkpoint_source(folder: Path, stored: CheckpointConfig, dtype: str | None) -> BuildSource:
    config = stored if dtype in (None, "auto") else _in_dtype(stored, dtype)
    return BuildSource(folder, "checkpoint", config, stored)


def _in_dtype(config: CheckpointConfig, dtype: str) -> CheckpointConfig:
    """The config in another dtype; any but `auto` dequantises blocks.

    `auto` is the stored dtype, but float16 for float32, as TensorRT-LLM's convert does.
    """
    if dtype == "auto":
        narrow = {"dtype": "float16"} if config.dtype == "float32" else {}
        return config.model_copy(update=narrow)
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is unknown", "use auto, float16, bfloat16 or float32")
    update: dict[str, Any] = {"dtype": dtype}
    if config.block_types:
        update["quantization"] = config.quantization.model_copy(update={"block_types": None})
    return config.model_copy(update=update)


def _local(path: Path) -> ModelFolder:
    folder = find_folder(path)
    if folder.kind == "engine":
        raise UsageError(
            f"{folder.path} is an engine already",
            "give its checkpoint or Hugging Face folder as --checkpoint-dir",
        )
    return folder


def checkpoint_config(
    config: CheckpointConfig, dtype: str = "auto", tp_size: int = 1, pp_size: int = 1
) -> CheckpointConfig:
    """The model's config with the dtype and the split of the checkpoint to be written."""
    for flag, value in (("tp-size", tp_size), ("pp-size", pp_size)):
        if value < 1:
            raise UsageError(f"--{flag} is {value}", f"--{flag} must be at least 1")
    mapping = {"world_size": tp_size * pp_size, "tp_size": tp_size, "pp_size": pp_size}
    update = {"mapping": validate(Mapping, mapping, "the mapping")}
    result = _in_dtype(config, dtype).model_copy(update=update)
    check_mapping(result)
    return result


_LLAMA = {"residual_mlp": False, "remove_duplicated_kv_heads": False}
_QWEN2 = {"qwen_type": "qwen2", "seq_length": 8192, "use_logn_attn": False}
"""QWenDecoderLayer reads the first two, for which QWenConfig has no default. `seq_length` is that
of from_hugging_face; it is for logn attention only, which Qwen2 does not have."""


def config_json(config: CheckpointConfig) -> dict[str, Any]:
    """The checkpoint's config.json: our keys, and TensorRT-LLM's constants for the family."""
    fields, keys = CheckpointConfig.model_fields, ("layer_windows", *OPTIONS)
    unused = {key for key in keys if getattr(config, key) == fields[key].default}
    data = config.model_dump(mode="json", exclude=unused)
    return {
        "rotary_pct": 1.0,
        "rotary_embedding_dim": config.head_size,
        "qk_layernorm": False,
        "disable_weight_only_quant_plugin": False,
        **(_QWEN2 if config.architecture == QWEN2 else _LLAMA),
        **data,
    }
