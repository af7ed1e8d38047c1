"""What every executor takes and gives: requests, outputs, limits, statistics and the protocol.

Plain integers and strings; nothing here knows tensors, tokenizers or which executor is behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol

from trtla import mpi
from trtla.arguments import real, texts, whole
from trtla.drafting import DrafterSettings, check_draft_place, check_drafts_itself
from trtla.errors import TrtlaError, UsageError
from trtla.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.runtime.drafters.gamma_policy import DraftTotals
from trtla.runtime.executor_options import ENGINE_OPTIONS, TRTLLM_DEFAULTS, ExecutorOptions
from trtla.runtime.positions import accepted_lengths, accepted_per_pos
from trtla.runtime.trtllm_settings import TrtllmSettings

if TYPE_CHECKING:
    from trtla.build.engine import Engine
    from trtla.runtime.draft import Drafter
    from trtla.runtime.limits import ExecutorLimits

FinishReason = Literal["end_id", "stop_words", "length", "timed_out", "cancelled", "failed"]
"""Why a request ended, TensorRT-LLM's names in lower case; `failed` comes with an error."""

DrafterWatch = Callable[["Drafter", "Request"], "Drafter"]
"""Given a request and its drafter before the first step, gives the one to use: itself, or what
passes its drafts on as they are and looks at them."""

_MOST_TOP_K = 2**31 - 1
"""No vocabulary is larger, and executors take C ints."""
_LEAST_TOP_P = 5e-324  # the smallest number above 0
_MOST_TIME_MS = 2**53
"""Exact as a float, and some 285 000 years."""

StopCheck = Callable[[list[int]], bool]
"""Given all output ids so far, says whether the text up to the last one holds a stop string."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request chooses its tokens and where it ends.

    Order of the filters: temperature, top_k, top_p. Temperature 0 is argmax. `seed` fixes both the
    noise of sampling, keyed by absolute position, and the initial lookahead window.

    Raises:
        UsageError: a value has another type, or is out of its range.
    """

    max_output_len: int = 32
    temperature: float = 0.0
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all, and so does any k of at least the vocabulary's
    size."""
    top_p: float = 1.0
    seed: int = 0
    stop: str | Sequence[str] = ()
    """Texts that end an output, kept as a tuple; a text alone stands for a list of one."""
    allotted_time_ms: int | None = None
    """Milliseconds after which the request ends as it is, waiting included; None: no limit."""

    def __post_init__(self) -> None:
        positive, share = "a whole number, at least 1", "a number, above 0 and at most 1"
        top_k = whole("top_k", self.top_k, "a whole number, at least 0 (0: all)", 0, None)
        for name, value in (
            ("max_output_len", whole("max_output_len", self.max_output_len, positive, 1)),
            ("temperature", real("temperature", self.temperature, "a number, at least 0", 0.0)),
            ("top_k", min(top_k, _MOST_TOP_K)),
            ("top_p", real("top_p", self.top_p, share, _LEAST_TOP_P, 1.0)),
            ("seed", whole("seed", self.seed, "a whole number, at least 0 and below 2**63", 0)),
            ("stop", texts("stop", self.stop, "made of non-empty texts")),
        ):
            object.__setattr__(self, name, value)
        if self.allotted_time_ms is not None:
            time_ms = whole("allotted_time_ms", self.allotted_time_ms, positive, 1, _MOST_TIME_MS)
            object.__setattr__(self, "allotted_time_ms", time_ms)

    @property
    def greedy(self) -> bool:
        """True when every token is the argmax."""
        return self.temperature == 0.0 or self.top_k == 1


@dataclass(frozen=True)  # without slots: what an encoder made of it goes when the request does
class Request:
    """One prompt and everything its decoding depends on."""

    request_id: int
    input_ids: tuple[int, ...]
    """What the output goes on from: the prompt, or the start token of an encoder-decoder."""
    sampling: SamplingParams = SamplingParams()
    lookahead: LookaheadConfig | None = None
    """None: the server's triple."""
    end_ids: frozenset[int] = frozenset()
    stop_check: StopCheck | None = None
    margins: bool = False
    """Ask for the target's top-2 logit margin at each emitted token."""
    name: str = ""
    """How errors call this request, e.g. `line 3 of prompts.jsonl`."""
    adaptive: bool = False
    """Feed only what pays in each step, the triple being the limit; the text stays the same."""
    drafter: DrafterSettings | None = None
    """None: the executor's."""
    watch: DrafterWatch | None = None
    """Looks at what is drafted in every step."""
    encoder_ids: tuple[int, ...] | None = None
    """The prompt of an encoder-decoder, which the encoder reads; None for other models."""

    @property
    def label(self) -> str:
        """The name errors use."""
        return self.name or f"request {self.request_id}"

    @property
    def given_ids(self) -> tuple[int, ...]:
        """The prompt that was asked with, whichever part of the model reads it."""
        return self.input_ids if self.encoder_ids is None else self.encoder_ids

    @property
    def known_ids(self) -> tuple[int, ...]:
        """All text there is before the output, where drafts may come from."""
        return (*(self.encoder_ids or ()), *self.input_ids)


