"""Describes a folder (Hugging Face model, checkpoint or engine) and collects its problems.

Only config files and the headers of weight files are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trtla.errors import UsageError
from trtla.extras.inspect.texts import describe_texts
from trtla.formats.chat_templates import stored_template
from trtla.formats.checkpoint import check_config, rank_problems
from trtla.formats.config import BLOCK_SIZES, INT4, OPTIONS, WEIGHT_ONLY, CheckpointConfig
from trtla.formats.engine import check_manifest
from trtla.formats.engine_limits import compiled_problems, longest_text
from trtla.formats.folder import tokenizer_dir
from trtla.formats.gguf.header import is_gguf, read_header, shards
from trtla.formats.hf import model_problems, stored_parameters
from trtla.formats.hub import hub_folder
from trtla.formats.model import Model
from trtla.formats.plan import LM_HEAD, hf_shapes, stored_plan
from trtla.formats.quantised_folder import quantization_name
from trtla.formats.support import kv_bytes_per_token

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
)
_FAMILY_KEYS = ("hidden_act", "layer_windows", *OPTIONS)
"""Shown where they differ from Llama's."""
_LIMIT_KEYS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width")


def inspect(path: str | Path) -> dict[str, Any]:
    """Describe a folder or a GGUF file with JSON types only.

    Keys of every folder: path, kind, bytes (on disk), tokenizer and chat_template (present or not),
    end_ids, how texts begin and end and the chat template's tokens, with their sources (ends,
    begins, template), notes, problems and hint (against the first of these, None without); of a
    GGUF file also tensor_types, the number of each; of a quantised Hugging Face folder
    quantization, its name. If
    config.json is sound also architecture, dtype, quant_algo, kv_cache_quant_algo, parameters (a
    tied lm_head counts once), shape, mapping, max_text_len (prompt + output tokens of one request)
    and kv_cache_bytes (of such a text, in the model's dtype); for engines also version, backend,
    limits, lookahead (None if not known) and max_draft_len. Of an encoder-decoder the shape is the
    decoder's. Weights that only TensorRT-LLM rounds have a note. All but Hugging Face folders also
    have weight_types: tensors, bytes and bits_per_weight of each type.
    """
    return inspected(path)[0]


def inspected(path: str | Path) -> tuple[dict[str, Any], Model | None]:
    """Return the description as by `inspect`, and the model; None if its config files are
    broken."""
    local = hub_folder(path)
    model = Model.at(local)
    folder = model.path
    files = shards(local) if is_gguf(local) else folder.iterdir()
    result: dict[str, Any] = {
        "path": str(local),
        "kind": "GGUF file" if is_gguf(local) else model.kind,
        "bytes": sum(file.stat().st_size for file in files if file.is_file()),
        "tokenizer": tokenizer_dir(folder) is not None,
        "chat_template": stored_template(model.folder) is not None,
    }
    if (name := quantization_name(model.folder)) is not None:
        result["quantization"] = name
    texts = describe_texts(model.folder)
    result |= {"end_ids": sorted(map(int, texts["ends"])), **texts}
    if is_gguf(local):
        infos = read_header(local).tensors.values()
        result["tensor_types"] = dict(Counter(info.type for info in infos).most_common())
        sizes = ((i.type, prod(i.shape), i.shape[0] * i.row_bytes) for i in infos)
        result["weight_types"] = _weight_types(sizes)
    problems: list[UsageError] = []
    sound = False
    try:
        sound = bool(model.config)
        result |= _describe(model)
        problems += _problems(model, texts["notes"])
    except UsageError as error:
        problems.append(error)
    result["problems"] = [problem.message for problem in problems]
    result["hint"] = problems[0].hint if problems else None
    return result, model if sound else None


def _problems(model: Model, notes: list[str]) -> Iterator[UsageError]:
    config, engine = model.config, model.engine
    if model.is_encoder_decoder:
        return
    if engine is None and model.kind != "checkpoint":
        problems, beside = model_problems(model.path, config)
        notes += filter(None, [beside])
        yield from problems
        return
    if engine is not None:
        try:
            check_manifest(engine)
        except UsageError as error:
            yield error
        if engine.backend == "tensorrt-llm":
            yield from compiled_problems(model.path, engine.config)
            return
    check_config(model.path, config)
    yield from rank_problems(model.path, config)


def _describe(model: Model) -> dict[str, Any]:
    config, engine = model.config, model.engine
    text_len = longest_text(config) if engine is None else engine.longest_text
    description = {
        "architecture": config.architecture,
        "dtype": config.dtype,
        "quant_algo": config.quantization.quant_algo,
        "kv_cache_quant_algo": config.quantization.kv_cache_quant_algo,
        "parameters": _parameters(model),
        "shape": _picked(config, _SHAPE_KEYS) | _chosen(config),
        "mapping": config.mapping.model_dump(),
        "max_text_len": text_len,
        "kv_cache_bytes": text_len * config.mapping.world_size * kv_bytes_per_token(config),
    }
    if engine is not None or model.kind == "checkpoint":
        description["weight_types"] = _weight_types(_planned(config))
    if config.rounded_when_built and (engine is None or engine.backend == "torch"):
        bits = WEIGHT_ONLY[config.quantization.quant_algo or ""]
        description["note"] = (
            f"TensorRT-LLM rounds the linear weights to int{bits} when it builds; the torch "
            "executor runs them as they are"
        )
    if engine is None:
        return description
    triple, limits = engine.lookahead, engine.config.build_config
    return {
        **description,
        "version": engine.config.version,
        "backend": engine.backend,
        "limits": _picked(limits, _LIMIT_KEYS),
        "lookahead": list(triple.as_tuple()) if triple else None,
        "max_draft_len": limits.max_draft_len,
    }


def _planned(config: CheckpointConfig) -> Iterator[tuple[str, int, int]]:
    """Yield type, numbers and bytes of every tensor of a checkpoint."""
    for rank in range(config.mapping.world_size):
        for target in stored_plan(config, rank):
            inputs, size = {**BLOCK_SIZES, INT4: (2, 1)}.get(target.dtype, (1, 1))
            yield target.dtype, prod(target.shape) // size * inputs, target.nbytes


def _weight_types(tensors: Iterable[tuple[str, int, int]]) -> dict[str, dict[str, float]]:
    """Sum up type, numbers and bytes of tensors; the type with the most bytes comes first."""
    sums: dict[str, list[int]] = {}
    for kind, numbers, size in tensors:
        known = sums.setdefault(kind, [0, 0, 0])
        sums[kind] = [known[0] + 1, known[1] + max(numbers, 1), known[2] + size]
    return {
        kind: {
            "tensors": count,
            "bytes": size,
            "bits_per_weight": round(8 * size / max(numbers, 1), 3),
        }
        for kind, (count, numbers, size) in sorted(sums.items(), key=lambda item: -item[1][2])
    }


def _parameters(model: Model) -> int:
    if model.is_encoder_decoder:
        return stored_parameters(model.path)
    shapes = hf_shapes(model.config)
    if model.config.tie_word_embeddings:
        del shapes[LM_HEAD]
    return sum(prod(shape) for shape in shapes.values())


def _chosen(config: CheckpointConfig) -> dict[str, Any]:
    """The options in which a model differs from Llama."""
    fields = CheckpointConfig.model_fields
    keys = (key for key in _FAMILY_KEYS if getattr(config, key) != fields[key].default)
    return _picked(config, tuple(keys))


def _picked(config: BaseModel, keys: tuple[str, ...]) -> dict[str, Any]:
    values = config.model_dump(mode="json", include=set(keys))
    return {key: values[key] for key in keys if key in values}
