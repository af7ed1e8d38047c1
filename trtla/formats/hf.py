"""Hugging Face folders: Llama tensors read lazily, and whatever transformers itself has to load.

Weights are a single or sharded safetensors or `.bin` checkpoint. Names are brought to the form
`model.layers.0...`; old checkpoints lack the prefix, and their rotary buffers are omitted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import torch

from trtla.errors import UsageError, sentence
from trtla.files import read_json
from trtla.formats.blocks import BLOCK_TYPES
from trtla.formats.config import CheckpointConfig, Quantization, as_dtype
from trtla.formats.folder import TOKENIZER_FILES, folder_kind
from trtla.formats.gguf.header import MADE_OF
from trtla.formats.gguf.weights import PLAIN, GgufFile
from trtla.formats.hf_config import read_hf_config
from trtla.formats.plan import EMBEDDING, LM_HEAD, hf_shapes, untied
from trtla.formats.tensors import Dequantized, equal_ends
from trtla.formats.weight_files import BinFile, SafetensorsFile, raise_first, tensor_problems

WeightFile = SafetensorsFile | BinFile | GgufFile
_Where = dict[str, tuple[WeightFile, str]]
"""Canonical name -> the file and the tensor's name in it."""
_log = logging.getLogger(__name__)
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
    quantized: tuple[str, ...] = ()
    """GGUF's types of all its weights that are quantised."""

    @classmethod
    def open(cls, path: str | Path) -> HFModel:
        """Read config.json and the headers of the weight files; no weights yet."""
        folder = Path(path)
        folder_kind(folder)
        config, dtype = read_hf_config(folder / "config.json")
        where, problems = _weights(folder, config)
        raise_first(problems)
        file, name = where[EMBEDDING]
        update: dict[str, Any] = {"dtype": dtype or as_dtype(str(file.entries[name].dtype))}
        types = _quantized_weights(where, config)
        if blocks := {name: kind for name, kind in types.items() if kind in BLOCK_TYPES}:
            update["quantization"] = Quantization(block_types=blocks)
        model = cls(
            folder, config.model_copy(update=update), where, tuple(sorted({*types.values()}))
        )
        if config.tie_word_embeddings and not model._is_tied():
            return replace(model, config=untied(model.config))
        return model

    def _is_tied(self) -> bool:
        """transformers ties no stored tensors that differ, whatever the config says."""
        same = self._where[EMBEDDING] == self._where[LM_HEAD]
        return same or equal_ends(self, self.config.vocab_size)

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) of a tensor, in the stored dtype, or rows of blocks."""
        file, stored = self._where[name]
        if name in self.config.block_types and isinstance(file, GgufFile):
            return file.blocks(stored, start, stop).rows
        return file.read(stored, start, stop)


def _quantized_weights(where: _Where, config: CheckpointConfig) -> dict[str, str]:
    """The types of a GGUF file's quantised weights; says which of them are not read as blocks."""
    names = [name for name, shape in hf_shapes(config).items() if len(shape) == 2]
    files = ((name, *where[name]) for name in names)
    found = {n: file.type_of(own) for n, file, own in files if isinstance(file, GgufFile)}
    types = {name: kind for name, kind in found.items() if kind not in PLAIN}
    if others := sorted({*types.values()} - {*BLOCK_TYPES}):
        _note_others(where[EMBEDDING][0].path, ", ".join(others))
    return types


@lru_cache
def _note_others(path: Path, types: str) -> None:
    """Once for a file, however often it is opened."""
    _log.warning("note: %s: weights of type %s are dequantised", path.name, types)


def model_problems(folder: Path, config: CheckpointConfig) -> list[UsageError]:
    """Everything wrong with the weights of a model folder whose config.json is sound."""
    try:
        return _weights(folder, config)[1]
    except UsageError as error:
        return [error]


def _weights(folder: Path, config: CheckpointConfig) -> tuple[_Where, list[UsageError]]:
    """Where the tensors are, and everything that is wrong with them.

    If the config ties embedding and lm_head, the one that is there stands for both.
    """
    where = _locate(folder)
    _check_layers(folder, "num_hidden_layers", config.num_hidden_layers, len(where))
    if config.tie_word_embeddings and (stored := where.get(EMBEDDING) or where.get(LM_HEAD)):
        where = {EMBEDDING: stored, LM_HEAD: stored, **where}
    found = {name: file.entries[stored] for name, (file, stored) in where.items()}
    return where, tensor_problems(str(folder), found, hf_shapes(config), _HINT)


def stored_parameters(folder: Path) -> int:
    """Numbers in the weight files of a folder, whatever model they are of."""
    entries = (entry for file in _open_files(folder) for entry in file.entries.values())
    return sum(prod(entry.shape) for entry in entries)


def check_layers(folder: Path) -> None:
    """Refuse a config.json, of whatever model, with more layers than there are tensors.

    transformers makes all layers before it looks at the weights, however long that takes.
    """
    config = read_json(folder / "config.json")
    tensors = sum(len(file.entries) for file in _open_files(folder))
    for key, value in config.items() if isinstance(config, dict) else ():
        counts = key.endswith("layers") and key != "max_window_layers"  # a bound, which makes none
        if counts and isinstance(value, int):
            _check_layers(folder, key, value, tensors)


