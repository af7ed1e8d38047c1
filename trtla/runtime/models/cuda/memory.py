"""The GPU memory that a Llama needs in addition to weights and K/V cache, in plain integers.

The K/V cache gets the rest. The share of the libraries is a guess that should be too large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtla.formats.config import CheckpointConfig
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.cuda.graphs import Bucket, buckets
from trtla.runtime.models.cuda.paged_attention import MOST_PARTS

_LIBRARIES = 128 * 2**20 + MOST_PARTS
"""Bytes of libraries and of attention's parts: cuBLAS keeps up to 32 MiB for each of two streams,
cuBLASLt as much again, and attention that is split along a long context keeps parts to join."""
_PARTS = 2
"""Fewest float32 parts of attention for a row."""
_A_GRAPH = 4 * 2**20
"""Bytes that the driver keeps for a graph: its launches and their arguments."""
_FLOAT = 4


@dataclass(frozen=True, slots=True)
class ForwardMemory:
    """The peak memory of a model's forwards.

    Args:
        config: the model's shape.
        itemsize: bytes of an activation.
        widens: True if logits are computed in float32 without rounding to activations.
        taps: layers whose output drafters may want.
    """

    config: CheckpointConfig
    itemsize: int
    widens: bool = True
    taps: int = 0

    def scratch_bytes(self, limits: ExecutorLimits, step_sizes: Sequence[int]) -> int:
        """Return the bytes with fused kernels: all graphs, and a forward of prompts and steps.

        The arguments are those of `Model.step_forward`.
        """
        made = buckets(step_sizes, limits.max_batch_size, limits.max_num_tokens)
        captured = made[-1].tokens
        rows = min(limits.max_batch_size * step_sizes[-1], limits.max_num_tokens)
        longest = limits.max_text_len + limits.max_draft_len
        inputs = sum(_input_bytes(one, step_sizes[-1], longest) for one in made)
        graphs = self.graph_bytes(captured) + inputs + len(made) * _A_GRAPH
        return graphs + self.forward_bytes(limits.max_num_tokens, rows) + _LIBRARIES

    def plain_scratch_bytes(self, limits: ExecutorLimits, step_sizes: Sequence[int]) -> int:
        """Return the bytes with PyTorch's operations: gathered keys and values, and full masks."""
        config, most = self.config, limits.max_num_tokens
        rows = min(limits.max_batch_size * step_sizes[-1], most)
        longest = limits.max_text_len + limits.max_draft_len
        queries, keys = _widths(config)
        wide = max(4 * config.intermediate_size, 6 * (queries + keys))
        products = most * self.itemsize * (self._kept() + keys + wide)
        gathered = limits.max_batch_size * longest * keys * self.itemsize
        if config.fp8_kv_cache:  # as bytes, in float32, and rounded
            gathered += gathered // self.itemsize * (1 + _FLOAT)
        group = config.num_attention_heads // config.num_key_value_heads
        masks = (most + rows) * group * longest * self.itemsize * len({*config.windows})
        tapped = self._tapped_bytes(most)
        return products + gathered + masks + self._logit_bytes(rows) + tapped + _LIBRARIES

    def graph_bytes(self, tokens: int) -> int:
        """Return the bytes of graphs up to `tokens`, which share memory and copy their output."""
        states = self.taps * self.config.hidden_size * self.itemsize
        copied = _FLOAT * self.config.vocab_size + states
        return self.forward_bytes(tokens, tokens) + copied * tokens

    def forward_bytes(self, tokens: int, rows: int) -> int:
        """Return the bytes of one forward with fused kernels, and logits of `rows`.

        States, their update, their norm, queries and attention are kept between operations. The
        larger of gate, up and their product, and q, k, v and the parts of attention comes on top;
        after the last layer the sum and the logits do. FP8 needs less for some of them.
        """
        config = self.config
        queries, keys = _widths(config)
        parts = _PARTS * _FLOAT * (queries + 2 * config.num_attention_heads)
        attention = self.itemsize * (queries + keys) + parts
        layer = max(3 * config.intermediate_size * self.itemsize, attention)
        of_layer = tokens * (self.itemsize * self._kept() + layer)
        head = tokens * self.itemsize * (self._kept() + config.hidden_size)
        return max(of_layer, head + self._logit_bytes(rows)) + self._tapped_bytes(tokens)

    def _tapped_bytes(self, tokens: int) -> int:
        """Bytes of tapped layers' output: as it is kept, then joined, and at last in float32."""
        return self.taps * tokens * self.config.hidden_size * (self.itemsize + _FLOAT)

    def _kept(self) -> int:
        """Numbers that a token keeps between operations; cosine and sine are half a head each."""
        config = self.config
        return 3 * config.hidden_size + 2 * _widths(config)[0] + config.head_size

    def _logit_bytes(self, rows: int) -> int:
        config = self.config
        rounded = 0 if self.widens else self.itemsize
        return rows * (config.vocab_size * (_FLOAT + rounded) + config.hidden_size * self.itemsize)


def _widths(config: CheckpointConfig) -> tuple[int, int]:
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    return heads * config.head_size, 2 * kv_heads * config.head_size


def _input_bytes(bucket: Bucket, step: int, longest: int) -> int:
    """Bytes of a graph's input: integers of each token, its path, and the sequences' blocks."""
    words = -(-min(bucket.tokens, step) // 4)
    blocks = -(-longest // TOKENS_PER_BLOCK)
    return 8 * bucket.tokens * (6 + words) + 4 * bucket.sequences * (blocks + 4)
