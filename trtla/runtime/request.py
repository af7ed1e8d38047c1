"""The data of an executor: requests, outputs, and the rule where an output ends.

`committed_prefix` decides how many of a step's tokens count. It runs before K/V commit, pool,
streaming and counters, so that none sees a token past the end.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from trtla.errors import TrtlaError, named
from trtla.runtime.draft import NO_DRAFT, Draft, Drafter, RecordedForward
from trtla.runtime.stats import HeadTotals, RequestStats
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    from trtla.runtime.grammar import GrammarStart


def committed_prefix(
    request: Request, output_ids: Sequence[int], new_tokens: Sequence[int]
) -> tuple[int, FinishReason | None]:
    """Return how many of `new_tokens` join the output, and the reason if it ends there.

    An end token, a stop token or the tokens that complete a stop string are part of the output, and
    they are the reason even if the last allowed token ends it as well. If the target has no answer,
    the output has failed, unless it ended before.
    """
    room = request.sampling.max_output_len - len(output_ids)
    for count, token in enumerate(new_tokens[:room], 1):
        if token == NO_TOKEN:
            return count - 1, "failed"
        if token in request.end_ids:
            return count, "end_id"
        if token in request.sampling.stop_ids:
            return count, "stop_words"
        # Concatenate for stop strings only: the copy grows with the output.
        if request.stop_check and request.stop_check([*output_ids, *new_tokens[:count]]):
            return count, "stop_words"
    if len(new_tokens) >= room:
        return room, "length"
    return len(new_tokens), None


def is_text(request: Request, ids: Sequence[int], reason: FinishReason | None) -> bool:
    """Return True if an output's last id is text, and not a token that ended it."""
    by_stop_token = reason == "stop_words" and ids[-1] in request.sampling.stop_ids
    return not (reason == "end_id" or by_stop_token)


NO_TOKEN = -1
"""A row's result if its logits hold NaN or +infinity, or are all -infinity."""


def no_answer(label: str, index: int) -> TrtlaError:
    """Return the error of a request whose output token `index`, from 0, cannot be chosen."""
    return TrtlaError(
        f"{label}: the model's logits for output token {index} are not finite",
        f"try {named('dtype')} float32 or bfloat16, whose range is wider; if that fails too, the "
        "checkpoint "
        "holds NaN or infinite weights: see trtla inspect",
    )


FinishReason = Literal["end_id", "stop_words", "length", "timed_out", "cancelled", "failed"]
"""The reason why a request ended, in TensorRT-LLM's names in lower case; `failed` has an error."""

DrafterWatch = Callable[[Drafter, "Request"], "DraftRecorder"]
"""Returns the recorder of a request's drafts, given its drafter, before the first step."""

StopCheck = Callable[[list[int]], bool]
"""Returns True if the text of all output ids so far holds a stop string."""


@dataclass(frozen=True)  # without slots: an encoder's output is freed together with the request
class Request:
    """One prompt and all settings that its decoding depends on."""

    request_id: int
    input_ids: tuple[int, ...]
    """The beginning of the decoder's text: the prompt, or an encoder-decoder's start token."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    lookahead: LookaheadConfig | None = None
    """None: the default triple."""
    end_ids: frozenset[int] = frozenset()
    stop_check: StopCheck | None = None
    grammar: GrammarStart | None = None
    """The grammar that the output follows; None: any text."""
    margins: bool = False
    """Report the target's top-2 logit margin of each output token."""
    logprobs: int | None = None
    """Report each output token's log probability, and this many most probable tokens."""
    name: str = ""
    """The request's name in errors, e.g. `line 3 of prompts.jsonl`."""
    adaptive: bool = False
    """Feed only nodes that pay in each step, up to the triple; the text stays the same."""
    drafter: DrafterSettings | None = None
    """None: the executor's."""
    watch: DrafterWatch | None = None
    """Records the drafts of every step."""
    encoder_ids: tuple[int, ...] | None = None
    """The prompt of an encoder-decoder, for the encoder; None for other models."""

    expected_ids: tuple[int, ...] = ()
    """The expected output, a source of drafts; it never changes a text."""
    private: bool = False
    """Share neither K/V blocks nor what drafters learn with other requests. The text stays the
    same."""
    space: int = 0
    """Only requests of the same space share state: 0, or a number below 0."""
    begun: tuple[int, ...] = ()
    """Output tokens of a text that another executor of the same model has begun; they count in its
    length."""

    @property
    def label(self) -> str:
        return self.name or f"request {self.request_id}"

    @property
    def changes_rows(self) -> bool:
        """Rows of logits are changed before tokens are chosen."""
        return self.grammar is not None or self.sampling.changes_rows

    @property
    def given_ids(self) -> tuple[int, ...]:
        """The request's prompt, whichever part of the model reads it."""
        return self.input_ids if self.encoder_ids is None else self.encoder_ids

    @property
    def known_ids(self) -> tuple[int, ...]:
        """All text before the output, which drafts may come from."""
        return (*(self.encoder_ids or ()), *self.input_ids)


