"""The description of a model: a Hugging Face folder, checkpoint, engine or GGUF file.

Only config files and the headers of weight files are read.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any

from trtla.console import size
from trtla.errors import UsageError
from trtla.formats.chat_templates import stored_template
from trtla.formats.checkpoint import check_config, rank_problems
from trtla.formats.config import BLOCK_SIZES, DTYPE_BYTES, INT4, CheckpointConfig
from trtla.formats.engine import Engine, check_manifest
from trtla.formats.engine_limits import compiled_problems, longest_text
from trtla.formats.folder import tokenizer_dir
from trtla.formats.gguf.header import is_gguf, read_header, shards
from trtla.formats.gguf.weights import PLAIN
from trtla.formats.heads.beside import head_beside
from trtla.formats.heads.reading import read_head
from trtla.formats.hf import model_problems, stored_parameters
from trtla.formats.hub import hub_folder
from trtla.formats.model import Model
from trtla.formats.model_folder import ModelFolder
from trtla.formats.plan import stored_plan
from trtla.formats.quantised_folder import quantization_name
from trtla.formats.shapes import LM_HEAD, hf_shapes
from trtla.formats.special_tokens import end_tokens
from trtla.formats.support import expert_numbers, kv_bytes_per_token
from trtla.llm.reading import reading_notes, template_note
from trtla.llm.text import Tokenizer
from trtla.settings.lookahead import AUTOREGRESSIVE, triples_for

_NO_SHAPE = ("architecture", "dtype", "logits_dtype", "quantization", "mapping")
_LIMITS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width")


def describe_model(path: str | Path) -> tuple[dict[str, Any], Model | None]:
    """Describe a model in JSON types, and return the model; None if its config files are broken.

    A broken model has problems, and a hint against the first of them; a sound one has the next
    command.
    """
    local = hub_folder(path)
    model = Model.at(local)
    files = shards(local) if is_gguf(local) else model.path.iterdir()
    notes: list[str] = []
    tokenizer = _tokenizer(model.folder, notes)
    described: dict[str, Any] = {
        "path": str(local),
        "kind": "GGUF file" if is_gguf(local) else model.kind,
        "bytes": sum(file.stat().st_size for file in files if file.is_file()),
        "quantization": quantization_name(model.folder),
        **_texts(model.folder, tokenizer),
        "notes": notes,
    }
    problems: list[UsageError] = []
    sound = False
    try:
        sound = bool(model.config)
        described |= _sizes(model)
        weights = [*_weights(local, model)]
        described["weight_types"] = by_type(weights)
        notes += _dequantised(weights, model.config.dtype) if is_gguf(local) else []
        problems += _problems(model, notes)
        notes += _head_notes(model)
    except UsageError as error:
        problems.append(error)
    described["next"] = None if problems else _next(local, model, tokenizer)
    described["problems"] = [problem.message for problem in problems]
    described["hint"] = problems[0].hint if problems else None
    return described, model if sound else None


def _tokenizer(folder: ModelFolder, notes: list[str]) -> Tokenizer | None:
    """Open the tokenizer, and append notes; one that cannot be opened is a note."""
    if tokenizer_dir(folder.path) is None:
        return None
    try:
        tokenizer = Tokenizer(folder)
        notes += reading_notes(tokenizer, ask=True)
        notes += filter(None, [template_note(tokenizer)])
    except UsageError as error:
        notes.append(error.message)
        return None
    return tokenizer


def _texts(folder: ModelFolder, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Describe tokenizer and chat template."""
    name = tokenizer.token_name if tokenizer else lambda token: None
    template, frame = stored_template(folder), tokenizer and tokenizer.frame
    ends = end_tokens(folder, find=None if tokenizer is None else tokenizer.token_id)
    return {
        "tokenizer": tokenizer_dir(folder.path) is not None,
        "begins": _named("".join(frame.before), frame.source) if frame and frame.before else None,
        "ends": {str(token): _named(name(token), source) for token, source in sorted(ends.items())},
        "chat_template": template and template[1],
    }


def _named(token: str | None, source: str | None) -> str:
    """A token with the file and key that name it."""
    return ": ".join(filter(None, (token, source)))


def _sizes(model: Model) -> dict[str, Any]:
    config, engine, quantization = model.config, model.engine, model.config.quantization
    text_len = longest_text(config) if engine is None else engine.longest_text
    if model.is_encoder_decoder:
        parameters = stored_parameters(model.path)
    else:
        shapes = hf_shapes(config).items()
        tied = config.tie_word_embeddings
        parameters = sum(prod(size) for name, size in shapes if not (tied and name == LM_HEAD))
    shape = {*type(config).model_fields} - {*_NO_SHAPE}
    return {
        "architecture": config.architecture,
        "dtype": config.dtype,
        "quant_algo": quantization.quant_algo,
        "kv_cache_quant_algo": quantization.kv_cache_quant_algo,
        "parameters": parameters,
        **_active(config, parameters),
        "shape": config.model_dump(mode="json", include=shape, exclude_defaults=True),
        "tp_size": config.mapping.tp_size,
        "pp_size": config.mapping.pp_size,
        "max_text_len": text_len,
        "kv_cache_bytes": text_len * config.mapping.world_size * kv_bytes_per_token(config),
        **(_limits(engine) if engine else {}),
    }


