"""How an executor runs its steps: compiled for the CPU, packed, or through CUDA graphs and pages.

The one place that chooses; whoever steps calls what it returns and knows none of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.batch import make_batch
from trtla.runtime.models.cuda.graphs import CudaCapture, GraphRunner
from trtla.runtime.models.cuda.paged_attention import triton_attends
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.models.llama import TargetModel
from trtla.runtime.sampling.predict import RowChoice
from trtla.runtime.sequence import Feed

SPARE_BLOCKS = 1
"""Blocks that a cache needs beside those of sequences."""
StepForward = Callable[[Sequence[Feed]], Tensor]
"""A step's feeds, prompts first -> float logits [wanted rows, vocab], feed by feed."""


@runtime_checkable
class FeedModel(RowChoice, Protocol):
    """A model that takes a step's feeds as they are, instead of a packed batch."""

    @property
    def arithmetic(self) -> str:
        """What it computes in, for people to read."""

    @property
    def weight_bytes(self) -> int | None:
        """Of weights that a forward reads; None: unknown."""

    def forward_feeds(self, feeds: Sequence[Feed], cache: KVCache) -> Tensor:
        """Write the fed tokens' keys and values, return float logits, feed by feed."""


def step_forward(
    model: TargetModel | FeedModel, cache: KVCache, limits: ExecutorLimits
) -> StepForward:
    """The way to run a model's steps: packed, or through graphs and pages where asked and possible.

    The kernels equal `attend` under Triton's interpreter and compile for sm_80 and sm_90, but have
    not run on a GPU yet: until they have, they are asked for with TRTLA_PAGED_ATTENTION=1.
    """
    if isinstance(model, FeedModel):
        return lambda feeds: model.forward_feeds(feeds, cache)
    fp8 = cache.data.dtype == torch.uint8
    asked = os.environ.get("TRTLA_PAGED_ATTENTION") == "1"
    if asked and triton_attends(cache.data.shape[-1], model.dtype, cache.device, fp8):
        return GraphRunner(
            model.forward,
            cache,
            limits.max_batch_size,
            1 + limits.max_draft_len,
            limits.max_text_len + limits.max_draft_len,
            CudaCapture(),
        )
    return lambda feeds: model.forward(make_batch(feeds, cache, model.folds, model.dtype), cache)
