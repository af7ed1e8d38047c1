"""Hugging Face folders: Llama tensors read lazily.

Weights are a single or sharded safetensors or `.bin` checkpoint. Names are brought to the form
`model.layers.0...`; old checkpoints lack the prefix, and their rotary buffers are omitted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from math import prod
from pathlib import Path
from typing import Any

from numpy import ndarray

from trtla.console import counted
from trtla.errors import UsageError
from trtla.files import read_json
from trtla.formats.bin_files import BinFile
from trtla.formats.blocks import BLOCK_TYPES
from trtla.formats.config import CheckpointConfig, Quantization, as_dtype
from trtla.formats.families import BY_ARCHITECTURE
from trtla.formats.gguf.header import MADE_OF, check_names
from trtla.formats.gguf.weights import PLAIN, GgufFile
from trtla.formats.hf_config import read_hf_config
from trtla.formats.mistaken import ADAPTER, adapter, wrapped_model
from trtla.formats.model_folder import ModelFolder
from trtla.formats.plan import untied
from trtla.formats.quantised_folder import undeclared
from trtla.formats.shapes import EMBEDDING, LM_HEAD, hf_shapes
from trtla.formats.stored_form import (
    MXFP4,
    ReadRows,
    StoredForm,
    canonical,
    router_of,
    scales_of,
    stored_forms,
    stored_shapes,
)
from trtla.formats.stored_fp8 import (
    StoredFp8,
    cache_scales,
    is_cache_scale,
    linear_scales,
    quantised_weights,
    scale_number,
)
from trtla.formats.stored_mxfp4 import mxfp4_reader
from trtla.formats.tensors import equal_ends
from trtla.formats.weight_files import Entry, SafetensorsFile, raise_first, tensor_problems

WeightFile = SafetensorsFile | BinFile | GgufFile
_Where = dict[str, tuple[WeightFile, str]]
"""Name of a stored tensor, in its canonical form -> the file and the tensor's name in it."""
_log = logging.getLogger(__name__)
_SHOWN = 3  # kinds of tensors that a note names
_HINT = "copy the weights again, or check that config.json belongs to them (biases, layers)"


