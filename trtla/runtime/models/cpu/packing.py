"""A Llama's weights as the compiled forward reads them: matrices in panels, vectors in float32.

A panel has some outputs, and is read from start to end. `native/matmul.h` has the layout of plain
weights, `native/blocks.h` that of weights in blocks. Both are repacked without loss, by
`native/packing.cpp`, piece by piece on all threads: a file is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
from numpy import ndarray

from trtla.formats.blocks import BLOCK_TYPES, BlockTensor, BlockType
from trtla.formats.config import CheckpointConfig
from trtla.formats.shapes import SHARED
from trtla.formats.tensors import StoredTensor, Weight
from trtla.runtime.arrays import HugePages, address
from trtla.runtime.models.cpu.library import Matrix, library
from trtla.runtime.models.tensors import (
    ArrayTensors,
    ModelTensors,
    layer_vectors,
    numbers,
    placed,
    placed_type,
)
from trtla.runtime.threads import num_threads

_PAIRS = "bfloat16-pairs"
_PIECE_BYTES = 1 << 20  # a piece that is read fits into a core's cache until it is packed
EMBEDDING, LM_HEAD, NORM = "embedding", "lm_head", "norm"
Source = Weight | StoredTensor
"""A weight in memory, or still in its file."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight and its bias, kept alive for the structure that points at them."""

    weight: ndarray
    """Its panels, uint8."""
    bias: ndarray | None
    """float32, as many as the panels have outputs."""
    outputs: int
    inputs: int
    type: str
    """One of `NativeLibrary.types`."""
    stored: str
    """The type of the weight in the checkpoint."""

    @property
    def in_blocks(self) -> bool:
        """Return True if it is multiplied in integers."""
        return self.type in BLOCK_TYPES

    @property
    def matrix(self) -> Matrix:
        bias = None if self.bias is None else address(self.bias)
        kind = library().types[self.type]
        return Matrix(address(self.weight), bias, self.outputs, self.inputs, kind)