def _active(config: CheckpointConfig, parameters: int) -> dict[str, int]:
    """The parameters that one token uses, of a mixture of experts."""
    if not config.num_experts:
        return {}
    unused = expert_numbers(config) * (config.num_experts - config.num_experts_per_tok)
    return {"active_parameters": parameters - unused // config.num_experts}


def _limits(engine: Engine) -> dict[str, Any]:
    limits, triple = engine.config.build_config, engine.lookahead
    return {
        "version": engine.config.version,
        "backend": engine.backend,
        "limits": limits.model_dump(include={*_LIMITS}),
        "lookahead": triple and list(triple.as_tuple()),
        "max_draft_len": limits.max_draft_len,
    }


def _weights(local: Path, model: Model) -> Iterator[tuple[str, int, int]]:
    """Yield type, numbers and bytes of each tensor; of a Hugging Face folder none is read."""
    if is_gguf(local):
        for info in read_header(local).tensors.values():
            yield info.type, prod(info.shape), info.shape[0] * info.row_bytes
    elif model.kind != "Hugging Face model":
        for rank in range(model.config.mapping.world_size):
            for target in stored_plan(model.config, rank):
                inputs, size = {**BLOCK_SIZES, INT4: (2, 1)}.get(target.dtype, (1, 1))
                yield target.dtype, prod(target.shape) // size * inputs, target.nbytes


def _dequantised(weights: Iterable[tuple[str, int, int]], dtype: str) -> Iterator[str]:
    """Yield a note for each type of a GGUF file that is not multiplied as it lies there."""
    sums: dict[str, tuple[int, int]] = {}
    for kind, numbers, nbytes in weights:
        if kind not in BLOCK_SIZES and kind not in PLAIN:
            known = sums.get(kind, (0, 0))
            sums[kind] = (known[0] + nbytes, known[1] + numbers * DTYPE_BYTES[dtype])
    for kind, (stored, held) in sums.items():
        yield f"{kind} is dequantised to {dtype}: {size(stored)} take {size(held)}"


def by_type(tensors: Iterable[tuple[str, int, int]]) -> dict[str, dict[str, float]]:
    """Sum up tensors of each type; the type with the most bytes comes first."""
    sums: dict[str, tuple[int, int, int]] = {}
    for kind, numbers, nbytes in tensors:
        known = sums.get(kind, (0, 0, 0))
        sums[kind] = (known[0] + 1, known[1] + max(numbers, 1), known[2] + nbytes)
    return {
        kind: {"tensors": count, "bytes": nbytes, "bits_per_weight": round(8 * nbytes / numbers, 3)}
        for kind, (count, numbers, nbytes) in sorted(sums.items(), key=lambda item: -item[1][2])
    }


def _problems(model: Model, notes: list[str]) -> Iterator[UsageError]:
    """Yield the reasons why trtla cannot use the model, and append notes."""
    config, engine = model.config, model.engine
    if config.rounded_when_built and not model.is_trtllm:
        notes.append(
            f"TensorRT-LLM rounds the linear weights to {config.quantization.quant_algo} when it "
            "builds; the torch executor runs them as they are"
        )
    if model.is_encoder_decoder:
        return
    if engine is None and model.kind == "Hugging Face model":
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


def _head_notes(model: Model) -> Iterator[str]:
    """Yield a note about the head beside a model that decodes here, if there is one."""
    if model.is_encoder_decoder or model.is_trtllm or model.kind == "checkpoint":
        return
    head = head_beside(model.folder, model.config)
    if head is None:
        return
    says = f"the head {head} beside it"
    if model.engine is not None and model.engine.lookahead == AUTOREGRESSIVE:
        yield f"{says} does not draft: the engine was built without room for drafts"
        return
    try:
        read_head(head, None, model.config)
        yield f"{says} fits and drafts"
    except UsageError as error:
        yield f"{says} does not draft: {error.message}"


def _next(local: Path, model: Model, tokenizer: Tokenizer | None) -> str:
    """Return the command that uses a sound model; TOKENIZER is a folder to find."""
    if model.kind == "checkpoint":
        return shlex.join(["trtla", "build", str(local), "-o", "engine"])
    line, engine = ["trtla", "run", str(local), "Once upon a time"], model.engine
    if tokenizer is None:
        line += ["--tokenizer-dir", "TOKENIZER"]
    if engine is not None and engine.lookahead is None:
        line += ["--lookahead", str(triples_for(engine.config.build_config.max_draft_len)[0])]
    return shlex.join(line)
