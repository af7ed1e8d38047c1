"""A Llama's weights as the compiled forward reads them: matrices in panels, vectors in float32.

A panel has some outputs, and is read from start to end. `native/matmul.h` has the layout of plain
weights, `native/blocks.h` that of weights in blocks. Both are repacked without loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from trtla.formats.blocks import BlockTensor, BlockType
from trtla.formats.config import CheckpointConfig
from trtla.formats.tensors import Weight
from trtla.runtime.arrays import address, aligned
from trtla.runtime.models.cpu.library import Matrix, library
from trtla.runtime.models.tensors import ArrayTensors, ModelTensors, numbers, placed

_PAIRS = "bfloat16 pairs"
_TYPES = (
    *("float32", "float16", "bfloat16", _PAIRS),
    *("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"),
)
"""In the order of `Type` in native/operands.h."""
_BLOCK = 32  # inputs of a block in a panel
_FOURS = _BLOCK // 4
_ROWS_AT_ONCE = 1024  # a multiple of a panel's outputs


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
    """One of `_TYPES`."""
    stored: str
    """The type of the weight in the checkpoint."""

    @property
    def in_blocks(self) -> bool:
        """Whether it is multiplied in integers."""
        return _TYPES.index(self.type) > _TYPES.index(_PAIRS)

    @property
    def matrix(self) -> Matrix:
        bias = None if self.bias is None else address(self.bias)
        kind = _TYPES.index(self.type)
        return Matrix(address(self.weight), bias, self.outputs, self.inputs, kind)


@dataclass(frozen=True, slots=True)
class Packing:
    """How weights are laid out for a processor and an arithmetic."""

    lanes: int
    """Numbers of 32 bits in a vector register."""
    paired: bool
    """Plain weights are bfloat16 and multiplied as such: two neighbouring inputs lie together."""
    arithmetic: str
    """Type of activations, float32 or bfloat16."""

    def pack(self, weight: Weight, biases: Weight | None = None) -> Packed:
        """From [outputs, inputs] and [outputs]."""
        bias = None
        if biases is not None:
            bias = _padded(numbers(biases).astype(np.float32), 2 * self.lanes)
        if isinstance(weight, BlockTensor):
            kind = weight.kind.name.split("_G")[0]
            name = kind if kind in _TYPES else f"{kind}_0"  # larger groups: their scale repeated
            panels = _joined(self._panels(weight.kind, rows) for rows in _pieces(weight.rows))
            return Packed(panels, bias, *weight.shape, name, weight.kind.name)
        dtype, (outputs, inputs) = weight.dtype.name, weight.shape
        panels = _joined(map(self._plain_panels, _pieces(weight)))
        return Packed(panels, bias, outputs, inputs, _PAIRS if self.paired else dtype, dtype)

    def interleave(self, first: Weight, second: Weight) -> Weight:
        """Rows of both alternately, `lanes` at a time: a panel holds the same ones of each."""
        if isinstance(first, BlockTensor) and isinstance(second, BlockTensor):
            return BlockTensor(first.kind, self._alternate(first.rows, second.rows))
        return self._alternate(numbers(first), numbers(second))

    def _alternate(self, *parts: ndarray) -> ndarray:
        each = [part.reshape(-1, self.lanes, *part.shape[1:]) for part in parts]
        return np.stack(each, axis=1).reshape(-1, *parts[0].shape[1:])

    def _plain_panels(self, weight: ndarray) -> ndarray:
        """[panels, inputs, 2 x lanes]; missing outputs are zero."""
        width = 2 * self.lanes
        padded = _padded(weight, width)
        units = padded.view(f"i{4 if self.paired else padded.itemsize}")
        panels: ndarray = units.reshape(-1, width, units.shape[1]).transpose(0, 2, 1)
        return panels

    def _panels(self, kind: BlockType, rows: ndarray) -> ndarray:
        """uint8 [panels, bytes of a panel]; missing outputs are zero."""
        found = kind.unpack(_padded(rows, 2 * self.lanes))
        codes = self._packed_codes(found.codes.view(np.uint8), kind.bits)
        halves = self._side_by_side(found.scales, found.minimums)
        if found.factors is None:
            parts = [np.repeat(half, kind.inputs // _BLOCK, 1) for half in halves]
            return _flat(np.concatenate((*parts, codes), 2), 1)
        factors = self._side_by_side(found.factors, found.min_factors)
        parts = [part.reshape(*codes.shape[:2], -1) for part in (*factors, codes)]
        blocks = np.concatenate(parts, 2)
        return _flat(np.concatenate((*halves, blocks.reshape(*halves[0].shape[:2], -1)), 2), 1)

    def _side_by_side(self, *parts: ndarray | None) -> list[ndarray]:
        """A panel's outputs together: bytes [panels, columns, outputs] of those that are there."""
        panels = (p.reshape(-1, 2 * self.lanes, p.shape[1]) for p in parts if p is not None)
        return [np.ascontiguousarray(p.transpose(0, 2, 1)).view(np.uint8) for p in panels]

    def _packed_codes(self, codes: ndarray, bits: int) -> ndarray:
        """[panels, blocks, bytes of codes] from uint8 [outputs, inputs]: see `Blocks::unpacked`."""
        fours = codes.reshape(-1, 2, self.lanes, codes.shape[1] // _BLOCK, _FOURS, 4)
        ordered = fours.transpose(0, 3, 4, 1, 2, 5)  # [panels, blocks, fours, halves, lanes, 4]
        if bits == 8:
            return _flat(ordered, 2)
        packed = [ordered[:, :, ::2] & 15 | ordered[:, :, 1::2] << 4]
        more = bits - 4
        for first in range(0, _FOURS if more else 0, 8 // max(more, 1)):
            places = range(8 // more)
            planes = (ordered[:, :, first + place, None] >> 4 << more * place for place in places)
            packed.append(np.bitwise_or.reduce(list(planes)))
        return _flat(np.concatenate(packed, 2), 2)


def _flat(array: ndarray, kept: int) -> ndarray:
    """The dimensions behind the first ones as one."""
    return array.reshape(*array.shape[:kept], -1)


def _pieces(rows: ndarray) -> Iterator[ndarray]:
    return (rows[start : start + _ROWS_AT_ONCE] for start in range(0, len(rows), _ROWS_AT_ONCE))


def _joined(parts: Iterator[ndarray]) -> ndarray:
    """uint8 panels of all parts, at the beginning of a line of the cache."""
    flat = [np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts]
    return np.concatenate(flat, out=aligned((sum(map(len, flat)),), np.uint8))


def _padded(rows: ndarray, width: int) -> ndarray:
    """With zeros at the end, so that their number is a multiple of `width`."""
    missing = -len(rows) % width
    if not missing:
        return np.ascontiguousarray(rows)
    return np.concatenate((rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)))


Panels = Iterator[tuple[str, Packed | ndarray]]
"""Names, and a matrix or a float32 vector of each."""
EMBEDDING, LM_HEAD, NORM = "embedding", "lm_head", "norm"


@dataclass(frozen=True, slots=True)
class ModelPanels:
    """All of a model."""

    matrices: dict[str, Packed]
    vectors: dict[str, ndarray]

    @classmethod
    def of(cls, panels: Iterable[tuple[str, Packed | ndarray]]) -> ModelPanels:
        found = dict(panels)
        matrices = {name: one for name, one in found.items() if isinstance(one, Packed)}
        return cls(matrices, {n: one for n, one in found.items() if isinstance(one, ndarray)})

    def qkv(self, layer: str) -> list[Packed]:
        names = (f"{layer}.qkv.{part}" for part in range(3))
        return [self.matrices[name] for name in names if name in self.matrices]


def packing_of(arithmetic: str) -> Packing:
    """How weights lie for this processor; raises `NotCompiled`."""
    native = library()
    paired = arithmetic == "bfloat16" and native.has_bfloat16_products
    return Packing(native.lanes, paired, arithmetic)


def pack_model(
    config: CheckpointConfig, weights: Iterable[tuple[str, Weight]], arithmetic: str
) -> Panels:
    """A model's panels, in the order in which forwards read them.

    Args:
        weights: (checkpoint name, tensor) of the complete model.
        arithmetic: as of `Packing`.
    """
    packing = packing_of(arithmetic)
    tensors: ModelTensors[Weight] = ModelTensors(weights, ArrayTensors(arithmetic))
    for index in range(config.num_hidden_layers):
        yield from _layer(packing, str(index), tensors.layer(index))
    embedding, head = tensors.ends(config)
    yield NORM, _wide(tensors.vector("ln_f.weight"))
    yield LM_HEAD, packing.pack(head)
    if embedding is not head:
        yield EMBEDDING, packing.pack(embedding)


def _wide(vector: Weight) -> ndarray:
    return np.ascontiguousarray(numbers(vector).astype(np.float32))


def _layer(packing: Packing, name: str, tensors: ModelTensors[Weight]) -> Panels:
    yield f"{name}.input_norm", _wide(tensors.vector("input_layernorm.weight"))
    weights, bias = tensors.take_qkv()
    parts = _merged(_alike(packing, *weights, mixed_blocks=True))
    cuts = np.cumsum([part.shape[0] for part in parts])[:-1]
    biases = [None] * len(parts) if bias is None else np.split(numbers(bias), cuts)
    for place, (part, own) in enumerate(zip(parts, biases, strict=True)):
        yield f"{name}.qkv.{place}", packing.pack(part, own)
    yield f"{name}.dense", packing.pack(*tensors.take_plain("attention.dense"))
    yield f"{name}.post_norm", _wide(tensors.vector("post_layernorm.weight"))
    yield f"{name}.gate_up", _gate_up(packing, tensors)
    yield f"{name}.down", packing.pack(*tensors.take_plain("mlp.proj"))


def _gate_up(packing: Packing, tensors: ModelTensors[Weight]) -> Packed:
    (gate, gate_bias), (up, up_bias) = map(tensors.take_plain, ("mlp.fc", "mlp.gate"))
    bias = None
    if gate_bias is not None and up_bias is not None:
        bias = packing.interleave(gate_bias, up_bias)
    return packing.pack(packing.interleave(*_alike(packing, gate, up)), bias)


def _alike(packing: Packing, *weights: Weight, mixed_blocks: bool = False) -> list[Weight]:
    """As they are where they can be multiplied with the same inputs, else all dequantised."""
    kinds = {w.kind.name if isinstance(w, BlockTensor) else None for w in weights}
    if len(kinds) == 1 or (mixed_blocks and None not in kinds):
        return list(weights)
    return [placed(numbers(weight), packing.arithmetic) for weight in weights]


def _merged(parts: list[Weight]) -> list[Weight]:
    """One weight of the parts' outputs where they are of one type, else the parts."""
    blocks = [part for part in parts if isinstance(part, BlockTensor)]
    if len(blocks) < len(parts):
        return [np.concatenate([numbers(part) for part in parts])]
    if any(part.kind != blocks[0].kind for part in blocks):
        return parts
    return [BlockTensor(blocks[0].kind, np.concatenate([part.rows for part in blocks]))]
