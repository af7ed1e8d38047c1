"""An EAGLE-3 head in PyTorch, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy import ndarray
from torch import Tensor

from trtla.formats.heads.head import EagleConfig, Head
from trtla.runtime.models.heads.head_model import ROW, HeadFeed, HeadModel, HeadRows, target_ids
from trtla.runtime.models.kv_cache import KVCache, block_bytes
from trtla.runtime.models.layers import Linear, LinearPair, rotate
from trtla.runtime.models.rotary import RotaryTable
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.sampling.logits import on_host


@dataclass(frozen=True, slots=True)
class Ends:
    """The target's embedding [vocabulary, hidden size] and lm_head."""

    embedding: Tensor
    lm_head: Linear


class TensorHead(HeadModel):
    """A head beside its target.

    Args:
        config: of the head.
        ends: the target's, which serve where the head has none of its own.
        dtype: of weights, states, and the cache.
    """

    def __init__(
        self,
        head: Head,
        config: EagleConfig,
        ends: Ends,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.taps, self.config, self._layer = config.taps, config, config.layer
        self._dtype, self._device = dtype, device
        self._rotary = RotaryTable(config.layer)

        def tensor(name: str) -> Tensor:
            return torch.from_numpy(head.tensor(name)).to(device, dtype)

        self._norms = {name: tensor(name) for name in head.tensors if "norm" in name}
        self._fc = Linear.of(tensor("fc"))
        self._qkv = Linear.of(torch.cat([tensor(name) for name in "qkv"]))
        self._dense, self._down = Linear.of(tensor("o")), Linear.of(tensor("down"))
        self._gate_up = LinearPair.of([tensor("gate"), tensor("up")], ())
        own = "embedding" in head.tensors
        self._embedding = tensor("embedding") if own else ends.embedding
        self._own_lm_head = "lm_head" in head.tensors
        self._lm_head = Linear.of(tensor("lm_head")) if self._own_lm_head else ends.lm_head
        self._target_ids = target_ids(head, config)

    def new_cache(self, num_blocks: int) -> KVCache:
        layer = self._layer
        sizes = 1, layer.num_key_value_heads, layer.head_size
        return TensorCache(*sizes, num_blocks, self._dtype, self._device)

    @property
    def block_bytes(self) -> int:
        return block_bytes(self._layer, str(self._dtype).removeprefix("torch."))

    @property
    def weight_bytes(self) -> int:
        layer, size = self._layer, self._layer.hidden_size
        heads = layer.num_attention_heads
        attention = layer.head_size * size * (3 * heads + 4 * layer.num_key_value_heads)
        mlp, lm_head = 3 * size * layer.intermediate_size, layer.vocab_size * size
        return self._dtype.itemsize * (attention + mlp + self._own_lm_head * lm_head)

    @torch.inference_mode()
    def fuse(self, states: ndarray) -> ndarray:
        parts = list(self._placed(states))
        if self.config.fc_norm:
            parts = [self._normed(part, f"fc_norm.{tap}") for tap, part in enumerate(parts)]
        joined = torch.cat(parts, -1)
        if self.config.input_norm:
            joined = self._normed(joined, "input_norm")
        return self._returned(self._fc(joined))

    def _placed(self, states: ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(states)).to(self._device, self._dtype)

    def _returned(self, states: Tensor) -> ndarray:
        """States as float32, or as float64 where the head computes in it."""
        return on_host(states if states.dtype == torch.float64 else states.float())

    def _normed(self, states: Tensor, name: str) -> Tensor:
        weight = self._norms[name]
        return F.rms_norm(states, weight.shape, weight, self._layer.norm_epsilon)

    @torch.inference_mode()
    def forward(self, feeds: Sequence[HeadFeed], cache: KVCache) -> HeadRows:
        assert isinstance(cache, TensorCache)
        states = self._placed(np.concatenate([feed.states for feed in feeds]))
        ids = [token for feed in feeds for token in feed.ids]
        embeddings = F.embedding(torch.tensor(ids, device=self._device), self._embedding)
        normed = self._normed(states, "hidden_norm")
        joined = torch.cat((self._normed(embeddings, "embedding_norm"), normed), -1)
        queries = self._cached(self._qkv(joined), feeds, cache)
        last = torch.tensor(np.cumsum([len(feed.ids) for feed in feeds]) - 1, device=self._device)
        seen = [
            self._attended(query, feed, cache)
            for query, feed in zip(queries.index_select(0, last), feeds, strict=True)
        ]
        residual = normed if self.config.norm_before_residual else states
        middle = residual.index_select(0, last) + self._dense(torch.stack(seen))
        gate, up = self._gate_up(self._normed(middle, "post_norm"))
        out = middle + self._down(F.silu(gate) * up)
        normed = self._normed(out, "norm")
        return self._predicted(normed, normed if self.config.norm_output else out)

    def _cached(self, qkv: Tensor, feeds: Sequence[HeadFeed], cache: TensorCache) -> Tensor:
        """Write rotated keys, and values, to the pairs' slots; the rotated queries."""
        entries: list[int] = []
        slots: list[ndarray] = []
        for feed in feeds:
            start = feed.first + feed.cached
            entries += range(start, start + len(feed.ids))
            slots.append(feed.table.slots[start : start + len(feed.ids)])
        cosine, sine, rows = self._rotary.of(entries, lambda: [entry + 1 for entry in entries])
        angles = [self._placed(table[rows])[:, None] for table in (cosine, sine)]
        heads = qkv.view(len(qkv), -1, self._layer.head_size)
        kv_heads = self._layer.num_key_value_heads
        turned = rotate(heads[:, :-kv_heads], angles[0], angles[1])
        places = torch.from_numpy(np.concatenate(slots)).to(self._device)
        cache.write(0, places, turned[:, -kv_heads:], heads[:, -kv_heads:])
        return turned[:, :-kv_heads]

    def _attended(self, query: Tensor, feed: HeadFeed, cache: TensorCache) -> Tensor:
        """Attention of a feed's last pair, which sees all before it: [heads x head_size]."""
        count, window = feed.cached + len(feed.ids), self._layer.windows[0]
        seen = feed.table.slots[feed.first : feed.first + count]
        slots = torch.from_numpy(seen[-window:] if window else seen).to(self._device)
        keys, values = (part.index_select(0, slots) for part in cache.layer(0))
        grouped = query.view(keys.shape[1], -1, query.shape[-1])
        keys, values = (part.transpose(0, 1) for part in (keys, values))
        return F.scaled_dot_product_attention(grouped, keys, values).flatten()

    def _predicted(self, normed: Tensor, states: Tensor) -> HeadRows:
        exact = normed.dtype == torch.float64
        logits = self._lm_head(normed) if exact else self._lm_head.wide(normed)
        ids, logs = top_rows(logits)
        return HeadRows(self._target_ids[on_host(ids)], on_host(logs), self._returned(states))


def top_rows(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most probable tokens of each row and the logarithms of their probabilities."""
    logs, ids = logits.log_softmax(-1).topk(min(ROW, logits.shape[-1]))
    missing = (0, ROW - logs.shape[-1])
    logs = F.pad(logs, missing, value=-torch.inf)
    return torch.where(logs.isfinite(), F.pad(ids, missing), -1), logs
