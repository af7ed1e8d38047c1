"""The contract of both executors, and the record of requests that they recover from."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Generic, NamedTuple, Protocol, TypeVar

from trtla.errors import TrtlaError, UsageError
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.request import DraftMemory, Hypothesis, Output, Request
from trtla.runtime.stats import ExecutorStats, RequestStats
from trtla.settings.sampling import BeamSettings

ExecutorT = TypeVar("ExecutorT", bound="Executor")


def check_process(opened_in: int) -> None:
    """Refuse a model in a forked process, if a process with another id has opened it."""
    if os.getpid() != opened_in:
        raise TrtlaError(
            f"the model was opened in another process (pid {opened_in})",
            "open it in this one, or start processes with multiprocessing's spawn instead of fork",
        )


class Executor(ABC):
    """Continuous batching behind a few verbs. No threads: work happens inside `poll`.

    `enqueue` and other methods that take a request trust that `limits.check` has accepted it;
    `submit` checks and queues. `poll` works until there is something to report; an empty list means
    that nothing is in flight, or that `interrupted` returned True. `cancel` ends a request; its
    last output, with reason `cancelled`, comes with the next `poll`. `close` frees everything. One
    thread at a time may be inside.

    An executor belongs to the process that opened it: a fork has its memory, but neither the
    threads that compute nor the device.
    """

    def __init__(self, limits: ExecutorLimits, description: str, *, is_leader: bool = True) -> None:
        self._limits = limits
        self.description = description
        """The library, device and arithmetic that run the model, in a few words."""
        self.is_leader = is_leader
        """False in the ranks of an MPI run that only serve: they may only be closed."""
        self._closed = False
        self._process = os.getpid()
        self.interrupted: Callable[[], bool] = lambda: False
        """Called between forwards; True ends a `poll` early, and other work with an error."""
        self.shares_cores = False
        """True if forwards compute on the cores that other threads of this process run on."""

    @property
    def limits(self) -> ExecutorLimits:
        """The limits that requests must fit."""
        return self._limits

    def submit(self, request: Request) -> None:
        """Check a request and queue it; raises `UsageError` if it does not fit or its id is in
        use."""
        self._check_open()
        self._limits.check(request)
        self.enqueue(request)

    @abstractmethod
    def enqueue(self, request: Request) -> None:
        """Queue a request that fits the limits; raises `UsageError` if its id is in use."""

    @abstractmethod
    def poll(self, timeout: float | None = None) -> list[Output]:
        """Advance, and return the new outputs; `timeout` in seconds is for executors that wait.

        An exception that one request causes ends that request as `failed`; any other is raised. The
        next `poll` then continues all requests from what was committed, and reports all outputs of
        requests in flight once more, from their first token.
        """

    @abstractmethod
    def cancel(self, request_id: int) -> None:
        """End a request; unknown ids are ignored."""

    @abstractmethod
    def stats(self) -> ExecutorStats:
        """Return counters since the executor was opened."""

    def log_probs(self, request: Request, output_ids: Sequence[int]) -> list[float]:
        """Return the target's natural log probability of each of `output_ids`.

        Raises:
            UsageError: the executor computes none, or an id is outside the vocabulary.
            TrtlaError: the cache has no room for them, or the logits are not finite.
        """
        raise self._unable("gives no logits", "score")

    def beam_search(self, request: Request, settings: BeamSettings) -> list[Hypothesis]:
        """Return the hypotheses, best first; the request's sampling settings are ignored.

        Raises:
            UsageError: the executor has no beam search.
            TrtlaError: the cache has no room for the beams, or the logits are not finite.
        """
        raise self._unable("has no beams", "search")

    def step_seconds(self, tokens: int, sequences: int) -> float | None:
        """Return the expected seconds of a step of this size, if known."""
        return None

    def check_ranks(self) -> None:  # noqa: B027
        """Raise `RankLost` if another process that runs the model is known to have ended."""

    def use_memory(self, memory: DraftMemory) -> None:  # noqa: B027
        """Draft for the next requests from this memory; an empty one forgets all.

        Texts do not depend on it. TensorRT-LLM's drafters share no memory.

        Raises:
            UsageError: requests are in flight, or the memory was made for another model.
        """

    def add_texts(self, texts: Iterable[Sequence[int]]) -> None:
        """Add token ids of texts to draft from, such as a corpus.

        Raises:
            UsageError: the executor drafts from no texts, or an id is outside the vocabulary.
        """
        raise self._unable("drafts from no texts", "give a corpus")

    def kept_texts(self) -> list[tuple[int, ...]]:
        """Return the texts that are drafted from now: added ones and outputs.

        Raises:
            UsageError: the executor drafts from no texts.
        """
        raise self._unable("drafts from no texts", "save a corpus")

    def _unable(self, reason: str, verb: str) -> UsageError:
        return UsageError(f"{self.description} {reason}", f"{verb} with a torch engine")

    @abstractmethod
    def _release(self) -> None:
        """Free everything; called once."""

    def close(self) -> None:
        """Discard everything in flight; later calls raise, except another `close`.

        In a forked process nothing is freed: the threads that free it run in the parent.
        """
        if not self._closed:
            self._closed = True
            if self._process == os.getpid():
                self._release()

    def _check_open(self) -> None:
        check_process(self._process)
        if self._closed:
            raise TrtlaError("the executor is closed", "open the engine again")

    def __enter__(self: ExecutorT) -> ExecutorT:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Recorded(Protocol):
    """The counted part of a request in flight."""

    request: Request
    output_ids: list[int]
    stats: RequestStats


RecordedT = TypeVar("RecordedT", bound=Recorded)


class TokenCounts(NamedTuple):
    """Token counts of requests, as in `ExecutorStats`."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    accepted: int = 0

    def plus(self, sequence: Recorded) -> TokenCounts:
        """Add one request's counts; a prompt counts once it has output."""
        written = len(sequence.output_ids)
        read = len(sequence.request.given_ids) if written else 0
        return TokenCounts(
            self.prompt_tokens + read,
            self.new_tokens + written,
            self.accepted + sequence.stats.accepted,
        )


