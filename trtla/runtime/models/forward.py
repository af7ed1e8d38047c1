"""What runs a step: the base of all models, and how an executor calls one.

A model is compiled for the CPU, runs packed in PyTorch, or through CUDA graphs over pages of the
cache. Callers only see a `StepForward`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trtla.errors import first_line
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.batch import Batch, Forwarded, make_batch
from trtla.runtime.models.cuda.graphs import CudaCapture, GraphRunner
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.sampling.predict import RowSampler, StepSampler
from trtla.runtime.sequence import Feed

_log = logging.getLogger(__name__)
SPARE_BLOCKS = 1
"""Blocks that a cache needs beside those of sequences."""


StepForward = Callable[[Sequence[Feed]], Forwarded]
"""A step's feeds, prompts first -> what their forward gives."""


class Model(ABC):
    """A model on one device: fed tokens in, logits out."""

    dtype: torch.dtype
    """Type of activations."""
    fast: bool = False
    """Whether steps run through CUDA graphs over pages, which `cuda_check` has tested."""
    taps: tuple[int, ...] = ()
    """Layers of a Llama whose output drafters see, for trained heads; set before it is run."""
    graphs: str = ""
    """Which steps run as graphs, such as `graphs` or `graphs of up to 96 tokens`; `step_forward`
    finds out."""

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
        return self.dtype

    @property
    def row_sampler(self) -> RowSampler | StepSampler | None:
        """Chooses tokens, of single rows or of all at once; None: PyTorch's operations do."""
        return None

    @abstractmethod
    def new_cache(self, num_blocks: int) -> KVCache:
        """A K/V cache for this model, on its device."""

    @abstractmethod
    def forward(self, feeds: Sequence[Feed], cache: KVCache) -> Forwarded:
        """Write the fed tokens' keys and values, and compute the wanted rows' logits."""

    def scratch_bytes(self, limits: ExecutorLimits, step_sizes: Sequence[int] = ()) -> int:
        """Of the device's memory that forwards and graphs take beside weights and cache.

        Arguments as of `step_forward`. On a CPU 0: there a share of the memory is left to them.
        """
        return 0

    def step_forward(
        self, cache: KVCache, limits: ExecutorLimits, step_sizes: Sequence[int] = ()
    ) -> StepForward:
        """How an executor with these limits runs its steps over this cache.

        Args:
            step_sizes: tokens that most sequences feed in a step, rising; none feeds more than the
                last one. None given: those of `limits`.
        """

        def step(feeds: Sequence[Feed]) -> Forwarded:
            cache.move_now()
            return self.forward(feeds, cache)

        return step


class PackedModel(Model):
    """A model in PyTorch that runs on one packed batch, which CUDA graphs can capture."""

    @property
    @abstractmethod
    def group_size(self) -> int:
        """Query heads that share a K/V head (GQA)."""

    def use_plain_path(self) -> None:
        self.fast = False

    def use_plain_sampler(self) -> None:
        raise NotImplementedError  # of models that have a `StepSampler`

    @abstractmethod
    def forward_batch(self, batch: Batch, cache: KVCache) -> Forwarded:
        """Run one packed batch."""

    def forward(self, feeds: Sequence[Feed], cache: KVCache) -> Forwarded:
        batch = make_batch(feeds, cache, self.group_size, self.dtype)
        return self.forward_batch(batch, cache)

    def step_forward(
        self, cache: KVCache, limits: ExecutorLimits, step_sizes: Sequence[int] = ()
    ) -> StepForward:
        """Packed, or through graphs and pages where `fast` says so.

        Graphs are captured and all kernels compiled now: no step waits for either.
        """
        if not self.fast or self.taps:
            return super().step_forward(cache, limits, step_sizes)
        runner = GraphRunner(
            self.forward_batch,
            cache,
            limits.max_batch_size,
            step_sizes or limits.step_sizes,
            limits.max_text_len + limits.max_draft_len,
            CudaCapture(cache.device),
            limits.max_num_tokens,
        )
        runner.capture_all()
        logits = runner.warm_up()
        if logits is None:  # the problem may be the kernels', which would fail without graphs too
            self.use_plain_path()
            return super().step_forward(cache, limits, step_sizes)
        self._warm_up_sampler(logits)
        most = runner.most_tokens
        self.graphs = "graphs" if runner.is_complete else f"graphs of up to {most} tokens"
        return runner

    def _warm_up_sampler(self, logits: Tensor) -> None:
        """Compile what chooses tokens; where that fails, PyTorch's operations choose."""
        if isinstance(self.row_sampler, StepSampler):
            try:
                self.row_sampler.warm_up(logits)
            except Exception as error:  # of Triton, the driver, or no memory
                self.use_plain_sampler()
                why = first_line(error)
                _log.warning("PyTorch's operations choose tokens, which is slower: %s", why)