@dataclass(frozen=True, slots=True)
class ModelPanels:
    """The packed weights of a model."""

    matrices: dict[str, Packed]
    vectors: dict[str, ndarray]

    def qkv(self, layer: str) -> list[Packed]:
        names = (f"{layer}.qkv.{part}" for part in range(3))
        return [self.matrices[name] for name in names if name in self.matrices]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some panels of a matrix, and the parts whose rows fill them."""

    matrix: Packed
    parts: tuple[Source, ...]
    alternate: bool
    arithmetic: str
    first: int
    panels: int


@dataclass(frozen=True, slots=True)
class Packer:
    """Lays weights out for a processor and an arithmetic."""

    arithmetic: str
    """Type of activations, float32 or bfloat16."""
    _pieces: list[_Piece] = field(default_factory=list)
    _memory: HugePages = field(default_factory=HugePages)

    @property
    def lanes(self) -> int:
        """Numbers of 32 bits in a vector register: a panel has twice as many outputs."""
        return library().lanes

    def matrix(
        self, *parts: Source, biases: ndarray | None = None, alternate: bool = False
    ) -> Packed:
        """Allocate the panels of parts of one type, [outputs, inputs], which `run` fills.

        Args:
            biases: of all outputs.
            alternate: outputs of the parts alternate, `lanes` at a time; else the parts follow
                each other.
        """
        outputs, inputs = sum(part.shape[0] for part in parts), parts[0].shape[1]
        name, stored = self.types_of(parts[0])
        panel_bytes = library().panel_bytes(library().types[name], inputs)
        panels = self._panels(outputs)
        bias = None if biases is None else self._padded(biases)
        weight = self._memory.take(panels * panel_bytes)
        packed = Packed(weight, bias, outputs, inputs, name, stored)
        step = max(1, _PIECE_BYTES // panel_bytes)
        for first in range(0, panels, step):
            count = min(step, panels - first)
            self._pieces.append(_Piece(packed, parts, alternate, self.arithmetic, first, count))
        return packed

    def in_float32(self, weight: ndarray, *, biases: ndarray | None) -> Packed:
        """Allocate the panels of a weight that is multiplied in float32 beside all others."""
        return replace(self, arithmetic="float32").matrix(weight, biases=biases)

    def nbytes(self, part: Source) -> int:
        """The bytes of the panels of a weight, [outputs, inputs], on its own."""
        kind = library().types[self.types_of(part)[0]]
        return self._panels(part.shape[0]) * library().panel_bytes(kind, part.shape[1])

    def _panels(self, outputs: int) -> int:
        return -(-outputs // (2 * self.lanes))

    def run(self) -> None:
        """Fill all panels."""
        threads = min(num_threads(), len(self._pieces))
        if threads < 2:
            for piece in self._pieces:
                self._fill(piece)
            return
        pool = ThreadPoolExecutor(threads)
        try:
            for _ in pool.map(self._fill, self._pieces):
                pass
        finally:  # after an error nothing more is begun
            pool.shutdown(cancel_futures=True)

    def types_of(self, weight: Source) -> tuple[str, str]:
        """The type of the panels, and of the stored weight."""
        kind = _block_type(weight)
        if kind is not None:
            short, larger_groups, _ = kind.name.partition("_G")  # their scale is repeated
            return f"{short}_0" if larger_groups else kind.name, kind.name
        assert not isinstance(weight, BlockTensor)
        name = placed_type(weight.dtype, self.arithmetic).name
        paired = self.arithmetic == "bfloat16" and library().has_bfloat16_products
        return _PAIRS if paired else name, name

    def _padded(self, biases: ndarray) -> ndarray:
        wide = np.zeros(-(-len(biases) // (2 * self.lanes)) * 2 * self.lanes, np.float32)
        wide[: len(biases)] = biases
        return wide

    def _fill(self, piece: _Piece) -> None:
        matrix, width = piece.matrix, 2 * self.lanes
        kind = library().types[matrix.type]
        start, stop = piece.first * width, (piece.first + piece.panels) * width
        rows = list(self._rows(piece, start, min(stop, matrix.outputs)))
        addresses = np.concatenate([_addresses(part) for part in rows])
        if piece.alternate:
            addresses = addresses.reshape(len(rows), -1, self.lanes).swapaxes(0, 1).reshape(-1)
        zeros = np.zeros(_row_bytes(rows[0]), np.uint8)  # stands for missing outputs
        missing = np.full(stop - start - len(addresses), address(zeros), np.uint64)
        blocks = _block_type(piece.parts[0])
        library().pack(
            kind,
            matrix.inputs,
            1 if blocks is None else blocks.inputs,
            np.concatenate((addresses, missing)),
            piece.panels,
            matrix.weight[piece.first * library().panel_bytes(kind, matrix.inputs) :],
        )

    def _rows(self, piece: _Piece, start: int, stop: int) -> Iterator[ndarray]:
        """The rows of each part that belong to outputs [start, stop)."""
        if piece.alternate:
            count = len(piece.parts)
            for part in piece.parts:
                yield _read(part, piece.arithmetic, start // count, stop // count)
            return
        first = 0
        for part in piece.parts:
            last = first + part.shape[0]
            if max(start, first) < min(stop, last):
                rows = max(start, first) - first, min(stop, last) - first
                yield _read(part, piece.arithmetic, *rows)
            first = last


def _read(part: Source, arithmetic: str, start: int, stop: int) -> ndarray:
    """Contiguous rows, of blocks or of numbers as they are kept."""
    if isinstance(part, BlockTensor):
        rows = part.rows[start:stop]
    elif isinstance(part, StoredTensor):
        rows = part.read(start, stop)
    else:
        rows = part[start:stop]
    rows = placed(rows, arithmetic) if _block_type(part) is None else rows
    contiguous: ndarray = np.ascontiguousarray(rows)
    return contiguous


def _block_type(weight: Source) -> BlockType | None:
    """The type of its blocks; None: it holds plain numbers."""
    return None if isinstance(weight, ndarray) else weight.kind


def _row_bytes(rows: ndarray) -> int:
    """The bytes of each of some contiguous rows; the stride of a single one may be anything."""
    return rows.nbytes // len(rows)


def _addresses(rows: ndarray) -> ndarray:
    """The address of each row, uint64."""
    first, step = address(rows), _row_bytes(rows)
    return np.arange(first, first + step * len(rows), step, dtype=np.uint64)


def pack_model(
    config: CheckpointConfig, weights: Iterable[tuple[str, Source]], arithmetic: str
) -> ModelPanels:
    """A model's panels.

    Args:
        weights: (checkpoint name, tensor) of the complete model.
        arithmetic: as of `Packer`.
    """
    packer, panels = Packer(arithmetic), ModelPanels({}, {})
    tensors: ModelTensors[Source] = ModelTensors(weights, ArrayTensors(arithmetic))
    for index in range(config.num_hidden_layers):
        layer = tensors.layer(index)
        _add_layer(packer, panels, str(index), layer, layer_vectors(config))
        if layer.has_router:
            _add_experts(packer, panels, str(index), layer, config)
        else:
            _add_mlp(packer, panels, str(index), layer, "mlp")
    embedding, head = tensors.ends(config)
    panels.vectors[NORM] = _wide(tensors.vector("ln_f.weight"))
    panels.matrices[LM_HEAD] = packer.matrix(head)
    if embedding is not head:
        panels.matrices[EMBEDDING] = packer.matrix(embedding)
    packer.run()
    return panels


def _wide(vector: Source) -> ndarray:
    return np.ascontiguousarray(numbers(vector).astype(np.float32))


def _add_layer(
    packer: Packer,
    panels: ModelPanels,
    name: str,
    tensors: ModelTensors[Source],
    vectors: Mapping[str, str],
) -> None:
    matrices = panels.matrices
    for vector, stored in vectors.items():
        panels.vectors[f"{name}.{vector}"] = _wide(tensors.vector(stored))
    for part, matrix in enumerate(_qkv(packer, tensors)):
        matrices[f"{name}.qkv.{part}"] = matrix
    weight, bias = tensors.take_plain("attention.dense")
    matrices[f"{name}.dense"] = packer.matrix(weight, biases=_bias(bias))


def _add_mlp(
    packer: Packer, panels: ModelPanels, name: str, tensors: ModelTensors[Source], mlp: str
) -> None:
    weight, bias = tensors.take_plain(f"{mlp}.proj")
    panels.matrices[f"{name}.down"] = packer.matrix(weight, biases=_bias(bias))
    panels.matrices[f"{name}.gate_up"] = _gate_up(packer, tensors, mlp)


def _add_experts(
    packer: Packer,
    panels: ModelPanels,
    name: str,
    tensors: ModelTensors[Source],
    config: CheckpointConfig,
) -> None:
    router, bias = tensors.take_router()
    wide, gate = numbers(router).astype(np.float32), tensors.take_beside_router("shared_gate")
    if gate is not None:
        wide = np.concatenate((wide, numbers(gate).astype(np.float32)[None]))
    panels.matrices[f"{name}.router"] = packer.in_float32(wide, biases=_bias(bias))
    if (correction := tensors.take_beside_router("correction")) is not None:
        panels.vectors[f"{name}.correction"] = _wide(correction)
    if config.shared_intermediate_size:
        _add_mlp(packer, panels, name, tensors, SHARED)
    for expert in range(config.num_experts):
        _add_mlp(packer, panels, f"{name}.experts.{expert}", tensors, f"mlp.experts.{expert}")


def is_expert(name: str) -> bool:
    """Return True for a matrix of an expert, LAYER.experts.NUMBER.down or gate_up."""
    return ".experts." in name


def _bias(bias: Source | None) -> ndarray | None:
    return None if bias is None else numbers(bias)


def _qkv(packer: Packer, tensors: ModelTensors[Source]) -> Iterator[Packed]:
    """One matrix of all outputs if the parts are of one type, else one of each."""
    weights, bias = tensors.take_qkv()
    parts = _alike(packer, weights, mixed_blocks=True)
    alone = len({_block_type(part) for part in parts}) > 1
    biases, groups = _bias(bias), [[part] for part in parts] if alone else [parts]
    cuts = np.cumsum([sum(part.shape[0] for part in group) for group in groups])[:-1]
    split = [None] * len(groups) if biases is None else np.split(biases, cuts)
    for group, part in zip(groups, split, strict=True):
        yield packer.matrix(*group, biases=part)


def _gate_up(packer: Packer, tensors: ModelTensors[Source], mlp: str) -> Packed:
    (gate, gate_bias), (up, up_bias) = (tensors.take_plain(f"{mlp}.{x}") for x in ("fc", "gate"))
    bias = None
    if gate_bias is not None and up_bias is not None:
        each = [numbers(part).reshape(-1, packer.lanes) for part in (gate_bias, up_bias)]
        bias = np.stack(each, axis=1).reshape(-1)
    return packer.matrix(*_alike(packer, [gate, up]), biases=bias, alternate=True)


def _alike(packer: Packer, weights: list[Source], mixed_blocks: bool = False) -> list[Source]:
    """The weights as they are if one kind of input multiplies them, else all in one plain type."""
    kinds = {_block_type(weight) for weight in weights}
    same = len(kinds) == 1 and len({packer.types_of(weight) for weight in weights}) == 1
    if same or (mixed_blocks and None not in kinds):
        return weights
    plain = [placed(numbers(weight), packer.arithmetic) for weight in weights]
    types = {weight.dtype for weight in plain}
    return [weight if len(types) == 1 else weight.astype(np.float32) for weight in plain]
