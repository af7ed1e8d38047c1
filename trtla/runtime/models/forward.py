"""The base of all models, and the call by which an executor runs a step of one.

A model is compiled for the CPU (`cpu`), or runs in PyTorch (`tensor_model`). Callers only see a
`StepForward`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from trtla.runtime.costs import Mixture
from trtla.runtime.device import Device
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.sampling.logits import Logits
from trtla.runtime.sampling.predict import RowSampler, StepSampler
from trtla.runtime.sequence import Feed

SPARE_BLOCKS = 1
"""Blocks that a cache needs beside those of sequences."""
CacheT = TypeVar("CacheT", bound=KVCache)


class Forwarded(NamedTuple):
    """The output of a forward."""

    logits: Logits
    """Feed by feed; the next forward may overwrite them. Arrays, unless a `StepSampler` reads them
    on the device."""
    hidden: Logits | None = None
    """Float32 [taps, fed tokens, hidden size], the output of each tapped layer; None if none is.
    The next forward may overwrite it, and it is where the logits are."""
    sampler: RowSampler | None = None
    """The sampler if other ranks have the logits, which are empty then; None: the model's."""


StepForward = Callable[[Sequence[Feed]], Forwarded]
"""A step's feeds, prompts first -> the output of their forward."""


class Model(ABC, Generic[CacheT]):
    """A model on one device: fed tokens in, logits out."""

    fast: bool = False
    """True if steps run through CUDA graphs over pages, which `cuda_check` has tested."""
    is_part: bool = False
    """True for one rank's part of a model."""
    taps: tuple[int, ...] = ()
    """Layers of a Llama whose output drafters see that want it, for trained heads; set as soon as
    the model is loaded. Of several ranks, rank 0 alone needs them."""
    graphs: str = ""
    """The steps that run as graphs, such as `graphs` or `graphs of up to 96 tokens`; set by
    `step_forward`."""

    @property
    @abstractmethod
    def arithmetic(self) -> str:
        """A description of its arithmetic, for people."""

    def description(self, device: Device) -> str:
        """Describe the library, the device and the arithmetic, for people."""
        return f"torch on {device}, {self.arithmetic}"

    @property
    @abstractmethod
    def weight_bytes(self) -> int | None:
        """Bytes of the weights that a forward of one token reads; None: unknown."""

    @property
    def mixture(self) -> Mixture | None:
        """The experts; None: all tokens read the same weights."""
        return None

    @property
    def weight_type(self) -> str:
        """The type of most weights in memory."""
        return self.compute_type

    @property
    @abstractmethod
    def compute_type(self) -> str:
        """The type that most products are computed in."""

    @property
    def cache_type(self) -> str:
        """The type of keys and values."""
        return self.compute_type

    @property
    def row_sampler(self) -> RowSampler | StepSampler | None:
        """Chooses tokens, of single rows or of all at once; None: `sampling.draw` does."""
        return None

    @abstractmethod
    def new_cache(self, num_blocks: int) -> CacheT:
        """A K/V cache for this model, on its device."""

    @abstractmethod
    def forward(self, feeds: Sequence[Feed], cache: CacheT) -> Forwarded:
        """Write the fed tokens' keys and values, and compute the logits of the feeds' rows."""

    def taps_for(self, feeds: Sequence[Feed]) -> tuple[int, ...]:
        """Return the layers to tap in a step of these feeds: none unless a drafter wants states."""
        wanted = self.taps and any(feed.wants_states for feed in feeds)
        return self.taps if wanted else ()

    def scratch_bytes(self, limits: ExecutorLimits, step_sizes: Sequence[int] = ()) -> int:
        """Bytes of the device's memory that forwards and graphs take beside weights and cache.

        Arguments as of `step_forward`. On a CPU 0: there a share of the memory is left to them.
        """
        return 0

    def step_forward(
        self, cache: CacheT, limits: ExecutorLimits, step_sizes: Sequence[int] = ()
    ) -> StepForward:
        """Return the function by which an executor with these limits runs its steps on this cache.

        Args:
            step_sizes: tokens that most sequences feed in a step, rising; none feeds more than the
                last one. Empty: those of `limits`.
        """

        def step(feeds: Sequence[Feed]) -> Forwarded:
            cache.move_now()
            return self.forward(feeds, cache)

        return step
