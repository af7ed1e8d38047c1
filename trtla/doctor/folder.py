"""What a folder is (Hugging Face model, checkpoint or engine), its sizes, what is wrong with it.

Only config files and the headers of weight files are read. Problems are collected, not raised.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trtla.errors import UsageError
from trtla.files import read_json, validate
from trtla.formats.checkpoint import rank_problems
from trtla.formats.compiled import compiled_problems
from trtla.formats.config import CheckpointConfig
from trtla.formats.engine import check_manifest, read_engine
from trtla.formats.folder import FolderKind, end_ids, folder_kind, tokenizer_dir
from trtla.formats.hf import model_problems, stored_parameters
from trtla.formats.hf_config import read_hf_config
from trtla.formats.plan import LM_HEAD, check_mapping, hf_shapes
from trtla.formats.support import check_supported
from trtla.formats.t5_config import decoder_config, is_encoder_decoder, read_t5_config

_SHAPE_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_size",
    "max_position_embeddings",
    "rotary_base",
    "rotary_scaling",
    "attn_bias",
    "mlp_bias",
    "tie_word_embeddings",
    "sliding_window",
)
_LIMIT_KEYS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width")


def inspect(path: str | Path) -> dict[str, Any]:
    """Describe a folder with JSON types only.

    Keys of every folder: path, kind, bytes (on disk), tokenizer (present or not), end_ids and
    problems. Where config.json is sound also architecture, dtype, quant_algo, kv_cache_quant_algo,
    parameters (a tied lm_head counts once), shape and mapping; for engines also version, backend,
    limits, lookahead (None if not known), max_draft_len and max_text_len (prompt + output tokens of
    one request). Of an encoder-decoder the shape is the decoder's.

    Raises:
        UsageError: the path is no folder, or of none of the three kinds.
    """
    folder = Path(path)
    kind = folder_kind(folder)
    result: dict[str, Any] = {
        "path": str(folder),
        "kind": kind,
        "bytes": sum(file.stat().st_size for file in folder.iterdir() if file.is_file()),
        "tokenizer": tokenizer_dir(folder) is not None,
        "end_ids": sorted(end_ids(folder)),
    }
    problems: list[UsageError] = []
    try:
        result.update(_describe(folder, kind, problems))
    except UsageError as error:
        problems.append(error)
    return {**result, "problems": [problem.message for problem in problems]}


def _describe(folder: Path, kind: FolderKind, problems: list[UsageError]) -> dict[str, Any]:
    if kind == "engine":
        return _describe_engine(folder, problems)
    if kind == "checkpoint":
        path = folder / "config.json"
        config = validate(CheckpointConfig, read_json(path), str(path))
        problems += _config_problems(folder, config) or rank_problems(folder, config)
        return _describe_model(config)
    if is_encoder_decoder(folder):
        decoder = decoder_config(folder, read_t5_config(folder))
        return _describe_model(decoder, stored_parameters(folder))
    config, _ = read_hf_config(folder / "config.json")
    problems += model_problems(folder, config)
    return _describe_model(config)


def _describe_engine(folder: Path, problems: list[UsageError]) -> dict[str, Any]:
    engine = read_engine(folder)
    config, limits = engine.config.pretrained_config, engine.config.build_config
    try:
        check_manifest(engine)
    except UsageError as error:
        problems.append(error)
    if engine.backend == "torch":
        problems += _config_problems(folder, config) or rank_problems(folder, config)
    else:
        problems += compiled_problems(folder, engine.config)
    triple = engine.lookahead
    return {
        **_describe_model(config),
        "version": engine.config.version,
        "backend": engine.backend,
        "limits": _pick(limits, _LIMIT_KEYS),
        "lookahead": list(triple.as_tuple()) if triple else None,
        "max_draft_len": limits.max_draft_len,
        "max_text_len": limits.max_text_len,
    }


def _config_problems(folder: Path, config: CheckpointConfig) -> list[UsageError]:
    try:
        check_supported(config, str(folder / "config.json"))
        check_mapping(config)
    except UsageError as error:
        return [error]
    return []


def _describe_model(config: CheckpointConfig, parameters: int | None = None) -> dict[str, Any]:
    """`parameters` where a Llama's rule does not tell them."""
    return {
        "architecture": config.architecture,
        "dtype": config.dtype,
        "quant_algo": config.quantization.quant_algo,
        "kv_cache_quant_algo": config.quantization.kv_cache_quant_algo,
        "parameters": _parameters(config) if parameters is None else parameters,
        "shape": _pick(config, _SHAPE_KEYS),
        "mapping": config.mapping.model_dump(),
    }


def _parameters(config: CheckpointConfig) -> int:
    shapes = hf_shapes(config)
    if config.tie_word_embeddings:
        del shapes[LM_HEAD]
    return sum(prod(shape) for shape in shapes.values())


def _pick(model: BaseModel, keys: tuple[str, ...]) -> dict[str, Any]:
    data = model.model_dump(mode="json")
    return {key: data[key] for key in keys}
