"""The Llama forward on CPUs in one compiled call a step, for float32 and bfloat16 arithmetic.

A token's numbers do not depend on what else is fed, to the last bit: neither on drafts beside it
nor on other sequences. Weights keep the checkpoint's 16 bits where the arithmetic is float32: they
are widened in registers, which is exact and halves what is read from memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from trtla.formats.config import CheckpointConfig
from trtla.formats.tensors import Weight, without_blocks
from trtla.runtime.models.batch import Forwarded
from trtla.runtime.models.cpu import library as native
from trtla.runtime.models.cpu.library import Matrix
from trtla.runtime.models.forward import Model
from trtla.runtime.models.kv_cache import KVCache, SlotTable
from trtla.runtime.models.layers import Rotary
from trtla.runtime.models.llama import LayerTensors, ModelTensors
from trtla.runtime.sampling.predict import RowSampler
from trtla.runtime.sequence import Feed


def native_problem(config: CheckpointConfig, dtype: torch.dtype) -> str | None:
    """Why a model cannot run here in this arithmetic; None: it can.

    Raises:
        NotCompiled: there is no compiled forward on this machine.
    """
    library = native.library()
    if dtype == torch.bfloat16 and not library.has_bfloat16_products:
        return "the processor does not multiply bfloat16"
    if dtype not in (torch.float32, torch.bfloat16):
        return f"there is no arithmetic for {dtype}"
    if config.fp8_kv_cache:
        return "the K/V cache is FP8"
    for name in ("hidden_size", "intermediate_size", "head_size"):
        if getattr(config, name) % library.lanes:
            return f"{name} is no multiple of {library.lanes}"
    return None


class NativeLlama(Model):
    """A dense Llama for which `native_problem` knows no problem.

    Args:
        weights: (checkpoint name, tensor) of the complete model.
        dtype: type of activations and cache, float32 or bfloat16.
    """

    def __init__(
        self, config: CheckpointConfig, weights: Iterable[tuple[str, Weight]], dtype: torch.dtype
    ) -> None:
        self.config, self.dtype = config, dtype
        self._library = native.library()
        self._packing = Packing(self._library.lanes, dtype == torch.bfloat16)
        self._rotary = RotaryTable(config)
        self._logits = torch.empty((0, config.vocab_size))
        self._alive: list[Tensor | Packed] = []
        tensors = ModelTensors(without_blocks(weights, dtype), self._placed, dtype)
        layers = [self._layer(tensors.layer(i)) for i in range(config.num_hidden_layers)]
        embedding, head = tensors.ends(config)
        tied = embedding is head  # then its rows are read from the packed weights
        rows = None if tied else self._keep(embedding.contiguous())
        self._embedding_bytes = 0 if rows is None else rows.nbytes
        self._stored = str(embedding.dtype).removeprefix("torch.")
        self._model = native.Model(
            layers=(native.Layer * len(layers))(*layers),
            num_layers=len(layers),
            embedding=None if rows is None else rows.data_ptr(),
            embedding_type=TYPES[embedding.dtype],
            norm=self._vector(tensors.take("ln_f.weight")),
            lm_head=self._matrix(head, None),
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_size=config.head_size,
            epsilon=config.norm_epsilon,
            bfloat16=self._packing.paired,
        )

    def _placed(self, tensor: Tensor) -> Tensor:
        """In the type that it is kept in: the arithmetic's, or fewer bits where that is exact."""
        if self.dtype == torch.bfloat16:
            return tensor.to(torch.bfloat16)
        if tensor.dtype == torch.float16 and not self._library.has_float16:
            return tensor.float()
        return tensor if tensor.dtype in TYPES else tensor.float()

    def _layer(self, tensors: LayerTensors) -> native.Layer:
        (gate, gate_bias), (up, up_bias) = map(tensors.take_plain, ("mlp.fc", "mlp.gate"))
        bias = None
        if gate_bias is not None and up_bias is not None:
            bias = self._packing.interleave(gate_bias, up_bias)
        return native.Layer(
            input_norm=self._vector(tensors["input_layernorm.weight"]),
            qkv=self._matrix(*tensors.take_plain("attention.qkv")),
            dense=self._matrix(*tensors.take_plain("attention.dense")),
            post_norm=self._vector(tensors["post_layernorm.weight"]),
            gate_up=self._matrix(self._packing.interleave(gate, up), bias),
            down=self._matrix(*tensors.take_plain("mlp.proj")),
        )

    def _matrix(self, weight: Tensor, bias: Tensor | None) -> native.Matrix:
        packed = Packed.of(self._packing, weight, bias)
        self._alive.append(packed)
        return packed.matrix

    def _vector(self, weight: Tensor) -> int:
        return self._keep(weight.float().contiguous()).data_ptr()

    def _keep(self, tensor: Tensor) -> Tensor:
        """Hold on to what the structures point at."""
        self._alive.append(tensor)
        return tensor

    @property
    def arithmetic(self) -> str:
        """Such as `float32 on float16 weights, compiled`."""
        dtype = str(self.dtype).removeprefix("torch.")
        stored = "" if self._stored == dtype else f" on {self._stored} weights"
        if self.config.fp8:
            stored = ", FP8 weights dequantised at load"
        return f"{dtype}{stored}, compiled"

    @property
    def weight_bytes(self) -> int:
        """As they are held, all but the embedding's; biases do not count."""
        held = (kept.weight if isinstance(kept, Packed) else kept for kept in self._alive)
        return sum(weight.nbytes for weight in held) - self._embedding_bytes

    @property
    def weight_type(self) -> str:
        """The checkpoint's where that has 16 bits; of dequantised FP8 weights the arithmetic's."""
        return super().weight_type if self.config.fp8 else self._stored

    @property
    def row_sampler(self) -> RowSampler:
        """In C++, row by row: most rows are never asked for."""
        return self._library

    def new_cache(self, num_blocks: int) -> KVCache:
        """A K/V cache for this model, a layer for every head: its tokens are read in a row."""
        config = self.config
        heads = config.num_hidden_layers * config.num_key_value_heads
        return KVCache(heads, 1, config.head_size, num_blocks, self.dtype, torch.device("cpu"))

    def forward(self, feeds: Sequence[Feed], cache: KVCache) -> Forwarded:
        """Write the fed tokens' keys and values, return float32 logits [wanted rows, vocab]."""
        positions = [feed.positions() for feed in feeds]
        cosine, sine, rope_rows = self._rotary.of(feeds, positions)
        tables = [cache.table(feed.sequence.blocks) for feed in feeds]  # alive during the call
        integers = step_integers(feeds, rope_rows, tables)
        rows = sum(len(feed.rows) for feed in feeds)
        if rows > len(self._logits):  # kept: the system clears the pages of a new one
            self._logits = torch.empty((rows, self.config.vocab_size))
        if self.taps and max(self.taps) >= self.config.num_hidden_layers:
            raise ValueError(f"there is no layer {max(self.taps)} to tap")
        hidden = torch.empty((len(self.taps), len(rope_rows), self.config.hidden_size))
        taps = array("q", self.taps)
        step = native.Step(
            tokens=len(rope_rows),
            num_rows=rows,
            num_sequences=len(feeds),
            integers=integers.buffer_info()[0],
            cosine=cosine.data_ptr(),
            sine=sine.data_ptr(),
            cache=cache.addresses.buffer_info()[0],
            logits=self._logits.data_ptr(),
            taps=taps.buffer_info()[0],
            num_taps=len(taps),
            hidden=hidden.data_ptr(),
            threads=torch.get_num_threads(),
        )
        self._library.forward(self._model, step)
        return Forwarded(self._logits[:rows], hidden if self.taps else None)


