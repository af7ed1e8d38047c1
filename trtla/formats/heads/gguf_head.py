"""An EAGLE-3 head in a GGUF file, as llama.cpp's converter writes it (architecture `eagle3`).

Layers are boundaries, d2t has the target's own tokens, and rows of q and k are in the order of
llama.cpp's Llama; so the file is opened as one of a Llama without its d2t.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from trtla.errors import UsageError
from trtla.formats.config import CheckpointConfig
from trtla.formats.gguf.config import llama_layer
from trtla.formats.gguf.header import Header, TensorInfo, read_header, stamps
from trtla.formats.gguf.weights import GgufFile, gguf_name
from trtla.formats.heads.draft_vocabulary import D2T, check_ids
from trtla.formats.heads.eagle_config import boundaries
from trtla.formats.heads.eagle_tensors import eagle_head
from trtla.formats.heads.head import EagleConfig, Head
from trtla.formats.heads.kinds import gguf_kind, refuse_other
from trtla.formats.heads.stored import StoredHead
from trtla.formats.hf_config import parse_hf_config
from trtla.formats.weight_files import FileBytes

_ARCHITECTURE = "eagle3"
_LAYERS = ("extract_layers", "target_layers")
"""The key of the layers, which was renamed."""
_NORMS = ("norm_before_residual", "norm_before_fc")
_TAPS = 3
_AGAIN = "convert the head again with a current llama.cpp"
_HEADS = ("attention.head_count", "attention.head_count_kv")


def read_gguf_head(
    name: str, path: Path, layers: tuple[int, ...] | None, target: CheckpointConfig | None
) -> Head:
    """The head of a file; arguments are those of `read_head`."""
    header = read_header(path)
    architecture = header.metadata.get("general.architecture")
    refuse_other(path, gguf_kind(architecture), architecture)
    keys = _Keys(path, header.metadata)
    info = header.tensors.get(D2T)
    stored = _opened(path, header)
    draft = info.shape[0] if info is not None else keys.vocab_size()
    config = _config(keys, header, draft, layers, target)
    ids = _target_ids(path, info, config)
    return eagle_head(name, stored, config, ids, gguf=True)


class _Keys:
    """A file's own keys; those of the layer are read as a Llama's."""

    def __init__(self, path: Path, metadata: dict[str, Any]) -> None:
        self.path, self._metadata = path, metadata

    def get(self, key: str) -> Any:
        return self._metadata.get(f"{_ARCHITECTURE}.{key}")

    def wrong(self, key: str, rule: str) -> UsageError:
        value = self.get(key)
        return UsageError(
            f"{self.path}: {_ARCHITECTURE}.{key} is {str(value)[:60]}, and {rule}", _AGAIN
        )

    def size(self, key: str) -> int:
        value = self.get(key)
        if value is None:
            raise UsageError(f"{self.path} lacks the key {_ARCHITECTURE}.{key}", _AGAIN)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(key, "must be a whole number above 0")
        return value

    def vocab_size(self) -> int:
        """The target's, by its key or its list of tokens."""
        tokens = self._metadata.get("tokenizer.ggml.tokens")
        if self.get("vocab_size") is None and isinstance(tokens, list):
            return len(tokens)
        return self.size("vocab_size")

    def layers(self) -> tuple[int, ...]:
        key = next((key for key in _LAYERS if self.get(key) is not None), _LAYERS[0])
        ids = self.get(key)
        if ids is None:
            raise UsageError(f"{self.path} lacks the key {_ARCHITECTURE}.{key}", _AGAIN)
        whole = isinstance(ids, list) and all(type(value) is int for value in ids)
        if not whole or len(ids) != _TAPS:
            raise self.wrong(key, f"must be a list of {_TAPS} layers")
        return tuple(ids)

    def flag(self, key: str) -> bool:
        """A flag, which is false where it is absent."""
        value = self.get(key)
        if value not in (None, True, False):
            raise self.wrong(key, "must be true or false")
        return bool(value)

    def check_norms(self) -> None:
        """Refuse a norm that is not known."""
        begin = f"{_ARCHITECTURE}."
        for key, value in self._metadata.items():
            own = key.removeprefix(begin)
            if key.startswith(begin) and "norm" in own and value is True and own not in _NORMS:
                raise self.wrong(own, "trtla does not support this norm")


def _opened(path: Path, header: Header) -> StoredHead:
    """The file's weights, opened as those of a Llama, whose rows of q and k come in order."""
    heads = {key: header.metadata.get(f"{_ARCHITECTURE}.{key}") for key in _HEADS}
    metadata = {f"llama.{key}": value for key, value in heads.items() if value is not None}
    metadata["general.architecture"] = "llama"
    tensors = {name: info for name, info in header.tensors.items() if name != D2T}
    file = GgufFile(path, Header(header.paths, metadata, tensors))
    return StoredHead(path, {gguf_name(own): (file, own) for own in file.entries})


def _config(
    keys: _Keys,
    header: Header,
    draft: int,
    layers: tuple[int, ...] | None,
    target: CheckpointConfig | None,
) -> EagleConfig:
    keys.check_norms()
    if keys.size("block_count") != 1:
        raise keys.wrong("block_count", "a head has one layer")
    data = llama_layer(keys.path, header, _ARCHITECTURE)
    data |= {"architectures": ["LlamaForCausalLM"], "vocab_size": draft}
    vocab = keys.vocab_size()
    if draft > vocab:
        raise keys.wrong("vocab_size", f"d2t has {draft} tokens")
    return EagleConfig(
        layer=parse_hf_config(data, keys.path)[0],
        vocab_size=vocab,
        target_hidden_size=keys.size("target_hidden_size"),
        boundaries=boundaries(keys.layers(), layers, target, keys.path),
        input_norm=keys.flag("norm_before_fc"),
        norm_before_residual=keys.flag("norm_before_residual"),
    )


def _target_ids(path: Path, info: TensorInfo | None, config: EagleConfig) -> ndarray | None:
    if info is None:
        return None
    if info.type != "I64" or len(info.shape) != 1:
        raise UsageError(
            f"{path}: tensor d2t is {info.type} of shape {list(info.shape)}, and must be a list of "
            "I64",
            _AGAIN,
        )
    raw = np.empty(info.shape[0] * info.row_bytes, np.uint8)
    ((_, size, time),) = stamps((info.path,))
    file = FileBytes(info.path, (int(size), int(time)))
    file.fill(raw.data, info.offset, D2T)
    file.close()
    ids = raw.view(np.int64)
    check_ids(path, ids, config.vocab_size)
    counted = np.array_equal(ids, np.arange(len(ids)))
    if counted and len(ids) < config.vocab_size:
        raise UsageError(
            f"{path}: d2t maps its {len(ids)} tokens to the first ones of its target", _AGAIN
        )
    return None if counted else ids