def _check_layers(folder: Path, key: str, layers: int, tensors: int) -> None:
    if layers > tensors:
        raise UsageError(
            f'{folder} holds {tensors} tensors, and config.json has "{key}" {layers}', _HINT
        )


def _locate(folder: Path) -> _Where:
    files = _open_files(folder)
    found: _Where = {name: (file, name) for file in files for name in file.entries}
    found = {name: at for name, at in found.items() if not name.endswith("rotary_emb.inv_freq")}
    if any(name.startswith("model.") for name in found):
        return found
    return {name if name == LM_HEAD else f"model.{name}": at for name, at in found.items()}


def _open_files(folder: Path) -> Iterable[WeightFile]:
    kinds: dict[str, type[WeightFile]] = {
        "model.safetensors": SafetensorsFile,
        "pytorch_model.bin": BinFile,
        MADE_OF: GgufFile,
    }
    for name, kind in kinds.items():
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return [kind(folder / name)]
        if index.is_file():
            return [kind(path) for path in _shards(index)]
    raise UsageError(
        f"{folder} has no weights",
        "it must hold model.safetensors or pytorch_model.bin, or their .index.json with the shards",
    )


def _shards(index: Path) -> list[Path]:
    data = read_json(index)
    weight_map = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise UsageError(f"{index} has no weight_map", "copy the file again")
    names = sorted({str(name) for name in weight_map.values()})
    outside = next((name for name in names if Path(name).name != name), None)
    if outside is not None:
        raise UsageError(
            f"{index} names {outside}, which is outside the folder", "correct the index"
        )
    missing = next((name for name in names if not (index.parent / name).is_file()), None)
    if missing is not None:
        raise UsageError(f"{index.parent} lacks the shard {missing}", "copy the missing file")
    return [index.parent / name for name in names]


def load_model(kind: str, folder: str | Path, dtype: torch.dtype, hint: str) -> Any:
    """A model in evaluation mode, on the CPU.

    Args:
        kind: transformers' class, such as AutoModelForCausalLM.
        folder: a Hugging Face folder.
        dtype: the type of its weights in memory.
        hint: what to do when it cannot be loaded.
    """
    what = f"the weights in {folder}"
    if Path(folder).is_dir():
        check_layers(Path(folder))
    if (Path(folder) / MADE_OF).is_file():
        return _load_dequantized(kind, HFModel.open(folder), dtype)
    with _quiet():
        model, found = _load(kind, folder, what, hint, dtype=dtype, output_loading_info=True)
    if found["missing_keys"]:  # transformers fills them with random numbers
        name = min(found["missing_keys"])
        raise UsageError(f"{what} lack the tensor {name} that config.json asks for", hint)
    return model.eval()


def _load_dequantized(kind: str, model: HFModel, dtype: torch.dtype) -> Any:
    """The model of a GGUF file, which transformers cannot find in the folder."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(str(model.path), local_files_only=True)
    names = hf_shapes(model.config)
    tied = {LM_HEAD} if model.config.tie_word_embeddings else set()
    numbers = Dequantized(model, model.config.block_types)
    state = {
        name: numbers.read(name, 0, shape[0]).to(dtype)
        for name, shape in names.items()
        if name not in tied
    }
    with _quiet():
        made = getattr(transformers, kind).from_config(config, dtype=dtype)
        made.load_state_dict(state, strict=False, assign=True)
        made.tie_weights()
    return made.eval()


def load_tokenizer(folder: str | Path) -> Any:
    """A folder's tokenizer."""
    names = (Path(folder) / name for name in TOKENIZER_FILES)
    stats = [(path.name, path.stat()) for path in names if path.is_file()]
    return _tokenizer(str(folder), tuple((n, stat.st_mtime_ns, stat.st_size) for n, stat in stats))


@lru_cache(maxsize=1)
def _tokenizer(folder: str, files: tuple[tuple[str, int, int], ...]) -> Any:
    """The tokenizer of these very files: a command asks for it before and after the model opens."""
    hint = "give a folder that holds tokenizer.json with --tokenizer-dir"
    return _load("AutoTokenizer", folder, f"the tokenizer in {folder}", hint)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars, and without the tables that transformers logs before it raises."""
    from transformers.utils import logging as log

    log.disable_progress_bar()  # type: ignore[no-untyped-call]
    before = log.get_verbosity()
    log.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        log.set_verbosity(before)


def _load(kind: str, folder: str | Path, what: str, hint: str, **options: Any) -> Any:
    import transformers

    if not Path(folder).is_dir():  # else transformers takes it for a name on the hub
        raise UsageError(f"{what} cannot be loaded: {folder} is not a folder", hint)
    try:
        return getattr(transformers, kind).from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **options
        )
    except Exception as error:  # transformers raises whatever its readers raise
        if "trust_remote_code" in str(error):
            raise UsageError(
                f"{what} cannot be loaded without code of its own, which trtla never runs",
                "give a folder whose model and tokenizer are among those of transformers",
            ) from None
        reason = sentence(error)
        if "ignore_mismatched_sizes" in reason:  # an argument that users cannot give
            reason = "a tensor has another shape than config.json asks for"
        raise UsageError(f"{what} cannot be loaded: {reason}", hint) from None