@dataclass(slots=True)
class RequestStats:
    """Counters of one request; definitions as in the metrics section of docs/algorithm.md.

    The token of the prompt pass counts in no step. `drafted` are candidate tokens that were fed for
    verification (the window is not), `accepted` those of them that became output. TensorRT-LLM does
    not tell what it feeds: `fed` and `drafted` are None there.
    """

    lookahead: LookaheadConfig = AUTOREGRESSIVE
    """The triple that the request is decoded with."""
    drafter: str = "lookahead"
    """What drafts, a chain's names with commas between."""
    steps: int = 0
    fed: int | None = 0
    drafted: int | None = 0
    accepted: int = 0
    reused_tokens: int = 0
    """Prompt tokens that were not fed, since an earlier text's blocks held them (block reuse)."""
    step_lengths: list[int] = field(default_factory=list)
    """Committed tokens per forward, the prompt pass first; they add up to the output."""

    @property
    def tokens_per_step(self) -> float:
        """S, the step compression: 1 + accepted / steps; 1.0 before the first step."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0

    @property
    def accepted_lengths(self) -> tuple[int, ...] | None:
        """Accepted drafts of each step; None where TensorRT-LLM reports several steps as one."""
        return accepted_lengths(self.step_lengths, self.steps, self.accepted)

    @property
    def accepted_per_pos(self) -> list[float] | None:
        """Item i: share of steps whose draft was accepted at depth i + 1; None as above."""
        return accepted_per_pos([self.accepted_lengths])


@dataclass(frozen=True, slots=True)
class Output:
    """What one step brought for one request; `finish_reason` is set on its last output."""

    request_id: int
    new_tokens: tuple[int, ...]
    finish_reason: FinishReason | None
    stats: RequestStats
    """The request's counters so far: the executor's own object, read it, do not change it."""
    margins: tuple[float, ...] = ()
    error: TrtlaError | None = None
    """Why it failed, for finish_reason `failed`; other requests go on."""
    start: int = 0
    """Output tokens before these. An output that starts before what is known comes again: see
    `Executor.resend`."""
    accepted: int = 0
    """How many of `new_tokens`, counted from the first, were accepted drafts."""


@dataclass(slots=True)
class ExecutorStats:
    """Counters of an executor since it was opened."""

    steps: int = 0
    """Forwards of the model, over all requests in flight."""
    prompt_tokens: int = 0
    """Of all prompts that were answered; those that block reuse spared count too."""
    new_tokens: int = 0
    fed: int | None = 0
    """None, as in RequestStats, where it is not told; `drafted` likewise."""
    drafted: int | None = 0
    accepted: int = 0
    forward_s: float | None = 0.0
    """Seconds inside the model's forwards, device synchronised; None where it is not reported."""
    max_in_flight: int = 0
    weight_bytes: int | None = None
    """Of weights that a forward reads; None where it is not told."""
    draft_models: DraftTotals = field(default_factory=DraftTotals)
    """What draft models did, summed over them."""


class Executor(Protocol):
    """Continuous batching behind a few verbs. No threads: work happens inside `poll`.

    `submit` checks the request and raises `UsageError` without changing anything. `poll` works
    until there is something to report; an empty list means that nothing is in flight. `cancel` ends
    a request; its last output, with reason `cancelled`, comes with the next `poll`. `close` frees
    everything. One thread at a time may be inside.
    """

    @property
    def limits(self) -> ExecutorLimits:
        """What requests must fit into."""

    @property
    def description(self) -> str:
        """What runs the model, in a few words: library, device, arithmetic."""

    @property
    def is_leader(self) -> bool:
        """False in the ranks of an MPI run that only serve: they may `close`, and nothing else."""

    def submit(self, request: Request) -> None:
        """Queue a request."""

    def poll(self, timeout: float | None = None) -> list[Output]:
        """Advance, and return the new outputs."""

    def resend(self) -> None:
        """Say that outputs of the last `poll` may be lost.

        The next `poll` reports all outputs of what was in flight then once more, from each
        request's first token, as it does by itself after a `poll` that raised.
        """

    def cancel(self, request_id: int) -> None:
        """End a request; unknown ids are ignored."""

    def stats(self) -> ExecutorStats:
        """Counters since the executor was opened."""

    def close(self) -> None:
        """Release memory and devices; further calls raise."""

    def __enter__(self) -> Executor: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def open_executor(
    engine: Engine,
    options: ExecutorOptions = ENGINE_OPTIONS,
    draft_engines: Mapping[str, Engine] | None = None,
) -> Executor:
    """Open the executor that the engine was built for.

    Args:
        engine: an engine directory, or one made in memory from a Hugging Face folder.
        options: what differs from the engine's own.
        draft_engines: draft models by the path that `draft:PATH` names, for the torch executor.

    Raises:
        UsageError: an option does not fit the engine.
        TrtlaError: the engine's backend cannot run here.
    """
    trtllm_engine = engine.name if engine.backend == "tensorrt-llm" else None
    place = (options.draft_device, options.draft_dtype)
    check_draft_place(*place, bool(draft_engines), trtllm_engine)
    if trtllm_engine is not None:
        from trtla.runtime.trtllm_start import open_trtllm_executor

        check_drafts_itself(options.drafter, engine.name)
        return open_trtllm_executor(engine, options)
    _check_torch(engine, options.trtllm)
    from trtla.runtime.torch_start import open_torch_executor

    return open_torch_executor(engine, options, draft_engines or {})


def _check_torch(engine: Engine, trtllm: TrtllmSettings) -> None:
    """Refuse what only TensorRT-LLM has."""
    if trtllm != TRTLLM_DEFAULTS:
        raise UsageError(
            f"{engine.name} is a torch engine, which has no settings of TensorRT-LLM",
            "leave --kv-cache-..., --enable-chunked-context and --scheduler-policy away",
        )
    if mpi.world_size() > 1:
        raise UsageError(
            f"{engine.name} is a torch engine, which runs in one process, and "
            f"{mpi.world_size()} run",
            "start it without mpirun",
        )