@dataclass(frozen=True)
class HFModel:
    """An opened model folder; `config.dtype` is the dtype the weights are stored in.

    Of a GGUF file `config.block_types` names the weights that are read as blocks; all others that
    are quantised are dequantised.
    """

    path: Path
    config: CheckpointConfig
    _where: _Where
    _forms: Mapping[str, StoredForm]
    quantized: tuple[str, ...] = ()
    """The types of all its weights that are quantised: GGUF's, or FP8."""

    @classmethod
    def open(cls, location: str | Path | ModelFolder) -> HFModel:
        """Read config.json and the headers of the weight files; no weights yet."""
        model_folder = ModelFolder.of(location)
        _ = model_folder.kind  # refuses any other folder, and names its kind
        config, dtype = read_hf_config(model_folder)
        folder, stored = model_folder.path, _locate(model_folder.path)
        where, problems = _weights(folder, config, stored)
        raise_first(problems)
        if note := _unused_note(folder, config, stored):
            _note_once(folder, note)
        file, name = where[EMBEDDING]
        update: dict[str, Any] = {"dtype": dtype or as_dtype(file.entries[name].dtype.name)}
        forms = stored_forms(config, gguf=isinstance(file, GgufFile), names=where)
        types = config.block_types or _quantized_weights(where, config, forms)
        if blocks := {name: kind for name, kind in types.items() if kind in BLOCK_TYPES}:
            update["quantization"] = Quantization(block_types=blocks)
        quantized = ("FP8",) if config.fp8 else tuple(sorted({*types.values()}))
        model = cls(folder, config.model_copy(update=update), where, forms, quantized)
        if not config.tie_word_embeddings or where[EMBEDDING] == where[LM_HEAD]:
            return model
        # transformers ties no stored tensors that differ, whatever the config has
        same = equal_ends(model, config.vocab_size)
        return model if same else replace(model, config=untied(model.config))

    def read(self, name: str, start: int, stop: int) -> ndarray:
        """Rows [start, stop) of a tensor, in the stored dtype, or rows of blocks."""
        if self._fp8 is None:
            return self._rows(name, start, stop)
        scale = self._fp8.scale(name)
        if scale is not None:
            return scale[start:stop]
        return self._fp8.weight(name, self._rows(name, start, stop))

    @cached_property
    def _fp8(self) -> StoredFp8 | None:
        """The scales of an FP8 folder; None: it is none."""
        if not self.config.fp8:
            return None
        return StoredFp8(self.config, self._forms, self._where, self._scale)

    def _scale(self, name: str) -> float:
        file, stored = self._where[name]
        return scale_number(file.read(stored, 0, 1))

    def _rows(self, name: str, start: int, stop: int) -> ndarray:
        form = self._forms[name]
        file, stored = self._where[form.name]
        if name not in self.config.block_types:
            read: ReadRows = (
                partial(_whole, file, stored) if form.inputs else partial(file.read, stored)
            )
        elif isinstance(file, GgufFile):
            read = partial(file.blocks, stored)
        else:
            scales, stored_scales = self._where[scales_of(form.name)]
            read = mxfp4_reader(partial(file.read, stored), partial(scales.read, stored_scales))
        return form.read(start, stop, read)

    def stored_numbers(self) -> Iterator[tuple[str, ndarray]]:
        """The tensors as Hugging Face's file of the model has them, in numbers."""
        gguf = any(form.offset for form in stored_forms(self.config, gguf=False).values())
        for name, shape in stored_shapes(self.config, gguf=gguf, names=self._where).items():
            if name == LM_HEAD and self.config.tie_word_embeddings:
                continue
            file, stored = self._where[name]
            rows = file.read(stored, 0, shape[0])
            if self._fp8 is not None:
                rows = self._fp8.numbers(name, rows)
            yield name, rows - 1 if gguf and "norm" in name else rows

    def close(self) -> None:
        """Close the weight files; the next read opens them again."""
        _whole.cache_clear()
        for file, _ in self._where.values():
            file.close()


@lru_cache(maxsize=4)
def _whole(file: WeightFile, stored: str, start: int, stop: int) -> ndarray:
    """Rows of a file, kept as they are read again and again: for each few of their columns."""
    return file.read(stored, start, stop)


def _quantized_weights(
    where: _Where, config: CheckpointConfig, forms: Mapping[str, StoredForm]
) -> dict[str, str]:
    """The types of a GGUF file's quantised weights; logs those that are not read as blocks."""
    names = [name for name, shape in hf_shapes(config).items() if len(shape) == 2]
    files = ((name, *where[forms[name].name]) for name in names)
    kinds = {n: file.type_of(stored) for n, file, stored in files if isinstance(file, GgufFile)}
    types = {name: kind for name, kind in kinds.items() if kind not in PLAIN}
    if dequantized := ", ".join(sorted({*types.values()} - {*BLOCK_TYPES})):
        path = where[EMBEDDING][0].path
        _note_once(path, f"{path.name}: weights of type {dequantized} are dequantised")
    return types


@lru_cache
def _note_once(path: Path, note: str) -> None:
    """Log a note once for a file or folder, however often it is opened."""
    _log.warning("note: %s", note)


def model_problems(folder: Path, config: CheckpointConfig) -> tuple[list[UsageError], str | None]:
    """Everything wrong with the weights of a model folder whose config.json is sound, and a
    sentence about the tensors beside them, if there are any."""
    try:
        stored = _locate(folder)
        return _weights(folder, config, stored)[1], _unused_note(folder, config, stored)
    except UsageError as error:
        return [error], None


