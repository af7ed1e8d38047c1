"""The Llama forward on CPUs in one compiled call a step, for float32 and bfloat16 arithmetic.

A token's numbers do not depend on the other fed tokens, to the last bit: neither on drafts beside
it nor on other sequences. Weights keep the checkpoint's 16 bits if the arithmetic is float32: they
are widened in registers, which is exact and halves the bytes read from memory.
"""

from __future__ import annotations

import ctypes
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from trtla.formats.config import LARGEST, CheckpointConfig
from trtla.runtime.arrays import address, aligned, paged
from trtla.runtime.costs import Mixture
from trtla.runtime.device import CPU, Device
from trtla.runtime.models.cpu import library as native
from trtla.runtime.models.cpu.packing import (
    EMBEDDING,
    LM_HEAD,
    NORM,
    ModelPanels,
    Packed,
    is_expert,
)
from trtla.runtime.models.forward import Forwarded, Model
from trtla.runtime.models.kv_cache import KVCache, SlotTable, row_bytes
from trtla.runtime.models.rotary import RotaryTable, layer_rotaries, rotary_configs
from trtla.runtime.models.tensors import layer_vectors
from trtla.runtime.sampling.predict import RowSampler
from trtla.runtime.sequence import Feed
from trtla.runtime.threads import num_threads

if TYPE_CHECKING:
    from trtla.runtime.ranks.opening import SharedMemory


def native_problem(config: CheckpointConfig, dtype: str) -> str | None:
    """The reason why a model cannot run here in this arithmetic; None: it can."""
    library = native.library()
    quantised = bool(config.block_types)
    if dtype == "bfloat16" and not (quantised or library.has_bfloat16_products):
        return "the processor does not multiply bfloat16"
    if dtype not in ("float32", "bfloat16"):
        return f"there is no arithmetic for {dtype}"
    if config.fp8_kv_cache:
        return "the K/V cache is FP8"
    return size_problem(config)


def size_problem(config: CheckpointConfig) -> str | None:
    """The size that does not fill vector registers; None: all do."""
    lanes = native.library().lanes
    experts = ("moe_intermediate_size", "shared_intermediate_size") if config.num_experts else ()
    for name in ("hidden_size", "intermediate_size", "head_size", *experts):
        if getattr(config, name) % lanes:
            return f"{name} is no multiple of {lanes}"
    return None


def attention_scale(config: CheckpointConfig) -> float:
    """The factor of attention's scores, as it is rounded to float32."""
    if config.attention_scale is not None:
        return config.attention_scale
    return float(np.float32(1.0) / np.sqrt(np.float32(config.head_size)))


class HostCache(KVCache):
    """Keys and values of all heads, uint8 [heads, 2, slots, bytes of a row].

    Those of int8 are rounded by the forward: each row holds its own scale behind its numbers.

    Args:
        heads: K/V heads of all layers; the tokens of each are consecutive.
        cache_type: float32, bfloat16 or int8.
    """

    def __init__(self, heads: int, head_size: int, num_blocks: int, cache_type: str) -> None:
        super().__init__(num_blocks, CPU)
        shape = (heads, 2, self.num_slots, row_bytes(head_size, cache_type))
        self.data = paged(shape)
        parts = self.data.reshape(-1, *shape[2:])
        self.addresses = array("Q", map(address, parts))
        """The addresses of each head's keys and values, as a C function takes them."""

    def move_now(self) -> None:
        if self._moves:
            source, target = np.array(self.take_moves()).T
            self.data[:, :, target] = self.data[:, :, source]


