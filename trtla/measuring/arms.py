"""Arms that are compared, the runs that they return, and the arms of our engine.

All arms get and return token ids, so that no arm pays for text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtla.results.metrics import Metrics, fed_in_steps
from trtla.runtime.request import DraftMemory
from trtla.runtime.stats import DraftTotals
from trtla.settings.drafting import LOOKAHEAD, NO_DRAFTER, DrafterSettings, DraftOptions
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    from trtla.data.prompt_sets import Ids
    from trtla.llm.llm import LLM, Completion

AR = "ar"
"""The arm that all others are compared with: the engine without lookahead."""
Options = Mapping[str, Any]
"""Arguments of a peer's call, such as {"prompt_lookup_num_tokens": 10}."""
Decode = Callable[[Sequence["Ids"], Sequence[SamplingParams], Options], "ArmRun"]
"""A peer's decoding of a batch with options."""
Note = Callable[[str], None]
"""Reports to the user in one sentence."""


@dataclass(slots=True, kw_only=True)
class ArmRun(Metrics):
    """Metrics of one batch, or of several added up, with figures that only benchmarks need."""

    first_s: tuple[float, ...]
    """Seconds from the start to each request's first token."""
    last_s: tuple[float, ...]
    """Seconds from the start to each request's last token."""
    forwards: int
    forward_s: float | None = None
    """Seconds inside the forwards."""
    steps_each: tuple[int, ...] = ()
    """The steps of each request; `steps` is their sum."""
    fed_each: tuple[int | None, ...] = ()
    """The tokens that each request fed in its steps; `fed` is their sum."""
    draft_model: DraftTotals | None = None
    """Totals of the draft model, if the arm has one."""
    peak_bytes: int = field(default=0, metadata={"join": max})
    weight_bytes: int | None = field(default=None, metadata={"join": max})
    """Bytes of the weights that a forward reads; None: those of the model in the cell's type.
    The compiled forward keeps float16 weights as they are even if it computes in float32."""

    @property
    def ms_per_token(self) -> float | None:
        after = self.output_tokens - self.prompts
        waited = sum(last - first for first, last in zip(self.first_s, self.last_s, strict=True))
        return 1000.0 * waited / after if after else None

    @property
    def ttft_ms(self) -> float:
        return 1000.0 * sum(self.first_s) / len(self.first_s)

    @property
    def host_ms_per_step(self) -> float | None:
        """Milliseconds a forward's step spends outside the forward."""
        if self.forward_s is None or not self.forwards:
            return None
        return 1000.0 * (self.time_s - self.forward_s) / self.forwards


class Arm:
    """One way of decoding."""

    name: str
    same_draws = False
    """True: sampled text must equal that of `ar`, since the noise depends on seed and position."""

    setting: str | None = None
    """The setting that the arm chose for itself."""
    weight_type: str | None = None
    """The type of most weights in memory, such as bfloat16, FP8 or Q4_1; None: unknown."""
    compute_type: str | None = None
    """The type of the arithmetic; None: unknown, or chosen product by product."""

    @property
    def label(self) -> str:
        """The name that distinguishes it from arms of the same name."""
        return self.name

    @property
    def key(self) -> str:
        """Everything that its decodings depend on, as the key of a journal."""
        return self.label

    def takes(self, batch_size: int) -> bool:
        """Return whether it can decode a batch of this size."""
        raise NotImplementedError

    def warm_up(self, prompts: Sequence[Ids], sampling: Sequence[SamplingParams]) -> None:
        """Decode untimed, and choose the setting if there are several."""
        self.decode(prompts, sampling)

    def begin_round(self) -> None:
        """Forget the texts decoded so far, since each round decodes the same ones again."""

    def decode(self, prompts: Sequence[Ids], sampling: Sequence[SamplingParams]) -> ArmRun:
        """Decode one batch, all prompts in flight at once if the arm can do that."""
        raise NotImplementedError


