"""Models in PyTorch: packed on a CPU or GPU, or through CUDA graphs over pages of the cache."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from trtla.errors import first_line
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.batch import Batch, BatchOutput, all_finite, guarded, make_batch
from trtla.runtime.models.cuda.graphs import CudaCapture, GraphRunner
from trtla.runtime.models.forward import Forwarded, Model, StepForward
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.sampling.logits import on_host
from trtla.runtime.sampling.predict import StepSampler
from trtla.runtime.sequence import Feed

_log = logging.getLogger(__name__)


class TensorModel(Model[TensorCache]):
    """A model that computes with tensors."""

    dtype: torch.dtype
    """Type of activations."""

    @property
    def compute_type(self) -> str:
        return str(self.dtype).removeprefix("torch.")


class PackedModel(TensorModel):
    """A model in PyTorch that runs on one packed batch, which CUDA graphs can capture."""

    windows: tuple[int | None, ...] = (None,)
    """The attention windows of its layers, each once; None: of those that see all."""
    _sampler: StepSampler | None = None

    @property
    @abstractmethod
    def group_size(self) -> int:
        """Query heads that share a K/V head (GQA)."""

    @property
    def row_sampler(self) -> StepSampler | None:
        return self._sampler

    def use_plain_path(self) -> None:
        self.fast, self._sampler = False, None

    def settle_products(self, counts: Iterable[int]) -> None:
        """Choose matrix products whose rows are what they are alone among any of these counts."""

    @abstractmethod
    def forward_batch(self, batch: Batch, cache: TensorCache) -> BatchOutput:
        """Run one packed batch."""

    def run(self, feeds: Sequence[Feed], cache: TensorCache) -> BatchOutput:
        """Run a step as `forward` does, but return tensors.

        If a token's numbers overflow, PyTorch's attention spoils tokens that do not see it: numbers
        that are not finite make the forward run again, with a guard.
        """
        taps = self.taps_for(feeds)
        batch = make_batch(feeds, cache, self.group_size, self.dtype, self.windows, taps)
        output = self.forward_batch(batch, cache)
        if output.states is None or all_finite(output.states):
            return output
        return self.forward_batch(guarded(batch), cache)

    def forward(self, feeds: Sequence[Feed], cache: TensorCache) -> Forwarded:
        return self._for_sampler(self.run(feeds, cache))

    def _for_sampler(self, output: BatchOutput) -> Forwarded:
        """Logits and states come as arrays, unless a `StepSampler` reads logits on the device."""
        hidden = None if output.hidden is None else output.hidden.float()
        if isinstance(self.row_sampler, StepSampler):
            return Forwarded(output.logits, hidden)
        return Forwarded(on_host(output.logits), None if hidden is None else on_host(hidden))

    def step_forward(
        self, cache: TensorCache, limits: ExecutorLimits, step_sizes: Sequence[int] = ()
    ) -> StepForward:
        """Return a packed forward, or if `fast` one through graphs and pages.

        Graphs are captured and all kernels compiled now: no step waits for either.
        """
        if not self.fast:
            return super().step_forward(cache, limits, step_sizes)
        runner = GraphRunner(
            self.forward_batch,
            cache,
            limits.max_batch_size,
            step_sizes or limits.step_sizes,
            limits.max_text_len + limits.max_draft_len,
            CudaCapture(cache.data.device),
            limits.max_num_tokens,
            self.windows,
            self.taps,
        )
        self.settle_products(runner.token_counts | {*range(1, limits.max_batch_size + 1)})
        runner.capture_all()
        logits = runner.warm_up()
        if logits is None:  # the problem may be the kernels', which would fail without graphs too
            self.use_plain_path()
            return super().step_forward(cache, limits, step_sizes)
        self._warm_up_sampler(logits)
        most = runner.most_tokens
        self.graphs = "graphs" if runner.is_complete else f"graphs of up to {most} tokens"
        return partial(self._replayed, runner)

    def _replayed(self, runner: GraphRunner, feeds: Sequence[Feed]) -> Forwarded:
        return self._for_sampler(runner(feeds))

    def _warm_up_sampler(self, logits: Tensor) -> None:
        """Compile the sampler; if that fails, the host chooses tokens."""
        if self._sampler is not None:
            try:
                self._sampler.warm_up(logits)
            except Exception as error:  # of Triton, the driver, or no memory
                self._sampler = None
                reason = first_line(error)
                _log.warning("tokens are chosen on the host, which is slower: %s", reason)