def _weights(
    folder: Path, config: CheckpointConfig, stored_at: _Where
) -> tuple[_Where, list[UsageError]]:
    """Locate the tensors, and list everything that is wrong with them.

    If the config ties embedding and lm_head, the one that is there stands for both.
    """
    where = {name: at for name, at in stored_at.items() if _is_used(name, config)}
    plain = not (config.fp8 or config.block_types)
    if plain and (quantised := undeclared(folder, where)):
        return where, [quantised]
    _check_layers(folder, "num_hidden_layers", config.num_hidden_layers, len(where))
    if config.tie_word_embeddings and (stored := where.get(EMBEDDING) or where.get(LM_HEAD)):
        where = {EMBEDDING: stored, LM_HEAD: stored, **where}
    entries = {name: file.entries[stored] for name, (file, stored) in where.items()}
    gguf = any(isinstance(file, GgufFile) for file, _ in where.values())
    _check_experts(folder, config, entries, gguf)
    shapes, types = stored_shapes(config, gguf=gguf, names=where), dict[str, str]()
    if config.block_types and not gguf:
        forms = stored_forms(config, gguf=False)
        weights = {forms[name].name for name in config.block_types}
        types = {part: MXFP4 for name in weights for part in (name, scales_of(name))}
    if config.fp8:
        types = quantised_weights(config, stored_forms(config, gguf=False))
        cache = {name: (1,) for name in cache_scales(config) if name in entries}
        shapes |= dict.fromkeys(linear_scales(types), (1,)) | cache
        entries |= {
            name: _one(entries[name])
            for name in shapes
            if name.endswith("_scale") and name in entries
        }
    problems = tensor_problems(str(folder), entries, shapes, _HINT, types)
    return where, [*_integer_problems(folder, entries, types), *problems]


def _integer_problems(
    folder: Path, entries: Mapping[str, Entry], types: Mapping[str, str]
) -> list[UsageError]:
    """An error for FP8 weights that are integers, which only checkpoints store so."""
    integers = [name for name in types if name in entries and entries[name].dtype.name == "int8"]
    return [
        UsageError(f"{folder}: tensor {name} is int8, and config.json says FP8", _HINT)
        for name in integers[:1]
    ]


def _one(entry: Entry) -> Entry:
    """The entry of a scale, whose single number has any shape in files."""
    return replace(entry, shape=(1,)) if prod(entry.shape) == 1 else entry


def _unused_note(folder: Path, config: CheckpointConfig, stored: _Where) -> str | None:
    """A sentence about tensors that are no part of the model; None: there are none.

    Tensors outside `model` and `lm_head`, such as a value head's, have no effect on texts.
    """
    names = [name for name in stored if not _is_used(name, config)]
    if not names:
        return None
    kinds = {_kind(name, config) for name in names}
    tops = sorted(kinds)
    shown = ", ".join(tops[:_SHOWN]) + (", ..." if tops[_SHOWN:] else "")
    return f"{folder.name} holds {counted(len(names), 'tensor')} that texts do not need: {shown}"


def _kind(name: str, config: CheckpointConfig) -> str:
    """A pattern of names that are no part of the model."""
    if is_cache_scale(name):
        return "*." + name.rpartition(".")[2]
    parts = name.split(".")
    return ".".join(
        [*parts[: 3 if parts[1] == "layers" else 2 if _predicts(name, config) else 1], "*"]
    )


def _is_used(name: str, config: CheckpointConfig) -> bool:
    """Return True for a part of the model; a cache that is not FP8 has no scales."""
    if BY_ARCHITECTURE[config.architecture].more_layers and _predicts(name, config):
        return False
    return _top(name) in ("model", "lm_head") and (config.fp8 or not is_cache_scale(name))


def _predicts(name: str, config: CheckpointConfig) -> bool:
    """Return True for a part of the layers that predict further tokens."""
    return name.startswith(("model.mtp", f"model.layers.{config.num_hidden_layers}."))


def _top(name: str) -> str:
    return name.partition(".")[0]


def stored_parameters(folder: Path) -> int:
    """The count of numbers in the weight files of a folder, of any model."""
    return sum(prod(file.entries[name].shape) for name, file in stored_tensors(folder).items())


def check_layers(folder: Path) -> None:
    """Refuse a config.json, of whatever model, with more layers than there are tensors.

    transformers makes all layers before it looks at the weights, however long that takes.
    """
    config = read_json(folder / "config.json")
    tensors = len(stored_tensors(folder))
    for key, value in config.items() if isinstance(config, dict) else ():
        counts = key.endswith("layers") and key != "max_window_layers"  # a bound, which makes none
        if counts and isinstance(value, int):
            _check_layers(folder, key, value, tensors)


