"""What travels through an executor: requests, outputs, and where an output ends.

`committed_prefix` decides how many of a step's tokens count. It runs before K/V commit, pool,
streaming and counters, so that none sees a token past the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from trtla.errors import TrtlaError
from trtla.runtime.draft import NO_DRAFT, Draft, Drafter, RecordedForward
from trtla.runtime.stats import RequestStats
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams


def committed_prefix(
    request: Request, output_ids: Sequence[int], new_tokens: Sequence[int]
) -> tuple[int, FinishReason | None]:
    """How many of `new_tokens` join the output, and why the output ends there, if it does.

    What ends a text, be it an end token, a stop token or the tokens that complete a stop string, is
    part of the output, and the reason also where it is the last allowed token. Where the
    target has no answer the output has failed, unless it ended before.
    """
    room = request.sampling.max_output_len - len(output_ids)
    for count, token in enumerate(new_tokens[:room], 1):
        if token == NO_TOKEN:
            return count - 1, "failed"
        if token in request.end_ids:
            return count, "end_id"
        if token in request.sampling.stop_ids:
            return count, "stop_words"
        # The ids are put together for stop strings only: the copy grows with the output.
        if request.stop_check and request.stop_check([*output_ids, *new_tokens[:count]]):
            return count, "stop_words"
    if len(new_tokens) >= room:
        return room, "length"
    return len(new_tokens), None


def is_text(request: Request, ids: Sequence[int], reason: FinishReason | None) -> bool:
    """Whether the last of an output's ids is text: it is none where it ended the output itself."""
    by_stop_token = reason == "stop_words" and ids[-1] in request.sampling.stop_ids
    return not (reason == "end_id" or by_stop_token)


NO_TOKEN = -1
"""In place of a token: the row's logits hold NaN or +infinity, or all of them are -infinity."""


def no_answer(label: str, place: int) -> TrtlaError:
    """The error of a request whose output token `place`, counted from 0, cannot be chosen."""
    return TrtlaError(
        f"{label}: the model's logits for output token {place} are not finite",
        "try --dtype float32 or bfloat16, whose range is wider; if that fails too, the checkpoint "
        "holds NaN or infinite weights: see trtla inspect",
    )


FinishReason = Literal["end_id", "stop_words", "length", "timed_out", "cancelled", "failed"]
"""Why a request ended, TensorRT-LLM's names in lower case; `failed` comes with an error."""

DrafterWatch = Callable[[Drafter, "Request"], "DraftRecorder"]
"""Given a request and its drafter before the first step, what records its drafts."""

StopCheck = Callable[[list[int]], bool]
"""Given all output ids so far, says whether the text up to the last one holds a stop string."""


@dataclass(frozen=True)  # without slots: what an encoder made of it goes when the request does
class Request:
    """One prompt and everything its decoding depends on."""

    request_id: int
    input_ids: tuple[int, ...]
    """What the output goes on from: the prompt, or the start token of an encoder-decoder."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    lookahead: LookaheadConfig | None = None
    """None: the default triple."""
    end_ids: frozenset[int] = frozenset()
    stop_check: StopCheck | None = None
    margins: bool = False
    """Ask for the target's top-2 logit margin at each emitted token."""
    logprobs: int | None = None
    """Ask for each output token's log probability, and the so many most probable tokens there."""
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

    expected_ids: tuple[int, ...] = ()
    """The output that is expected: drafts are taken from it, it never changes a text."""
    private: bool = False
    """Nothing of it is kept for other requests, and nothing of others is used for it: neither K/V
    blocks nor what drafters learn. The text stays the same."""
    space: int = 0
    """Only requests of the same space share anything: 0, or a number below 0."""
    begun: tuple[int, ...] = ()
    """Output tokens that are known already: a text that another executor of the same model began
    goes on behind them, and counts them in its length."""

    @property
    def label(self) -> str:
        return self.name or f"request {self.request_id}"

    @property
    def given_ids(self) -> tuple[int, ...]:
        """The prompt that was asked with, whichever part of the model reads it."""
        return self.input_ids if self.encoder_ids is None else self.encoder_ids

    @property
    def known_ids(self) -> tuple[int, ...]:
        """All text there is before the output, where drafts may come from."""
        return (*(self.encoder_ids or ()), *self.input_ids)