class RequestRecord(Generic[RecordedT]):
    """An executor's requests, and the outputs for the next `poll`.

    It stays valid after an exception anywhere in `poll`, and all else is rebuilt from it. A request
    that has ended stays until its last output has certainly been received.
    """

    def __init__(self) -> None:
        self._kept: tuple[dict[int, RecordedT], TokenCounts] = ({}, TokenCounts())
        """Requests by id in order of arrival, and the counts of earlier ones."""
        self.unfinished = False
        """A change has begun and not ended: only the record is valid."""
        self.new: list[Output] = []
        """Outputs that the next `poll` reports."""
        self.taken: list[int] = []
        """Ended requests whose last output the last `poll` has reported."""

    @property
    def requests(self) -> dict[int, RecordedT]:
        """Requests in flight by id, in order of arrival."""
        return self._kept[0]

    def counts(self) -> TokenCounts:
        """Return the counts of all requests so far; safe while another thread steps."""
        requests, counts = self._kept
        for request in tuple(requests.values()):
            counts = counts.plus(request)
        return counts

    def check_id(self, request: Request) -> None:
        """Refuse a request whose id is in use; ended ones free theirs."""
        if request.request_id in self.taken and not self.unfinished:
            self._forget_taken()
        if request.request_id in self.requests:
            raise UsageError(
                f"request id {request.request_id} is already in flight",
                "give each request its own id",
            )

    def begin(self, recover: Callable[[], None]) -> None:
        """Begin a change: `unfinished` until it ends. Recover first if the last one did not end."""
        if self.unfinished:
            recover()
        else:
            self._forget_taken()
            self.unfinished = True

    def _forget_taken(self) -> None:
        """Forget reported requests: the next call proves that their last outputs have arrived."""
        if self.taken:
            self.forget(self.taken)
            self.taken = []

    def forget(self, request_ids: Iterable[int]) -> None:
        """Forget these requests and keep their counts; unknown ids are ignored."""
        requests, counts = dict(self._kept[0]), self._kept[1]
        for request_id in request_ids:
            if request_id in requests:
                counts = counts.plus(requests.pop(request_id))
        self._kept = requests, counts

    def report(self) -> list[Output]:
        """Return the outputs at the end of a `poll`."""
        outputs, self.new = self.new, []
        self.taken = [output.request_id for output in outputs if output.finish_reason is not None]
        self.unfinished = False
        return outputs