@dataclass(frozen=True, slots=True)
class TokenLogProb:
    """An output token's natural log probability at temperature 1, without filters."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most probable tokens in its position with theirs, best first, ties by the lower id;
    without those of probability 0. A drawn token may be missing from them."""


@dataclass(frozen=True, slots=True)
class Output:
    """One step's result for one request; `finish_reason` is set on its last output."""

    request_id: int
    new_tokens: tuple[int, ...]
    finish_reason: FinishReason | None
    stats: RequestStats
    """The request's counters so far: the executor's own object, for reading only."""
    margins: tuple[float, ...] = ()
    error: TrtlaError | None = None
    """The error of a request that failed; other requests continue."""
    start: int = 0
    """Output tokens before these. An output that starts before known ones is a repetition: see
    `Executor.poll`."""
    accepted: int = 0
    """The number of accepted drafts at the beginning of `new_tokens`."""
    sources: tuple[str, ...] = ()
    """The proposer of each accepted token, from `settings.drafting.PROPOSERS`; empty without a
    candidate tree."""
    logprobs: tuple[TokenLogProb, ...] = ()
    """The log probability of each new token, if requested."""
    at: float = field(default_factory=time.perf_counter, compare=False)
    """The time when the step ended, by time.perf_counter: a reader may come to it later."""


class DraftRecorder:
    """Records every forward of a request, the prefill first: its draft and its outcome."""

    def __init__(self, drafter: Drafter, request: Request) -> None:
        self.drafter, self.request = drafter, request
        self.forwards: list[RecordedForward] = []
        self._draft = NO_DRAFT

    def proposed(self, draft: Draft) -> None:
        """Take the drafter's proposal."""
        self._draft = draft

    def observed(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        """Take the drafter's observation, which ends the forward."""
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
    """Makes the drafters of an executor's requests, and holds the state that they share."""

    @abstractmethod
    def __call__(self, lookahead: LookaheadConfig, request: Request) -> Drafter:
        """Return the drafter of a request that is decoded with this triple.

        A private request's drafter shares nothing, another one's shares state within its space.
        """

    def add_texts(self, texts: Iterable[Sequence[int]]) -> None:  # noqa: B027
        """Add token ids of texts to draft from, such as a corpus; ignored by default."""

    def texts(self) -> list[tuple[int, ...]]:
        """Return the texts that are drafted from now: added ones, and outputs of ended requests."""
        return []

    def heads(self) -> dict[str, HeadTotals]:
        """Return the work of trained heads so far, by their paths."""
        return {}

    def reset(self) -> None:  # noqa: B027
        """Discard the shared state; earlier drafters are not used again."""

    def fresh(self, options: DraftOptions | None = None) -> DrafterFactory:
        """Return a factory without requests so far, with other options if these are given."""
        return self


class DraftMemory:
    """The state that drafters share and learn from one request for the next: texts, rows of logits,
    chances, n-grams. `Executor.use_memory` creates it on first use.

    Args:
        options: for drafting its requests; None: those that the executor was opened with.
    """

    def __init__(self, options: DraftOptions | None = None) -> None:
        self.options = options
        self.held: Any = None
        """The executor's own state."""
        self.num_texts = 0
        """Texts added to the executor that it holds at least."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """New tokens, and the sum of their log probabilities."""

    tokens: tuple[int, ...]
    log_prob: float
    finished: bool
    """It ends with an end token."""
    parent: int = 0
    """The index of the unfinished hypothesis of the step before that it continues."""