@dataclass(frozen=True, slots=True)
class TokenLogProb:
    """How probable an output token was: natural logarithms at temperature 1, without filters."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most probable tokens in its place with theirs, best first, of equal ones the lower id;
    those of probability 0 left out. A drawn token may be none of them."""


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
    `Executor.poll`."""
    accepted: int = 0
    """How many of `new_tokens`, counted from the first, were accepted drafts."""
    sources: tuple[str, ...] = ()
    """What proposed each accepted token, of `settings.drafting.PROPOSERS`; empty where no candidate
    tree drafts."""
    logprobs: tuple[TokenLogProb, ...] = ()
    """The log probability of each new token, when asked for."""


class DraftRecorder:
    """Keeps every forward of a request, the prefill first: what was drafted and what came of it."""

    def __init__(self, drafter: Drafter, request: Request) -> None:
        self.drafter, self.request = drafter, request
        self.forwards: list[RecordedForward] = []
        self._draft = NO_DRAFT

    def proposed(self, draft: Draft) -> None:
        """The drafter has proposed this."""
        self._draft = draft

    def observed(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        """The drafter has observed this; then the forward is over."""
        self.forwards.append(RecordedForward(self._draft, tuple(greedy), tuple(committed)))
        self._draft = NO_DRAFT


RecorderT = TypeVar("RecorderT", bound=DraftRecorder)


class RecorderWatch(Generic[RecorderT]):
    """Records every request that has it as its `watch`.

    Args:
        kind: the recorder's class.
    """

    def __init__(self, kind: Callable[[Drafter, Request], RecorderT]) -> None:
        self.recorders: list[RecorderT] = []
        """In the order of the requests."""
        self._kind = kind

    def __call__(self, drafter: Drafter, request: Request) -> RecorderT:
        self.recorders.append(self._kind(drafter, request))
        return self.recorders[-1]


class DrafterFactory(ABC):
    """Makes the drafters of an executor's requests, and holds what they share."""

    @abstractmethod
    def __call__(self, lookahead: LookaheadConfig, request: Request) -> Drafter:
        """The drafter of a request that is decoded with this triple.

        That of a private request shares nothing with any other, others what is of their space.
        """

    def add_texts(self, texts: Iterable[Sequence[int]]) -> None:  # noqa: B027
        """Take token ids of texts to draft from, such as a corpus; by default none is used."""

    def texts(self) -> list[tuple[int, ...]]:
        """The texts that are drafted from now: what was added, and outputs of ended requests."""
        return []

    def reset(self) -> None:  # noqa: B027
        """Begin anew with what is shared; the drafters that were made are not used again."""

    def fresh(self, options: DraftOptions | None = None) -> DrafterFactory:
        """One that has seen no request yet, and drafts with other options if these are given."""
        return self


class DraftMemory:
    """What the drafters of requests share, and learn from one request for the next: texts, rows of
    logits, chances, n-grams. Made where it is first used: `Executor.use_memory`.

    Args:
        options: what its requests are drafted for with; None: as the executor was opened.
    """

    def __init__(self, options: DraftOptions | None = None) -> None:
        self.options = options
        self.held: Any = None
        """The executor's own."""
        self.num_texts = 0
        """How many of the texts that were added to the executor are in it; maybe more are."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """New tokens, and the sum of their log probabilities."""

    tokens: tuple[int, ...]
    log_prob: float
    finished: bool
    """It ends with an end token."""
    parent: int = 0
    """The unfinished hypothesis of the step before that it continues, counted among those."""
