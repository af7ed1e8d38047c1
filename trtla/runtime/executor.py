"""What every executor takes and gives: requests, outputs, limits, statistics and the protocol.

Plain integers and strings; nothing here knows tensors, tokenizers or which executor is behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol

from trtla import mpi
from trtla.drafting import LOOKAHEAD, DrafterSettings, check_drafts_itself
from trtla.errors import TrtlaError, UsageError
from trtla.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.runtime.drafters.gamma_policy import DraftTotals
from trtla.runtime.drafters.options import DraftOptions
from trtla.runtime.trtllm_settings import TrtllmSettings

if TYPE_CHECKING:
    from trtla.build.engine import Engine
    from trtla.runtime.limits import ExecutorLimits

FinishReason = Literal["end_id", "stop_words", "length", "timed_out", "cancelled", "failed"]
"""Why a request ended, TensorRT-LLM's names in lower case; `failed` comes with an error."""

StopCheck = Callable[[list[int]], bool]
"""Given all output ids so far, says whether the text up to the last one holds a stop string."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request chooses its tokens and where it ends.

    Order of the filters: temperature, top_k, top_p. Temperature 0 is argmax. `seed` fixes both the
    noise of sampling, keyed by absolute position, and the initial lookahead window.

    Raises:
        UsageError: a value is out of its range.
    """

    max_output_len: int = 32
    temperature: float = 0.0
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    allotted_time_ms: int | None = None
    """Milliseconds after which the request ends as it is, waiting included; None: no limit."""

    def __post_init__(self) -> None:
        for name, ok, rule in (
            ("max_output_len", self.max_output_len >= 1, "at least 1"),
            ("temperature", 0.0 <= self.temperature < float("inf"), "at least 0"),
            ("top_k", self.top_k >= 0, "at least 0 (0 keeps all tokens)"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            ("seed", 0 <= self.seed < 2**63, "at least 0 and below 2**63"),
            ("stop", all(self.stop), "made of non-empty texts"),
            ("allotted_time_ms", (self.allotted_time_ms or 1) >= 1, "at least 1"),
        ):
            if not ok:
                flag = name.replace("_", "-")
                raise UsageError(f"{name} is {getattr(self, name)!r}", f"--{flag} must be {rule}")

    @property
    def greedy(self) -> bool:
        """True when every token is the argmax."""
        return self.temperature == 0.0 or self.top_k == 1


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and everything its decoding depends on."""

    request_id: int
    input_ids: tuple[int, ...]
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

    @property
    def label(self) -> str:
        """The name errors use."""
        return self.name or f"request {self.request_id}"


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
    step_lengths: list[int] = field(default_factory=list)
    """Committed tokens per forward, the prompt pass first; they add up to the output."""

    @property
    def tokens_per_step(self) -> float:
        """S, the step compression: 1 + accepted / steps; 1.0 before the first step."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0


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


@dataclass(slots=True)
class ExecutorStats:
    """Counters of an executor since it was opened."""

    steps: int = 0
    """Forwards of the model, over all requests in flight."""
    prompt_tokens: int = 0
    new_tokens: int = 0
    fed: int | None = 0
    """None, as in RequestStats, where it is not told; `drafted` likewise."""
    drafted: int | None = 0
    accepted: int = 0
    forward_s: float = 0.0
    """Seconds inside the model's forwards, device synchronised."""
    max_in_flight: int = 0
    weight_bytes: int | None = None
    """Of weights that a forward reads; None where it is not told."""
    draft_models: DraftTotals = field(default_factory=DraftTotals)
    """What draft models did, summed over them."""


class Executor(Protocol):
    """Continuous batching behind seven verbs. No threads: work happens inside `poll`.

    `submit` checks the request and raises `UsageError` without changing anything. `poll` works
    until there is something to report; an empty list means that nothing is in flight. `cancel` ends
    a request; its last output, with reason `cancelled`, comes with the next `poll`. `close` frees
    everything.
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
    *,
    lookahead: LookaheadConfig | None = None,
    device: str = "auto",
    dtype: str = "auto",
    max_batch_size: int | None = None,
    trtllm: TrtllmSettings | None = None,
    draft_options: DraftOptions | None = None,
    drafter: DrafterSettings | None = None,
    draft_engines: Mapping[str, Engine] | None = None,
) -> Executor:
    """Open the executor that the engine was built for.

    Args:
        engine: an engine directory, or one made in memory from a Hugging Face folder.
        lookahead: the server's triple; None takes the engine's own.
        device: auto, cpu or cuda (cuda:1 ...), for the torch executor.
        dtype: auto (the engine's), float32, bfloat16 or float16, for the torch executor.
        max_batch_size: at most the engine's; None takes the engine's.
        trtllm: settings of TensorRT-LLM's executor; None takes its defaults.
        draft_options: how lookahead drafts on the torch executor; None does what TensorRT-LLM does.
        drafter: what drafts, for the torch executor; None is lookahead.
        draft_engines: draft models by the path that `draft:PATH` names.

    Raises:
        UsageError: triple, device, dtype, batch size, settings or options do not fit the engine.
        TrtlaError: the engine's backend cannot run here.
    """
    if engine.backend == "tensorrt-llm":
        from trtla.runtime.trtllm_start import open_trtllm_executor, refuse_torch_choices

        refuse_torch_choices(engine, device, dtype, draft_options or DraftOptions())
        check_drafts_itself(drafter or LOOKAHEAD, engine.name)
        return open_trtllm_executor(
            engine,
            lookahead=lookahead,
            max_batch_size=max_batch_size,
            settings=trtllm or TrtllmSettings(),
        )
    _check_torch(engine, trtllm)
    from trtla.runtime.torch_start import open_torch_executor

    return open_torch_executor(
        engine,
        lookahead=lookahead,
        device=device,
        dtype=dtype,
        max_batch_size=max_batch_size,
        draft_options=draft_options,
        drafter=drafter,
        draft_engines=draft_engines,
    )


def _check_torch(engine: Engine, trtllm: TrtllmSettings | None) -> None:
    """Refuse what only TensorRT-LLM has."""
    if trtllm not in (None, TrtllmSettings()):
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