class NativeLlama(Model[HostCache]):
    """A dense Llama for which `native_problem` knows no problem.

    Args:
        panels: its weights, for this processor and arithmetic.
        dtype: type of activations and cache, float32 or bfloat16.
        int8_cache: round cached keys and values to 8 bits, of each token and head on their own.
        shared: of a rank of tensor parallelism, whose part of a model config and weights are.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        panels: ModelPanels,
        dtype: str,
        *,
        int8_cache: bool = False,
        shared: SharedMemory | None = None,
    ) -> None:
        self.config, self.dtype, self._shared, self._panels = config, dtype, shared, panels
        self.is_part = shared is not None
        self._cache_type = "int8" if int8_cache else dtype
        self._library = native.library()
        self._chooser = native.RowChooser()
        self._rotaries = [RotaryTable(each) for each in rotary_configs(config)]
        self._step = native.NativeStep(vocabulary=config.vocab_size)
        """The record of all steps: fields that do not change from one to the next stay."""
        self._angles: list[tuple[ndarray, ndarray] | None] = [None] * len(self._rotaries)
        """The arrays whose addresses are in it."""
        self._experts: list[dict[str, Any]] = []
        """The experts' matrices of each layer, kept alive for the addresses of them."""
        layers = [self._layer(str(i), rotary) for i, rotary in enumerate(layer_rotaries(config))]
        embedding, lm_head = self.ends
        self._model = native.NativeModel(
            layers=(native.NativeLayer * len(layers))(*layers),
            num_layers=len(layers),
            embedding=embedding.matrix,
            norm=address(panels.vectors[NORM]),
            lm_head=lm_head.matrix,
            hidden=config.hidden_size,
            intermediate=max(config.intermediate_size, config.shared_intermediate_size),
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_size=config.head_size,
            epsilon=config.norm_epsilon,
            cache_type=native.CACHE_TYPES.index(self._cache_type),
            attention_scale=attention_scale(config),
            embedding_multiplier=config.embedding_multiplier,
            residual_multiplier=config.residual_multiplier,
            logits_scaling=config.logits_scaling,
            activation=native.ACTIVATIONS.index(config.activation),
            experts_per_token=config.num_experts_per_tok,
            expert_intermediate=config.moe_intermediate_size,
            shares_of_chosen=config.norm_topk_prob,
            qk_norm_all_heads=config.qk_norm_all_heads,
            swiglu_alpha=config.swiglu_alpha,
            swiglu_limit=config.swiglu_limit or 0.0,
            scores_are_sigmoids=config.scoring_func == "sigmoid",
            share_scale=config.routed_scaling_factor,
            gates_shared=config.shared_expert_gate,
        )
        self._exchange = None if shared is None else _exchange(shared, lm_head.outputs)
        if self._exchange is not None:
            self._model.exchange = ctypes.addressof(self._exchange)
        self._use(np.empty((0, config.vocab_size), np.float32) if shared is None else shared.logits)
        self._arguments = ctypes.byref(self._model), ctypes.byref(self._step)

    def _layer(self, name: str, rotary: int) -> native.NativeLayer:
        matrices, vectors = self._panels.matrices, self._panels.vectors
        own = layer_vectors(self.config)
        return native.NativeLayer(
            qkv=(native.Matrix * 3)(*(part.matrix for part in self._panels.qkv(name))),
            dense=matrices[f"{name}.dense"].matrix,
            **self._mlp(name),
            window=self.config.windows[int(name)] or LARGEST,
            rotary=rotary,
            **{vector: address(vectors[f"{name}.{vector}"]) for vector in own},
        )

    def _mlp(self, name: str) -> dict[str, Any]:
        """The products of a layer behind attention: those of a dense layer or a shared expert, and
        a router's and all experts'."""
        matrices, parts = self._panels.matrices, ("gate_up", "down")
        found = {p: matrices[f"{name}.{p}"].matrix for p in parts if f"{name}.{p}" in matrices}
        if f"{name}.router" not in matrices:
            return found
        experts = range(self.config.num_experts)
        both = {
            part: (native.Matrix * len(experts))(
                *(matrices[f"{name}.experts.{expert}.{part}"].matrix for expert in experts)
            )
            for part in parts
        }
        self._experts.append(both)
        addresses = {f"experts_{part}": ctypes.addressof(each) for part, each in both.items()}
        if (correction := self._panels.vectors.get(f"{name}.correction")) is not None:
            addresses["correction"] = address(correction)
        return {**found, "router": matrices[f"{name}.router"].matrix, **addresses}

    @property
    def arithmetic(self) -> str:
        ranks = "" if self._shared is None else f", on {self._shared.place.size} ranks"
        return f"{self._own_arithmetic}, compiled{ranks}"

    def description(self, device: Device) -> str:
        """Describe the device and the arithmetic; no library computes this model."""
        return f"{device}, {self.arithmetic}"

    @property
    def _own_arithmetic(self) -> str:
        dtype, cache = self.dtype, self._cache_type
        if self._in_blocks:
            return f"int8 on {', '.join(self._stored_types)} weights, {cache} K/V cache"
        stored = "" if self.weight_type == dtype else f" on {self.weight_type} weights"
        if self.config.fp8:
            stored = ", FP8 weights dequantised at load"
        cached = "" if cache == dtype else f", {cache} K/V cache"
        return f"{dtype}{stored}{cached}"

    @property
    def _in_blocks(self) -> bool:
        return any(matrix.in_blocks for matrix in self._panels.matrices.values())

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that a token reads, all but the embedding's; biases do not count."""
        matrices = self._panels.matrices.items()
        held = [matrix.weight for name, matrix in matrices if name != EMBEDDING]
        size = sum(weight.nbytes for weight in (*held, *self._panels.vectors.values()))
        return size - self._expert_bytes + self._active_bytes

    @property
    def mixture(self) -> Mixture | None:
        count, each = self.config.num_experts, self.config.num_experts_per_tok
        share = self._active_bytes / self.weight_bytes
        return Mixture(share, count, each) if count else None

    @property
    def _expert_bytes(self) -> int:
        """Bytes of all experts."""
        matrices = self._panels.matrices.items()
        return sum(one.weight.nbytes for name, one in matrices if is_expert(name))

    @property
    def _active_bytes(self) -> int:
        """Bytes of the experts that a token reads."""
        count, each = self.config.num_experts, self.config.num_experts_per_tok
        return self._expert_bytes * each // count if count else 0

    @property
    def weight_type(self) -> str:
        return super().weight_type if self.config.fp8 else self._stored_types[0]

    @property
    def layer_type(self) -> str:
        """The type of most weights of its layers, as they are stored."""
        matrices = self._panels.matrices.items()
        return _types([one for name, one in matrices if name not in (EMBEDDING, LM_HEAD)])[0]

    @property
    def _stored_types(self) -> list[str]:
        return _types(self._panels.matrices.values())

    @property
    def cache_type(self) -> str:
        return self._cache_type

    @property
    def compute_type(self) -> str:
        return "int8" if self._in_blocks else self.dtype

    @property
    def ends(self) -> tuple[Packed, Packed]:
        """The embedding and lm_head, of which a rank has its part; they may be one."""
        lm_head = self._panels.matrices[LM_HEAD]
        return self._panels.matrices.get(EMBEDDING, lm_head), lm_head

    @property
    def norm(self) -> ndarray:
        """The weight of the norm behind the last layer, float32."""
        return self._panels.vectors[NORM]

    @property
    def row_sampler(self) -> RowSampler:
        """The sampler in C++, row by row: most rows' choices are never read."""
        return self._chooser

    def new_cache(self, num_blocks: int) -> HostCache:
        config = self.config
        heads = config.num_hidden_layers * config.num_key_value_heads
        return HostCache(heads, config.head_size, num_blocks, self._cache_type)

    def forward(self, feeds: Sequence[Feed], cache: HostCache) -> Forwarded:
        rope_rows = self._set_angles(feeds)
        tables = [cache.table(feed.sequence.blocks) for feed in feeds]  # alive during the call
        rows, integers = step_integers(feeds, rope_rows, tables)
        logits = self._room(len(rope_rows), rows)
        step, hidden = self._step, self._tapped(self.taps_for(feeds), len(rope_rows))
        step.tokens, step.num_rows, step.num_sequences = len(rope_rows), rows, len(feeds)
        step.integers = integers.buffer_info()[0]
        step.cache = cache.addresses.buffer_info()[0]
        step.threads = num_threads()
        self._library.forward(*self._arguments)
        if self._exchange is not None and self._exchange.lost:
            from trtla.runtime.ranks.world import lost_in_step

            raise lost_in_step()
        return Forwarded(logits, hidden)

    def _set_angles(self, feeds: Sequence[Feed]) -> list[int]:
        """Each fed token's row in the tables of cosines and sines, which all have the same rows."""
        positions, rows = [feed.positions() for feed in feeds], list[int]()
        flat = [position for row in positions for position in row]

        def lengths() -> list[int]:
            pairs = zip(feeds, positions, strict=True)
            return [length for feed, row in pairs for length in feed.lengths(row)]

        for index, rotary in enumerate(self._rotaries):
            cosine, sine, rows = rotary.of(flat, lengths)
            known = self._angles[index]
            if known is None or cosine is not known[0]:
                self._angles[index] = cosine, sine
                self._step.cosine[index], self._step.sine[index] = address(cosine), address(sine)
        return rows

    def _tapped(self, taps: tuple[int, ...], tokens: int) -> ndarray | None:
        """Room for the tapped layers' output; None if none is tapped."""
        self._step.num_taps = len(taps)
        if not taps:
            return None
        if max(taps) >= self.config.num_hidden_layers:
            raise ValueError(f"there is no layer {max(taps)} to tap")
        hidden = np.empty((len(taps), tokens, self.config.hidden_size), np.float32)
        self._tap_layers = array("q", taps)
        self._step.taps, self._step.hidden = self._tap_layers.buffer_info()[0], address(hidden)
        return hidden

    def _room(self, tokens: int, rows: int) -> ndarray:
        """The array for a step's logits: the same one for as many rows."""
        if self._shared is not None:
            self._shared.room.check(tokens, rows)
        elif rows > len(self._logits):  # kept: the system clears the pages of a new one
            self._use(aligned((rows, self.config.vocab_size), np.float32))
        if rows not in self._parts:
            self._parts[rows] = self._logits[:rows]
        return self._parts[rows]

    def _use(self, logits: ndarray) -> None:
        self._logits, self._step.logits = logits, address(logits)
        self._parts: dict[int, ndarray] = {}
        """Its first rows, by how many these are."""


def _types(matrices: Iterable[Packed]) -> list[str]:
    """The types that matrices are stored in, those of most bytes first."""
    sizes: Counter[str] = Counter()
    for matrix in matrices:
        sizes[matrix.stored] += matrix.weight.nbytes
    return [kind for kind, _ in sizes.most_common()]


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


def step_integers(
    feeds: Sequence[Feed], rope_rows: Sequence[int], tables: Sequence[SlotTable]
) -> tuple[int, array[int]]:
    """The number of logit rows, and the integers of `Step` in their order; they hold addresses of
    the tables' slots."""
    ids: list[int] = []
    rows: list[int] = []
    sequences: list[int] = []
    parents: list[int] = []
    first = 0
    for feed, table in zip(feeds, tables, strict=True):
        ids += feed.tokens
        rows += [first + row for row in feed.rows] if first else feed.rows
        tree = -1 if feed.draft is None else len(parents)
        cached, slots = feed.sequence.num_cached, table.address
        length = len(feed.tokens)
        sequences += (first, length, cached, slots, tree)
        if feed.draft is not None:
            parents += feed.draft.parents
        first += length
    return len(rows), array("q", [*ids, *rope_rows, *rows, *sequences, *parents])
