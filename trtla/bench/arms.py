"""What is compared: the protocol of an arm, what one decoding tells, and the arms of our engine.

Peers are in trtla.bench.peers and trtla.bench.llama_cpp. All arms get token ids and give token
ids: no arm pays for text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from trtla.data.prompt_sets import Ids
from trtla.runtime.request import FinishReason
from trtla.runtime.stats import ExecutorStats
from trtla.settings.drafting import LOOKAHEAD, NO_DRAFTER, DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    from trtla.llm.llm import LLM, Completion

AR = "ar"
"""The arm that all others are compared with: the engine without lookahead."""
LOOKUP_TOKENS = (3, 5, 10, 20)
"""The settings of prompt lookup that are tried; the fastest on the first batch is measured."""


@dataclass(frozen=True, slots=True)
class Run:
    """What decoding one batch gave, or the sum over several batches."""

    outputs: tuple[Ids, ...]
    wall_s: float
    first_s: tuple[float, ...]
    """Seconds from the start to each request's first token."""
    last_s: tuple[float, ...]
    """Seconds from the start to each request's last token."""
    steps: int
    """Forwards after the prompt pass, summed over requests."""
    fed: int | None
    """Tokens fed in those steps."""
    forwards: int
    forward_s: float | None
    """Seconds inside the forwards; None where they are not measured."""
    peak_bytes: int = 0
    weight_bytes: int | None = None
    """Of weights that a forward reads, where the arm knows; else the model's in the cell's type.
    The compiled forward holds float16 weights as they are also where it computes in float32."""
    accepted_lengths: tuple[Sequence[int], ...] | None = None
    """Accepted drafts of each step, per request; None where the arm does not tell."""
    reasons: tuple[FinishReason | None, ...] = ()
    """Why each output ended; empty where the arm does not report it."""

    @property
    def output_tokens(self) -> int:
        """All tokens written."""
        return sum(map(len, self.outputs))


class Arm(Protocol):
    """One way of decoding."""

    name: str
    own: bool
    """Whether sampled text must equal that of `ar`: our noise depends on seed and position."""

    @property
    def setting(self) -> str | None:
        """What the arm chose for itself."""

    def takes(self, batch_size: int) -> bool:
        """Whether it can decode such a batch."""

    def warm_up(self, prompts: Sequence[Ids], sampling: Sequence[SamplingParams]) -> None:
        """Decode untimed, and choose what there is to choose."""

    def decode(self, prompts: Sequence[Ids], sampling: Sequence[SamplingParams]) -> Run:
        """Decode one batch."""


class EngineArm:
    """Our engine with one drafter for all requests; None is the engine's own triple."""

    setting = None

    def __init__(
        self, llm: LLM, triple: Lookahead | None, drafter: DrafterSettings = LOOKAHEAD
    ) -> None:
        self.name = drafter.name if triple is None else f"lookahead {triple}"
        if triple == AUTOREGRESSIVE or drafter.drafter == NO_DRAFTER.drafter:
            self.name, drafter = AR, NO_DRAFTER
        self.own = not drafter.rejection  # which draws otherwise
        self._llm, self._triple, self._drafter = llm, triple, drafter

    def takes(self, batch_size: int) -> bool:
        """Whether the engine is made for such a batch."""
        return batch_size <= self._llm.limits.max_batch_size

    def warm_up(self, prompts: Sequence[Ids], sampling: Sequence[SamplingParams]) -> None:
        """Decode untimed."""
        self.decode(prompts, sampling)

    def decode(self, prompts: Sequence[Ids], sampling: Sequence[SamplingParams]) -> Run:
        """Decode one batch, all in flight at once."""
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        done: dict[int, Completion] = {}
        before = replace(self._llm.stats())
        start = time.perf_counter()
        given = (list(prompts), list(sampling), self._triple)
        for chunk in self._llm.stream(*given, drafter=self._drafter):
            last[chunk.index] = time.perf_counter() - start
            if chunk.token_ids:
                first.setdefault(chunk.index, last[chunk.index])
            if chunk.completion is not None:
                done[chunk.index] = chunk.completion
        wall_s = time.perf_counter() - start
        order = range(len(prompts))
        times = (wall_s, tuple(first[i] for i in order), tuple(last[i] for i in order))
        run = _run([done[i] for i in order], times, before, self._llm.stats())
        return run if run.weight_bytes else replace(run, weight_bytes=_engine_bytes(self._llm))


def _engine_bytes(llm: LLM) -> int:
    """Of a TensorRT-LLM engine, whose executor does not tell."""
    import torch

    from trtla.runtime.models.llama import weight_bytes
    from trtla.runtime.models.load import resolve_dtype

    checkpoint = llm.engine.config.pretrained_config
    dtype = resolve_dtype(checkpoint.dtype, checkpoint.dtype, torch.device("cpu"))
    return weight_bytes(checkpoint, dtype, fp8=checkpoint.fp8)


def _run(
    done: Sequence[Completion],
    times: tuple[float, tuple[float, ...], tuple[float, ...]],
    before: ExecutorStats,
    after: ExecutorStats,
) -> Run:
    fed = [c.stats.fed - len(c.input_ids) for c in done if c.stats.fed is not None]
    accepted = [c.stats.accepted_lengths for c in done]
    known = tuple(lengths for lengths in accepted if lengths is not None)
    return Run(
        tuple(c.output_ids for c in done),
        *times,
        steps=sum(c.stats.steps for c in done),
        fed=sum(fed) if len(fed) == len(done) else None,
        forwards=after.steps - before.steps,
        forward_s=None if after.forward_s is None else after.forward_s - (before.forward_s or 0.0),
        weight_bytes=after.weight_bytes,
        accepted_lengths=known if len(known) == len(done) else None,
        reasons=tuple(c.finish_reason for c in done),
    )


def engine_arms(
    llm: LLM, triples: Sequence[Lookahead], drafters: Sequence[DrafterSettings] = ()
) -> list[Arm]:
    """`ar`, the triples of lookahead alone, then other drafters and chains; none twice."""
    alone = (LOOKAHEAD.drafter, NO_DRAFTER.drafter)
    arms: list[Arm] = [EngineArm(llm, triple) for triple in (AUTOREGRESSIVE, *triples)]
    arms += [EngineArm(llm, None, one) for one in drafters if one.drafter not in alone]
    return list({arm.name: arm for arm in arms}.values())
