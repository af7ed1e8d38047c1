"""The contract of both executors, and the record of requests from which they recover."""

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
    """Refuse to use in a forked process what its parent, the process of this id, has opened."""
    if os.getpid() != opened_in:
        raise TrtlaError(
            f"the model was opened in another process (pid {opened_in})",
            "open it in this one, or start processes with multiprocessing's spawn instead of fork",
        )


class Executor(ABC):
    """Continuous batching behind a few verbs. No threads: work happens inside `poll`.

    `enqueue` and whatever else takes a request trusts that `limits.check` has let it pass; `submit`
    checks and queues. `poll` works
    until there is something to report; an empty list means that nothing is in flight, or that
    `interrupted` asked for it. `cancel` ends a request; its last output, with reason `cancelled`,
    comes with the next `poll`. `close` frees everything. One thread at a time may be inside.

    An executor belongs to the process that opened it: a fork has its memory, but neither the
    threads that compute nor the device.
    """

    def __init__(self, limits: ExecutorLimits, description: str, *, is_leader: bool = True) -> None:
        self._limits = limits
        self.description = description
        """What runs the model, in a few words: library, device, arithmetic."""
        self.is_leader = is_leader
        """False in the ranks of an MPI run that only serve: they may `close`, and nothing else."""
        self._closed = False
        self._process = os.getpid()
        self.interrupted: Callable[[], bool] = lambda: False
        """Asked between forwards; True ends a `poll` early, and any other work with an error."""

    @property
    def limits(self) -> ExecutorLimits:
        """What requests must fit into."""
        return self._limits

    def submit(self, request: Request) -> None:
        """Check a request and queue it; raises `UsageError` when it does not fit or its id is in
        use."""
        self._check_open()
        self._limits.check(request)
        self.enqueue(request)

    @abstractmethod
    def enqueue(self, request: Request) -> None:
        """Queue a request that fits the limits; raises `UsageError` when its id is in use."""

    @abstractmethod
    def poll(self, timeout: float | None = None) -> list[Output]:
        """Advance, and return the new outputs; `timeout` in seconds is for executors that wait.

        An exception that is one request's own fault ends it as `failed`; any other is raised. The
        next `poll` then goes on with all requests from what was committed, and reports all outputs
        of what is in flight once more, from each request's first token.
        """

    @abstractmethod
    def cancel(self, request_id: int) -> None:
        """End a request; unknown ids are ignored."""

    @abstractmethod
    def stats(self) -> ExecutorStats:
        """Counters since the executor was opened."""

    def log_probs(self, request: Request, output_ids: Sequence[int]) -> list[float]:
        """Natural logarithms of the target's probabilities, one for each of `output_ids`.

        Raises:
            UsageError: the executor gives none, or an id is outside the vocabulary.
            TrtlaError: the cache has no room for them, or the logits are not finite.
        """
        raise self._unable("gives no logits", "score")

    def beam_search(self, request: Request, settings: BeamSettings) -> list[Hypothesis]:
        """The best hypotheses, the best first; the request's sampling is not looked at.

        Raises:
            UsageError: the executor searches none.
            TrtlaError: the cache has no room for the beams, or the logits are not finite.
        """
        raise self._unable("has no beams", "search")

    def step_seconds(self, tokens: int, sequences: int) -> float | None:
        """What a step that feeds so many tokens of so many sequences may take; None: unknown."""
        return None

    def check_ranks(self) -> None:  # noqa: B027
        """Raise `RankLost` where another process that runs the model is known to have ended."""

    def use_memory(self, memory: DraftMemory) -> None:  # noqa: B027
        """Draft for the requests to come with what this memory holds; an empty one forgets all.

        Texts do not depend on it. TensorRT-LLM's drafters share nothing.

        Raises:
            UsageError: requests are in flight, or the memory was made for another model.
        """

    def add_texts(self, texts: Iterable[Sequence[int]]) -> None:
        """Take token ids of texts to draft from, such as a corpus.

        Raises:
            UsageError: the executor drafts from none, or an id is outside the vocabulary.
        """
        raise self._unable("drafts from no texts", "give a corpus")

    def kept_texts(self) -> list[tuple[int, ...]]:
        """The texts that are drafted from now: those that were added, and outputs.

        Raises:
            UsageError: the executor drafts from none.
        """
        raise self._unable("drafts from no texts", "save a corpus")

    def _unable(self, what: str, verb: str) -> UsageError:
        return UsageError(f"{self.description} {what}", f"{verb} with a torch engine")

    @abstractmethod
    def _release(self) -> None:
        """Free everything; called once."""

    def close(self) -> None:
        """Forget everything in flight; further calls raise, but for another `close`.

        In a forked process nothing is freed: what would free it runs in the other one.
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
    """What is counted of a request in flight."""

    request: Request
    output_ids: list[int]
    stats: RequestStats


RecordedT = TypeVar("RecordedT", bound=Recorded)


class TokenCounts(NamedTuple):
    """Tokens of requests, as in `ExecutorStats`."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    accepted: int = 0

    def plus(self, sequence: Recorded) -> TokenCounts:
        """With those of one request more; a prompt counts once it is answered."""
        written = len(sequence.output_ids)
        read = len(sequence.request.given_ids) if written else 0
        return TokenCounts(
            self.prompt_tokens + read,
            self.new_tokens + written,
            self.accepted + sequence.stats.accepted,
        )


class RequestRecord(Generic[RecordedT]):
    """An executor's requests, and what the next `poll` reports of them.

    It is what is certain after an exception anywhere in `poll`: all else is made again from it. A
    request that has ended stays until its last output was taken for certain.
    """

    def __init__(self) -> None:
        self._kept: tuple[dict[int, RecordedT], TokenCounts] = ({}, TokenCounts())
        """Requests by id, in the order in which they came, and the counts of earlier ones."""
        self.unfinished = False
        """A change has begun and not ended: nothing but the record is certain."""
        self.new: list[Output] = []
        """Outputs that the next `poll` reports."""
        self.taken: list[int] = []
        """Ended requests whose last output the last `poll` has reported."""

    @property
    def requests(self) -> dict[int, RecordedT]:
        """Those in flight by id, in the order in which they came."""
        return self._kept[0]

    def counts(self) -> TokenCounts:
        """The counts of all requests so far; safe while another thread steps."""
        requests, counts = self._kept
        for one in tuple(requests.values()):
            counts = counts.plus(one)
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
        """Begin a change: `unfinished` until it ends. If the last one has not, recover first."""
        if self.unfinished:
            recover()
        else:
            self._forget_taken()
            self.unfinished = True

    def _forget_taken(self) -> None:
        """The last outputs have arrived: whoever comes back for more had no exception between."""
        if self.taken:
            self.forget(self.taken)
            self.taken = []

    def forget(self, request_ids: Iterable[int]) -> None:
        """These are done with; unknown ones are ignored."""
        requests, counts = dict(self._kept[0]), self._kept[1]
        for request_id in request_ids:
            if request_id in requests:
                counts = counts.plus(requests.pop(request_id))
        self._kept = requests, counts

    def report(self) -> list[Output]:
        """The end of a `poll`: its outputs."""
        outputs, self.new = self.new, []
        self.taken = [one.request_id for one in outputs if one.finish_reason is not None]
        self.unfinished = False
        return outputs
