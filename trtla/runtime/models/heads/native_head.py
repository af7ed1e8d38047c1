"""An EAGLE-3 head on CPUs: the compiled forward with one layer, which reads states beside tokens.

A pair's numbers do not depend on the other fed pairs, to the last bit.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy import ndarray

from trtla.formats.config import LARGEST
from trtla.formats.heads.head import EagleConfig, Head
from trtla.runtime.arrays import address, aligned
from trtla.runtime.models.cpu import library as native
from trtla.runtime.models.cpu.llama import HostCache, NativeLlama, attention_scale, size_problem
from trtla.runtime.models.cpu.packing import EMBEDDING, LM_HEAD
from trtla.runtime.models.heads import panels as names
from trtla.runtime.models.heads.head_model import ROW, HeadFeed, HeadModel, HeadRows, target_ids
from trtla.runtime.models.kv_cache import KVCache, block_bytes
from trtla.runtime.models.rotary import RotaryTable
from trtla.runtime.threads import num_threads

_SLOT = 8
"""Bytes of an entry of a slot table."""


def native_head_problem(config: EagleConfig) -> str | None:
    """The reason why a head beside a compiled target cannot run here; None: it can."""
    return size_problem(config.layer)


class NativeHead(HeadModel):
    """A head for which `native_head_problem` knows no problem.

    Args:
        config: of the head.
        target: the model that it drafts for, whose types of weights and activations it has.
    """

    def __init__(self, head: Head, config: EagleConfig, target: NativeLlama) -> None:
        self.taps, self.config, self._layer_config = config.taps, config, config.layer
        self._dtype, self._library = target.dtype, native.library()
        types = names.WeightTypes(target.layer_type, target.ends[1].stored)
        self._panels = names.pack_head(head, config, types, target.dtype)
        self._matrices = dict(zip((EMBEDDING, LM_HEAD), target.ends, strict=True))
        """The target's where the head has none of its own; they live as long as this."""
        self._matrices.update(self._panels.matrices)
        self._fc = self._matrices[names.FC].matrix
        self._chooser, self._rotary = native.RowChooser(), RotaryTable(config.layer)
        self._target_ids = target_ids(head, config)
        self._model, self._step = self._described(), native.NativeStep()
        self._describe_step()
        self._arguments = ctypes.byref(self._model), ctypes.byref(self._step)
        self._rows: dict[int, ndarray] = {}
        """The first rows of the array of logits, by how many these are."""

    def _described(self) -> native.NativeModel:
        layer, matrices, vectors = self._layer_config, self._matrices, self._panels.vectors
        hidden_norm = address(vectors["hidden_norm"])
        first = self.config.norm_before_residual
        return native.NativeModel(
            layers=ctypes.pointer(self._layer(None if first else hidden_norm)),
            num_layers=1,
            embedding=matrices[EMBEDDING].matrix,
            norm=address(vectors["norm"]),
            lm_head=matrices[LM_HEAD].matrix,
            hidden=layer.hidden_size,
            intermediate=layer.intermediate_size,
            heads=layer.num_attention_heads,
            kv_heads=layer.num_key_value_heads,
            head_size=layer.head_size,
            epsilon=layer.norm_epsilon,
            cache_type=native.CACHE_TYPES.index(self._dtype),
            attention_scale=attention_scale(layer),
            embedding_multiplier=1.0,
            residual_multiplier=1.0,
            logits_scaling=1.0,
            activation=native.ACTIVATIONS.index(layer.hidden_act),
            embedding_norm=address(vectors["embedding_norm"]),
            residual_norm=hidden_norm if first else None,
        )

    def _layer(self, input_norm: int | None) -> native.NativeLayer:
        matrices = self._matrices
        return native.NativeLayer(
            input_norm=input_norm,
            qkv=(native.Matrix * 3)(matrices[names.QKV].matrix),
            dense=matrices[names.DENSE].matrix,
            post_norm=address(self._panels.vectors["post_norm"]),
            gate_up=matrices[names.GATE_UP].matrix,
            down=matrices[names.DOWN].matrix,
            window=self._layer_config.windows[0] or LARGEST,
        )

    def _describe_step(self) -> None:
        """Set the fields that do not change from one forward to the next: the output is tap 0."""
        step, self._taps = self._step, array("q", [0])
        step.taps, step.num_taps = self._taps.buffer_info()[0], 1
        step.vocabulary = self._layer_config.vocab_size
        self._angles: tuple[ndarray, ndarray] | None = None
        self._logits = np.empty((0, step.vocabulary), np.float32)

    def new_cache(self, num_blocks: int) -> KVCache:
        layer = self._layer_config
        return HostCache(layer.num_key_value_heads, layer.head_size, num_blocks, self._dtype)

    @property
    def block_bytes(self) -> int:
        return block_bytes(self._layer_config, self._dtype)

    @property
    def weight_bytes(self) -> int:
        apart = (names.FC, EMBEDDING)
        matrices = self._panels.matrices.items()
        return sum(matrix.weight.nbytes for name, matrix in matrices if name not in apart)

    def fuse(self, states: ndarray) -> ndarray:
        joined = states.transpose(1, 0, 2)
        vectors = self._panels.vectors
        if self.config.fc_norm:
            norms = [vectors[f"fc_norm.{tap}"] for tap in range(len(self.taps))]
            joined = self._normalised(joined, np.stack(norms))
        joined = joined.reshape(len(joined), -1)
        if self.config.input_norm:
            joined = self._normalised(joined, vectors["input_norm"])
        return self._library.multiply(self._fc, np.ascontiguousarray(joined, np.float32))

    def _normalised(self, rows: ndarray, weight: ndarray) -> ndarray:
        return normalised(rows, weight, self._layer_config.norm_epsilon)

    def forward(self, feeds: Sequence[HeadFeed], cache: KVCache) -> HeadRows:
        assert isinstance(cache, HostCache)
        states = np.ascontiguousarray(np.concatenate([feed.states for feed in feeds]), np.float32)
        ends = list(accumulate(len(feed.ids) for feed in feeds))
        last, tokens = [end - 1 for end in ends], ends[-1]
        integers = array("q", self._integers(feeds, last))
        hidden, logits = np.empty_like(states), self._room(len(feeds))
        step = self._step
        step.tokens, step.num_rows, step.num_sequences = tokens, len(feeds), len(feeds)
        step.integers = integers.buffer_info()[0]
        step.cache = cache.addresses.buffer_info()[0]
        step.states_in, step.hidden = address(states), address(hidden)
        step.threads = num_threads()
        self._library.forward(*self._arguments)
        return self._predicted(logits, hidden[last])

    def _predicted(self, logits: ndarray, states: ndarray) -> HeadRows:
        ids, logs = self._chooser.top_rows(logits, range(len(logits)), ROW)
        if self.config.norm_output:
            states = self._normalised(states, self._panels.vectors["norm"])
        return HeadRows(self._target_ids[ids], logs, states)

    def _integers(self, feeds: Sequence[HeadFeed], last: Sequence[int]) -> list[int]:
        """The integers of the C++'s `Step`; they hold addresses of the tables' slots."""
        ids: list[int] = []
        entries: list[int] = []
        sequences: list[int] = []
        for feed in feeds:
            start, count = feed.first + feed.cached, len(feed.ids)
            slots = feed.table.address + _SLOT * feed.first
            sequences += (len(ids), count, feed.cached, slots, -1)
            ids += feed.ids
            entries += range(start, start + count)
        return [*ids, *self._turned(entries), *last, *sequences]

    def _turned(self, entries: list[int]) -> list[int]:
        """Each pair's row in the table of cosines and sines."""
        cosine, sine, rows = self._rotary.of(entries, lambda: [entry + 1 for entry in entries])
        if self._angles is None or cosine is not self._angles[0]:
            self._angles = cosine, sine
            self._step.cosine[0], self._step.sine[0] = address(cosine), address(sine)
        return rows

    def _room(self, rows: int) -> ndarray:
        """The array for a forward's logits: the same one for as many rows."""
        if rows > len(self._logits):
            self._logits = aligned((rows, self._layer_config.vocab_size), np.float32)
            self._step.logits, self._rows = address(self._logits), {}
        if rows not in self._rows:
            self._rows[rows] = self._logits[:rows]
        return self._rows[rows]


def normalised(rows: ndarray, weight: ndarray, epsilon: float) -> ndarray:
    """Return rows divided by the root of their mean square, times a norm's weight."""
    means = np.square(rows).mean(-1, keepdims=True)
    out: ndarray = rows * (np.float32(1) / np.sqrt(means + np.float32(epsilon))) * weight
    return out