class EngineArm(Arm):
    """Our engine with one drafter for all requests.

    Its draft memory serves its own later batches of the round, and no other arm.

    Args:
        triple: None: that with which the `LLM` was opened.
        name: None: made from drafter and triple; all plain decoding is named `ar`.
        options: options of drafts; None: those with which the model was opened.
    """

    def __init__(
        self,
        llm: LLM,
        triple: Lookahead | None,
        drafter: DrafterSettings = LOOKAHEAD,
        name: str | None = None,
        options: DraftOptions | None = None,
    ) -> None:
        if name is None and (triple == AUTOREGRESSIVE or drafter.drafter == NO_DRAFTER.drafter):
            name, drafter = AR, NO_DRAFTER
        self.name = name or (drafter.name if triple is None else f"lookahead {triple}")
        self.same_draws = not drafter.rejection  # which draws otherwise
        self._llm, self._triple, self._drafter = llm, triple, drafter
        self._options = options
        stats, stored = llm.stats(), llm.engine.config.pretrained_config
        self.weight_type = stats.weight_type or ("FP8" if stored.fp8 else stored.dtype)
        self.compute_type = stats.compute_type or stored.dtype
        self.begin_round()

    @property
    def label(self) -> str:
        return f"{self.name} ({self.setting})" if self.setting else self.name

    @property
    def key(self) -> str:
        return f"{self.label} {self._triple} {self._drafter} {self._options}"

    def takes(self, batch_size: int) -> bool:
        return batch_size <= self._llm.limits.max_batch_size

    def begin_round(self) -> None:
        self._memory = DraftMemory(self._options)

    def use_memory(self) -> None:
        """Let the executor draft from the memory of this arm."""
        self._llm.executor.call(lambda executor: executor.use_memory(self._memory))

    def decode(self, prompts: Sequence[Ids], sampling: Sequence[SamplingParams]) -> ArmRun:
        from trtla.llm.arguments import prompt_requests

        first: dict[int, float] = {}
        last: dict[int, float] = {}
        done: dict[int, Completion] = {}
        self.use_memory()
        before = deepcopy(self._llm.stats())
        start = time.perf_counter()
        work = (list(prompts), list(sampling), self._triple, self._drafter)
        for chunk in self._llm.decode(prompt_requests(*work), whole=True):
            last[chunk.index] = time.perf_counter() - start
            if chunk.token_ids:
                first.setdefault(chunk.index, last[chunk.index])
            if chunk.completion is not None:
                done[chunk.index] = chunk.completion
        time_s = time.perf_counter() - start
        order, after, forward_s = range(len(prompts)), self._llm.stats(), None
        if after.forward_s is not None:
            forward_s = after.forward_s - (before.forward_s or 0.0)
        drafts = after.draft_models.since(before.draft_models)
        return ArmRun.of(
            [done[i] for i in order],
            time_s,
            first_s=tuple(first[i] for i in order),
            last_s=tuple(last[i] for i in order),
            steps_each=tuple(done[i].stats.steps for i in order),
            fed_each=tuple(fed_in_steps(done[i]) for i in order),
            draft_model=drafts if self._drafter.draft_model else None,
            heads=after.heads_since(before) if self._drafter.head else None,
            forwards=after.steps - before.steps,
            forward_s=forward_s,
            weight_bytes=after.weight_bytes or _engine_bytes(self._llm),
        )


@dataclass(slots=True)
class Meter:
    """Counter and timer of a peer's forwards, of which the first is the prefill."""

    forwards: int = 0
    fed: int = 0
    seconds: float = 0.0
    _start: float = 0.0

    def begin(self, tokens: int) -> None:
        """Note the beginning of a forward of this many tokens."""
        self.fed += tokens if self.forwards else 0
        self.forwards += 1
        self._start = time.perf_counter()

    def end(self) -> None:
        """Note the end of the forward."""
        self.seconds += time.perf_counter() - self._start

    def run(self, outputs: Sequence[Ids], forward_s: float | None, **more: Any) -> ArmRun:
        """Return the run that these forwards decoded."""
        steps = self.forwards - 1
        return ArmRun(
            outputs=tuple(outputs),
            steps=steps * len(outputs),
            steps_each=(steps,) * len(outputs),
            fed=self.fed,
            forwards=self.forwards,
            forward_s=forward_s,
            **more,
        )


class PeerArm(Arm):
    """A peer on the same weights, decoding as the fastest of its choices.

    Args:
        batching: it decodes several prompts together.
    """

    def __init__(
        self,
        name: str,
        decode_with: Decode,
        choices: Sequence[Options] = ({},),
        *,
        weight_type: str | None = None,
        compute_type: str | None = None,
        batching: bool = False,
    ) -> None:
        self.name, self._decode_with, self._choices = name, decode_with, choices
        self._batching = batching
        self.weight_type, self.compute_type = weight_type, compute_type
        self._choose(choices[0])

    def _choose(self, options: Options) -> None:
        self._chosen = options
        self.setting = ", ".join(f"{key}={value}" for key, value in options.items()) or None

    def takes(self, batch_size: int) -> bool:
        return batch_size == 1 or self._batching

    def warm_up(self, prompts: Sequence[Ids], sampling: Sequence[SamplingParams]) -> None:
        super().warm_up(prompts, sampling)
        if len(self._choices) > 1:
            runs = [self._decode_with(prompts, sampling, options) for options in self._choices]
            speeds = [run.tokens_per_s for run in runs]
            self._choose(self._choices[speeds.index(max(speeds))])

    def decode(self, prompts: Sequence[Ids], sampling: Sequence[SamplingParams]) -> ArmRun:
        return self._decode_with(prompts, sampling, self._chosen)


def _engine_bytes(llm: LLM) -> int:
    """The bytes of a TensorRT-LLM engine's weights, which its executor does not report."""
    from trtla.formats.config import DTYPE_BYTES
    from trtla.formats.support import plain_bytes
    from trtla.runtime.models.load import resolve_dtype

    checkpoint = llm.engine.config.pretrained_config
    dtype = resolve_dtype(checkpoint.dtype, checkpoint.dtype, "cpu")
    return plain_bytes(checkpoint, DTYPE_BYTES[dtype], fp8=checkpoint.fp8)