def _check_layers(folder: Path, key: str, layers: int, tensors: int) -> None:
    if layers > tensors:
        raise UsageError(
            f'{folder} holds {tensors} tensors, and config.json has "{key}" {layers}', _HINT
        )


def _check_experts(
    folder: Path, config: CheckpointConfig, entries: Mapping[str, Entry], gguf: bool
) -> None:
    """Refuse a config.json with more experts than a router has, before each one is looked for, and
    with another number than stacks have."""
    if (router := router_of(config, gguf=gguf, names=entries)) is None:
        return
    rows = entries[router].shape[0] if router in entries else 0
    if config.num_experts > rows:
        raise UsageError(
            f"{folder}: {router} is of {rows} experts, and its config has {config.num_experts}",
            _HINT,
        )
    for name, entry in entries.items():
        if entry.stacked not in (None, config.num_experts) and _is_used(name, config):
            raise UsageError(
                f"{folder}: {name} is of {entry.stacked} experts, and its config has "
                f"{config.num_experts}",
                _HINT,
            )


def _locate(folder: Path) -> _Where:
    stored = stored_tensors(folder)
    names = {name: canonical(name) for name in stored}
    check_names(folder, names.values())
    where: _Where = {names[name]: (file, name) for name, file in stored.items()}
    where = {name: at for name, at in where.items() if not name.endswith("rotary_emb.inv_freq")}
    if (wrapped := wrapped_model(folder, where)) is not None:
        raise wrapped
    if any(name.startswith("model.") for name in where):
        return where
    return {_prefixed(name): at for name, at in where.items()}


def _prefixed(name: str) -> str:
    unprefixed = _top(name) in ("embed_tokens", "layers", "norm")
    return f"model.{name}" if unprefixed else name


def stored_tensors(folder: Path) -> Mapping[str, WeightFile]:
    """The file of each tensor: by the index of several, whatever else is in the folder."""
    kinds: dict[str, type[WeightFile]] = {
        "model.safetensors": SafetensorsFile,
        "pytorch_model.bin": BinFile,
        MADE_OF: GgufFile,
    }
    for name, kind in kinds.items():
        path, index = folder / name, folder / f"{name}.index.json"
        if index.is_file() and not (path.is_file() and _missing(_shards(index))):
            return _indexed(index, kind)
        if path.is_file():
            file = kind(path)
            return dict.fromkeys(file.entries, file)
    if (folder / ADAPTER).is_file():
        raise adapter(folder)
    raise UsageError(
        f"{folder} has no weights",
        "it must hold model.safetensors or pytorch_model.bin, or their .index.json with the shards",
    )


def _indexed(index: Path, kind: type[WeightFile]) -> Mapping[str, WeightFile]:
    shards = _shards(index)
    if missing := _missing(shards):
        raise UsageError(f"{index.parent} lacks the shard {missing.name}", "copy the missing file")
    files = {path: kind(path) for path in sorted({*shards.values()})}
    files_by_tensor = {name: files[path] for name, path in shards.items()}
    for name, file in files_by_tensor.items():
        if name not in file.entries:
            raise UsageError(
                f"{file.path} lacks tensor {name}, which {index.name} has there",
                "copy the index and its shards again",
            )
    return files_by_tensor


def _missing(shards: Mapping[str, Path]) -> Path | None:
    return next((path for path in sorted({*shards.values()}) if not path.is_file()), None)


def _shards(index: Path) -> dict[str, Path]:
    """The file of each tensor that an index names."""
    data = read_json(index)
    weight_map = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise UsageError(f"{index} has no weight_map", "copy the file again")
    names = {name: str(file) for name, file in weight_map.items()}
    outside = next((name for name in names.values() if Path(name).name != name), None)
    if outside is not None:
        raise UsageError(
            f"{index} names {outside}, which is outside the folder", "correct the index"
        )
    return {name: index.parent / file for name, file in names.items()}
