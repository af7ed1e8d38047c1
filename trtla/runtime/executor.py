"""What every executor takes and gives: requests, outputs, limits, statistics and the protocol.

Plain integers and strings; nothing here knows tensors, tokenizers or which executor is behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol

from trtla import mpi
from trtla.errors import TrtlaError, UsageError
from trtla.lookahead import AUTOREGRESSIVE, LookaheadConfig, check_request, refuse_auto
from trtla.runtime.drafters.options import DraftOptions

if TYPE_CHECKING:
    from trtla.build.engine import Engine

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


REBUILD_LONGER = "rebuild with a larger --max-seq-len"


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """What an executor accepts. `max_text_len` bounds prompt + output."""

    max_batch_size: int
    max_input_len: int
    max_text_len: int
    max_num_tokens: int
    vocab_size: int
    lookahead: LookaheadConfig
    """The server's triple; (1,1,0) on a plain engine."""
    greedy_only: bool = False
    """True where sampling settings would be ignored in silence."""
    fixed_triples: bool = False
    """True where every step feeds the whole triple, so that no request can be adaptive."""
    text_len_hint: str = REBUILD_LONGER
    """What to change when prompt + output do not fit, beside asking for less output."""

    def check(self, request: Request) -> None:
        """Refuse a request that does not fit, before anything is queued.

        Raises:
            UsageError: the prompt is empty or too long, prompt + output do not fit, a token id is
                outside the vocabulary, the lookahead triple exceeds the server's, or sampling or
                adaptive steps are asked of an executor that has none.
        """
        length, name = len(request.input_ids), request.label
        if not length:
            raise UsageError(f"{name} has an empty prompt", "give at least one token")
        if length > self.max_input_len:
            raise UsageError(
                f"{name} has a prompt of {length} tokens, above max_input_len {self.max_input_len}",
                "shorten the prompt, or rebuild with a larger --max-input-len",
            )
        wanted = length + request.sampling.max_output_len
        if wanted > self.max_text_len:
            raise UsageError(
                f"{name} needs {length} prompt + {request.sampling.max_output_len} output tokens = "
                f"{wanted}, above max_seq_len {self.max_text_len}",
                f"lower --max-output-len, or {self.text_len_hint}",
            )
        self._check_sampling(request)
        bad = next((i for i in request.input_ids if not 0 <= i < self.vocab_size), None)
        if bad is not None:
            raise UsageError(
                f"{name} holds token id {bad}, outside the vocabulary of {self.vocab_size}",
                "check that tokenizer and model belong together",
            )
        if request.lookahead is not None:
            check_request(request.lookahead, self.lookahead, name)
        if request.adaptive and self.fixed_triples:
            raise refuse_auto(name)

    def _check_sampling(self, request: Request) -> None:
        """The C++ lookahead layer takes the argmax whatever is asked, also for (1,1,0) requests."""
        if self.greedy_only and not request.sampling.greedy:
            raise UsageError(
                f"{request.label} has temperature {request.sampling.temperature:g}, but lookahead "
                "decoding in TensorRT-LLM is greedy only and ignores sampling in silence",
                "use --temperature 0, an engine built with --lookahead 1,1,0, or --backend torch",
            )


@dataclass(frozen=True, slots=True)
class TrtllmSettings:
    """How TensorRT-LLM's executor runs an engine; names and defaults of its run.py.

    Raises:
        UsageError: a value is out of its range.
    """

    kv_cache_free_gpu_memory_fraction: float = 0.9
    """Share of the GPU memory left after loading that the K/V cache takes."""
    kv_cache_enable_block_reuse: bool = False
    """Share blocks between requests with the same beginning."""
    enable_chunked_context: bool = False
    """Let prompts be longer than max_num_tokens."""
    scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] = "guaranteed_no_evict"

    def __post_init__(self) -> None:
        share = self.kv_cache_free_gpu_memory_fraction
        if not 0.0 < share <= 1.0:
            raise UsageError(
                f"kv_cache_free_gpu_memory_fraction is {share}",
                "--kv-cache-free-gpu-memory-fraction must be above 0 and at most 1",
            )


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
) -> Executor:
    """Open the executor that the engine was built for.

    Args:
        engine: an engine directory, or one made in memory from a Hugging Face folder.
        lookahead: the server's triple; None takes the engine's own.
        device: auto, cpu or cuda (cuda:1 ...), for the torch executor.
        dtype: auto (the engine's), float32, bfloat16 or float16, for the torch executor.
        max_batch_size: at most the engine's; None takes the engine's.
        trtllm: settings of TensorRT-LLM's executor; None takes its defaults.
        draft_options: how the torch executor drafts; None does what TensorRT-LLM does.

    Raises:
        UsageError: triple, device, dtype, batch size, settings or options do not fit the engine.
        TrtlaError: the engine's backend cannot run here.
    """
    if engine.backend == "tensorrt-llm":
        from trtla.runtime.trtllm_start import open_trtllm_executor, refuse_torch_choices

        refuse_torch_choices(engine, device, dtype, draft_options or DraftOptions())
        return open_trtllm_executor(
            engine,
            lookahead=lookahead,
            max_batch_size=max_batch_size,
            settings=trtllm or TrtllmSettings(),
        )
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
    from trtla.runtime.torch_executor import open_torch_executor

    return open_torch_executor(
        engine,
        lookahead=lookahead,
        device=device,
        dtype=dtype,
        max_batch_size=max_batch_size,
        draft_options=draft_options,
    )
