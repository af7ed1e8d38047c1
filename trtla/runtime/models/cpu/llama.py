"""The Llama forward on CPUs in one compiled call a step, for float32 and bfloat16 arithmetic.

A token's numbers do not depend on what else is fed, to the last bit: neither on drafts beside it
nor on other sequences. Weights keep the checkpoint's 16 bits where the arithmetic is float32: they
are widened in registers, which is exact and halves what is read from memory.
"""

from __future__ import annotations

import ctypes
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from trtla.formats.blocks import BlockTensor
from trtla.formats.config import CheckpointConfig
from trtla.formats.tensors import Weight
from trtla.runtime.models.batch import Forwarded
from trtla.runtime.models.cpu import library as native
from trtla.runtime.models.cpu.packing import Packed, Packing
from trtla.runtime.models.forward import Model
from trtla.runtime.models.kv_cache import KVCache, SlotTable
from trtla.runtime.models.rotary import RotaryTable
from trtla.runtime.models.tensors import LayerTensors, ModelTensors, numbers
from trtla.runtime.ranks.shared_memory import SharedMemory
from trtla.runtime.ranks.world import lost_in_step
from trtla.runtime.sampling.predict import RowSampler
from trtla.runtime.sequence import Feed


def native_problem(config: CheckpointConfig, dtype: torch.dtype) -> str | None:
    """Why a model cannot run here in this arithmetic; None: it can.

    Raises:
        NotCompiled: there is no compiled forward on this machine.
    """
    library = native.library()
    quantised = bool(config.block_types)
    if dtype == torch.bfloat16 and not (quantised or library.has_bfloat16_products):
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
        int8_cache: round cached keys and values to 8 bits, of each token and head on their own.
        shared: of a rank of tensor parallelism, whose part of a model config and weights are.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        weights: Iterable[tuple[str, Weight]],
        dtype: torch.dtype,
        *,
        int8_cache: bool = False,
        shared: SharedMemory | None = None,
    ) -> None:
        self.config, self.dtype, self._shared = config, dtype, shared
        self._cache_dtype = torch.int8 if int8_cache else dtype
        self._library = native.library()
        paired = dtype == torch.bfloat16 and self._library.has_bfloat16_products
        self._packing = Packing(self._library.lanes, paired)
        self._rotary = RotaryTable(config)
        self._logits = torch.empty((0, config.vocab_size))
        self._vectors: list[Tensor] = []
        self._matrices: list[Packed] = []
        tensors = ModelTensors(weights, self._placed, dtype)
        layers = [self._layer(tensors.layer(i)) for i in range(config.num_hidden_layers)]
        embedding, head = tensors.ends(config)
        lm_head = self._matrix(head)
        self._embedding_bytes = 0
        rows = lm_head
        if embedding is not head:
            rows = self._matrix(embedding)
            self._embedding_bytes = self._matrices[-1].weight.nbytes
        self._model = native.NativeModel(
            layers=(native.NativeLayer * len(layers))(*layers),
            num_layers=len(layers),
            embedding=rows,
            norm=self._vector(tensors.vector("ln_f.weight")),
            lm_head=lm_head,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_size=config.head_size,
            epsilon=config.norm_epsilon,
            cache_type=_CACHE_TYPES.index(self.cache_dtype),
        )
        self._exchange = None if shared is None else _exchange(shared, lm_head.outputs)
        if self._exchange is not None:
            self._model.exchange = ctypes.addressof(self._exchange)

    def _placed(self, weight: Weight) -> Weight:
        """In the type that it is kept in: the arithmetic's, or fewer bits where that is exact."""
        if isinstance(weight, BlockTensor):
            return weight
        if self.dtype == torch.bfloat16:
            return weight.to(torch.bfloat16)
        return weight if weight.dtype in _STORED else weight.float()

    def _layer(self, tensors: LayerTensors) -> native.NativeLayer:
        (gate, gate_bias), (up, up_bias) = map(tensors.take_plain, ("mlp.fc", "mlp.gate"))
        bias = None
        if gate_bias is not None and up_bias is not None:
            bias = numbers(self._packing.interleave(gate_bias, up_bias))
        return native.NativeLayer(
            input_norm=self._vector(tensors["input_layernorm.weight"]),
            qkv=(native.Matrix * 3)(*self._qkv(*tensors.take_qkv())),
            dense=self._matrix(*tensors.take_plain("attention.dense")),
            post_norm=self._vector(tensors["post_layernorm.weight"]),
            gate_up=self._matrix(self._packing.interleave(*self._alike(gate, up)), bias),
            down=self._matrix(*tensors.take_plain("mlp.proj")),
        )

    def _qkv(self, parts: list[Weight], bias: Tensor | None) -> Iterator[native.Matrix]:
        parts = merged(self._alike(*parts, mixed_blocks=True))
        sizes = [part.shape[0] for part in parts]
        biases = [None] * len(parts) if bias is None else torch.split(bias, sizes)
        return map(self._matrix, parts, biases)

    def _alike(self, *weights: Weight, mixed_blocks: bool = False) -> list[Weight]:
        """As they are where they can be multiplied with the same inputs, else all dequantised."""
        kinds = {w.kind.name if isinstance(w, BlockTensor) else None for w in weights}
        if len(kinds) == 1 or (mixed_blocks and None not in kinds):
            return list(weights)
        return [self._placed(numbers(weight).to(self.dtype)) for weight in weights]

    def _matrix(self, weight: Weight, bias: Tensor | None = None) -> native.Matrix:
        packed = self._packing.pack(weight, bias)
        self._matrices.append(packed)
        return packed.matrix

    def _vector(self, weight: Tensor) -> int:
        kept = weight.float().contiguous()
        self._vectors.append(kept)
        return kept.data_ptr()

    @property
    def arithmetic(self) -> str:
        ranks = "" if self._shared is None else f", on {self._shared.place.size} ranks"
        return f"{self._own_arithmetic}, compiled{ranks}"

    @property
    def _own_arithmetic(self) -> str:
        dtype, cache = (str(t).removeprefix("torch.") for t in (self.dtype, self.cache_dtype))
        if self._in_blocks:
            return f"int8 on {', '.join(self._stored_types)} weights, {cache} K/V cache"
        stored = "" if self.weight_type == dtype else f" on {self.weight_type} weights"
        if self.config.fp8:
            stored = ", FP8 weights dequantised at load"
        cached = "" if cache == dtype else f", {cache} K/V cache"
        return f"{dtype}{stored}{cached}"

    @property
    def _in_blocks(self) -> bool:
        return any(matrix.in_blocks for matrix in self._matrices)

    @property
    def weight_bytes(self) -> int:
        """As they are held, all but the embedding's; biases do not count."""
        held = [*(matrix.weight for matrix in self._matrices), *self._vectors]
        return sum(weight.nbytes for weight in held) - self._embedding_bytes

    @property
    def weight_type(self) -> str:
        return super().weight_type if self.config.fp8 else self._stored_types[0]

    @property
    def _stored_types(self) -> list[str]:
        sizes: Counter[str] = Counter()
        for matrix in self._matrices:
            sizes[matrix.stored] += matrix.weight.nbytes
        return [kind for kind, _ in sizes.most_common()]

    @property
    def cache_dtype(self) -> torch.dtype:
        return self._cache_dtype

    @property
    def compute_type(self) -> str:
        return "int8" if self._in_blocks else super().compute_type

    @property
    def row_sampler(self) -> RowSampler:
        """In C++, row by row: most rows are never asked for."""
        return self._library

    def new_cache(self, num_blocks: int) -> KVCache:
        """A K/V cache for this model, a layer for every head: its tokens are read in a row."""
        config = self.config
        heads = config.num_hidden_layers * config.num_key_value_heads
        return KVCache(
            heads, 1, config.head_size, num_blocks, self.cache_dtype, torch.device("cpu")
        )

    def forward(self, feeds: Sequence[Feed], cache: KVCache) -> Forwarded:
        positions = [feed.positions() for feed in feeds]
        cosine, sine, rope_rows = self._rotary.of(feeds, positions)
        tables = [cache.table(feed.sequence.blocks) for feed in feeds]  # alive during the call
        integers = step_integers(feeds, rope_rows, tables)
        rows = sum(len(feed.rows) for feed in feeds)
        logits = self._room(len(rope_rows), rows)
        if self.taps and max(self.taps) >= self.config.num_hidden_layers:
            raise ValueError(f"there is no layer {max(self.taps)} to tap")
        hidden = torch.empty((len(self.taps), len(rope_rows), self.config.hidden_size))
        taps = array("q", self.taps)
        step = native.NativeStep(
            tokens=len(rope_rows),
            num_rows=rows,
            num_sequences=len(feeds),
            integers=integers.buffer_info()[0],
            cosine=cosine.data_ptr(),
            sine=sine.data_ptr(),
            cache=cache.addresses.buffer_info()[0],
            logits=logits.data_ptr(),
            taps=taps.buffer_info()[0],
            num_taps=len(taps),
            hidden=hidden.data_ptr(),
            threads=torch.get_num_threads(),
            vocabulary=self.config.vocab_size,
        )
        self._library.forward(self._model, step)
        if self._exchange is not None and self._exchange.lost:
            raise lost_in_step()
        return Forwarded(logits[:rows], hidden if self.taps else None)

    def _room(self, tokens: int, rows: int) -> Tensor:
        if self._shared is not None:
            self._shared.room.check(tokens, rows)
            return self._shared.logits
        if rows > len(self._logits):  # kept: the system clears the pages of a new one
            self._logits = torch.empty((rows, self.config.vocab_size))
        return self._logits


_STORED = (torch.float32, torch.float16, torch.bfloat16)
"""Types that plain weights can be kept in."""
_CACHE_TYPES = (torch.float32, torch.bfloat16, torch.int8)
"""As in the C++'s `CacheType`."""


def _exchange(shared: SharedMemory, outputs: int) -> native.Exchange:
    rank = shared.place.rank
    return native.Exchange(
        rank=rank,
        ranks=shared.place.size,
        arrivals=shared.arrivals,
        parts=shared.parts,
        room=shared.part_size,
        first_output=rank * outputs,
        file=shared.file,
    )


def merged(parts: list[Weight]) -> list[Weight]:
    """One weight of the parts' outputs where they are of one type, else the parts."""
    blocks = [part for part in parts if isinstance(part, BlockTensor)]
    if len(blocks) < len(parts):
        return [torch.cat([numbers(part) for part in parts])]
    if any(part.kind != blocks[0].kind for part in blocks):
        return parts
    return [BlockTensor(blocks[0].kind, torch.cat([part.rows for part in blocks]))]


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
