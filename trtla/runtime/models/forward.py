"""What runs a step: the base of all models, and how an executor calls one.

A model is compiled for the CPU, runs packed in PyTorch, or through CUDA graphs over pages of the
cache. Callers only see a `StepForward`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.batch import Batch, Forwarded, make_batch
from trtla.runtime.models.cuda.graphs import CudaCapture, GraphRunner
from trtla.runtime.models.cuda.paged_attention import triton_attends
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.sampling.predict import RowSampler
from trtla.runtime.sequence import Feed

SPARE_BLOCKS = 1
"""Blocks that a cache needs beside those of sequences."""


StepForward = Callable[[Sequence[Feed]], Forwarded]
"""A step's feeds, prompts first -> what their forward gives."""


class Model(ABC):
    """A model on one device: fed tokens in, logits out."""

    dtype: torch.dtype
    """Type of activations."""
    taps: tuple[int, ...] = ()
    """Layers whose output `Forwarded.hidden` holds; set them before the model is run."""

    @property
    @abstractmethod
    def arithmetic(self) -> str:
        """What it computes in, for people to read."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int | None:
        """Of weights that a forward reads; None: unknown."""

    @property
    def weight_type(self) -> str:
        """The type of most weights in memory."""
        return self.compute_type

    @property
    def compute_type(self) -> str:
        """The type that most products are computed in."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def cache_dtype(self) -> torch.dtype:
        """Type of the K/V cache."""
        return self.dtype

    @property
    def row_sampler(self) -> RowSampler | None:
        """Chooses the tokens of single rows; None: all rows are drawn together."""
        return None

    def _stacked(self, outputs: Mapping[int, Tensor]) -> Tensor | None:
        """The tapped layers' outputs, each [fed tokens, hidden size], as `Forwarded.hidden`."""
        return torch.stack([outputs[layer] for layer in self.taps]).float() if self.taps else None

    @abstractmethod
    def new_cache(self, num_blocks: int) -> KVCache:
        """A K/V cache for this model, on its device."""

    @abstractmethod
    def forward(self, feeds: Sequence[Feed], cache: KVCache) -> Forwarded:
        """Write the fed tokens' keys and values, and compute the wanted rows' logits."""

    def step_forward(self, cache: KVCache, limits: ExecutorLimits) -> StepForward:
        """How an executor with these limits runs its steps over this cache."""
        return lambda feeds: self.forward(feeds, cache)


class PackedModel(Model):
    """A model in PyTorch that runs on one packed batch, which CUDA graphs can capture."""

    @property
    @abstractmethod
    def group_size(self) -> int:
        """Query heads that share a K/V head (GQA)."""

    @abstractmethod
    def forward_batch(self, batch: Batch, cache: KVCache) -> Forwarded:
        """Run one packed batch."""

    def forward(self, feeds: Sequence[Feed], cache: KVCache) -> Forwarded:
        """Pack the feeds and run them."""
        batch = make_batch(feeds, cache, self.group_size, self.dtype)
        return self.forward_batch(batch, cache)

    def step_forward(self, cache: KVCache, limits: ExecutorLimits) -> StepForward:
        """Packed, or through graphs and pages where TRTLA_PAGED_ATTENTION=1 asks for them.

        The paged kernels equal `attend` under Triton's interpreter and compile for sm_80 and sm_90,
        but have not run on a GPU yet.
        """
        fp8 = cache.data.dtype == torch.uint8
        asked = os.environ.get("TRTLA_PAGED_ATTENTION") == "1" and not self.taps
        if not asked or not triton_attends(cache.data.shape[-1], self.dtype, cache.device, fp8):
            return super().step_forward(cache, limits)
        return GraphRunner(
            self.forward_batch,
            cache,
            limits.max_batch_size,
            1 + limits.max_draft_len,
            limits.max_text_len + limits.max_draft_len,
            CudaCapture(),
        )