def step_integers(
    feeds: Sequence[Feed], rope_rows: Sequence[int], tables: Sequence[SlotTable]
) -> array[int]:
    """The integers of `Step` in their order; they hold addresses of the tables' slots."""
    ids = [token for feed in feeds for token in feed.tokens]
    rows: list[int] = []
    sequences: list[int] = []
    parents: list[int] = []
    first = 0
    for feed, table in zip(feeds, tables, strict=True):
        rows += [first + row for row in feed.rows]
        tree = -1 if feed.draft is None else len(parents)
        cached, slots = feed.sequence.num_cached, table.slots.data_ptr()
        sequences += (first, feed.length, cached, slots, tree)
        parents += feed.tree.parents
        first += feed.length
    return array("q", [*ids, *rope_rows, *rows, *sequences, *parents])


TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""Numbers of the types in the C structures."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How weights are laid out for a processor and an arithmetic."""

    lanes: int
    """Numbers of 32 bits in a vector register."""
    paired: bool
    """Two neighbouring inputs lie together: bfloat16 that is multiplied as such."""

    def pack(self, weight: Tensor) -> Tensor:
        """[panels, inputs, 2 x lanes] from [outputs, inputs]; missing outputs are zero."""
        width = 2 * self.lanes
        padded = F.pad(weight, (0, 0, 0, -len(weight) % width)).contiguous()
        units = padded.view(torch.int32) if self.paired else padded
        panels = units.view(-1, width, units.shape[1]).transpose(1, 2).contiguous()
        return panels.view(weight.dtype)

    def interleave(self, first: Tensor, second: Tensor) -> Tensor:
        """Rows of both alternately, `lanes` at a time: a panel holds the same ones of each."""
        parts = [part.view(-1, self.lanes, *part.shape[1:]) for part in (first, second)]
        return torch.stack(parts, dim=1).flatten(0, 2)


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight and its bias, kept alive for the structure that points at them."""

    weight: Tensor
    bias: Tensor | None
    outputs: int
    inputs: int

    @classmethod
    def of(cls, packing: Packing, weight: Tensor, bias: Tensor | None) -> Packed:
        """From [outputs, inputs] and [outputs]."""
        if bias is not None:
            bias = F.pad(bias.float(), (0, -len(bias) % (2 * packing.lanes))).contiguous()
        return cls(packing.pack(weight), bias, *weight.shape)

    @property
    def matrix(self) -> Matrix:
        """What the forward gets."""
        bias = None if self.bias is None else self.bias.data_ptr()
        kind = TYPES[self.weight.dtype]
        return Matrix(self.weight.data_ptr(), bias, self.outputs, self.inputs, kind)


class RotaryTable:
    """Where the forward finds each fed token's cosine and sine."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._rotary = Rotary(config, torch.float32, torch.device("cpu"))
        self._trained = config.max_position_embeddings if config.rope_type == "dynamic" else None
        self._cosine, self._sine = self._table(0)
        self._beyond = lru_cache(maxsize=4096)(self._row)

    def _table(self, count: int) -> tuple[Tensor, Tensor]:
        cosine, sine = self._rotary(torch.arange(count), None)
        return cosine.contiguous(), sine.contiguous()

    def _row(self, position: int, length: int) -> tuple[Tensor, Tensor]:
        """One token's, in a text longer than the trained length.

        A row at a time: the last bits of PyTorch's powers depend on how many it computes at once.
        """
        return self._rotary(torch.tensor([position]), torch.tensor([length]))

    def of(
        self, feeds: Sequence[Feed], positions: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Tensor, list[int]]:
        """Cosine and sine [rows, 1, head_size / 2], and each token's row."""
        flat = [position for row in positions for position in row]
        if max(flat) >= len(self._cosine):
            self._cosine, self._sine = self._table(max(2 * len(self._cosine), max(flat) + 256))
        if self._trained is not None:  # beyond it a row depends on the text's length as well
            pairs = zip(feeds, positions, strict=True)
            lengths = [length for feed, row in pairs for length in feed.lengths(row)]
            if max(lengths) > self._trained:
                return self._of_lengths(flat, lengths, self._trained)
        return self._cosine, self._sine, flat

    def _of_lengths(
        self, positions: Sequence[int], lengths: Sequence[int], trained: int
    ) -> tuple[Tensor, Tensor, list[int]]:
        keys = list(zip(positions, lengths, strict=True))
        places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        rows = [
            self._beyond(position, length) if length > trained
            else (self._cosine[position : position + 1], self._sine[position : position + 1])
            for position, length in places
        ]  # fmt: skip
        cosines, sines = zip(*rows, strict=True)
        return torch.cat(cosines), torch.cat(sines), [places[key] for key in keys]
