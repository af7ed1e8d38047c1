"""The base of both executors: their methods, and the record from which they recover."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Generic, NamedTuple, Protocol, TypeVar

from trtla.errors import TrtlaError, UsageError
from trtla.runtime.costs import CostPlan, CostTable
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.request import DraftMemory, Hypothesis, Output, Request
from trtla.runtime.stats import ExecutorStats, RequestStats
from trtla.settings.sampling import BeamSettings

ExecutorT = TypeVar("ExecutorT", bound="Executor")


def check_process(opened_in: int) -> None:
    """Refuse to use in a forked process what its parent has opened.

    Raises:
        TrtlaError: this is not the process of that id.
    """
    if os.getpid() != opened_in:
        raise TrtlaError(
            f"the model was opened in another process (pid {opened_in})",
            "open it in this one, or start processes with multiprocessing's spawn instead of fork",
        )


class Executor(ABC):
    """Continuous batching behind a few verbs. No threads: work happens inside `poll`.

    `submit` checks the request and raises `UsageError` without changing anything. `poll` works
    until there is something to report; an empty list means that nothing is in flight. `cancel` ends
    a request; its last output, with reason `cancelled`, comes with the next `poll`. `close` frees
    everything. One thread at a time may be inside. It is a context manager.

    An executor belongs to the process that opened it: a fork has its memory, but neither the
    threads that compute nor the device.
    """

    def __init__(self, limits: ExecutorLimits) -> None:
        self._limits = limits
        self._closed = False
        self._process = os.getpid()

    @property
    def limits(self) -> ExecutorLimits:
        """What requests must fit into."""
        return self._limits

    @property
    @abstractmethod
    def description(self) -> str:
        """What runs the model, in a few words: library, device, arithmetic."""

    @property
    def is_leader(self) -> bool:
        """False in the ranks of an MPI run that only serve: they may `close`, and nothing else."""
        return True

    @abstractmethod
    def submit(self, request: Request) -> None:
        """Queue a request."""

    @abstractmethod
    def poll(self, timeout: float | None = None) -> list[Output]:
        """Advance, and return the new outputs."""

    @abstractmethod
    def resend(self) -> None:
        """Outputs of the last `poll` may be lost.

        The next `poll` reports all outputs of what was in flight then once more, from each
        request's first token, as it does by itself after a `poll` that raised.
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
            UsageError: the executor gives none, or prompt and output do not fit.
        """
        raise self._unable("gives no logits", "score")

    def beam_search(self, request: Request, settings: BeamSettings) -> list[Hypothesis]:
        """The best hypotheses, the best first.

        Raises:
            UsageError: the executor searches none, or the request does not fit.
        """
        raise self._unable("has no beams", "search")

    def measure_costs(self, plan: CostPlan) -> CostTable:
        """Time forwards now.

        Raises:
            UsageError: the executor's forwards cannot be timed.
        """
        raise self._unable("cannot time single forwards", "measure")

    def kept_costs(self) -> CostTable | None:
        """What forwards cost, where that was measured before; None: it is not known."""
        return None

    def warm_up(self) -> None:  # noqa: B027
        """Do now what requests would have to wait for later; by default there is nothing."""

    def check_ranks(self) -> None:  # noqa: B027
        """Raise `RankLost` where another process that runs the model is known to have ended."""

    def use_memory(self, memory: DraftMemory) -> None:  # noqa: B027
        """Draft for the requests to come with what this memory holds; an empty one forgets all.

        Texts do not depend on it. TensorRT-LLM's drafters share nothing.

        Raises:
            UsageError: requests are in flight.
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
        """Let go of everything; called once."""

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

    def _check_new(self, request: Request, in_flight: Container[int]) -> None:
        """Refuse a request that cannot be taken, before anything changes."""
        self._check_open()
        self._limits.check(request)
        if request.request_id in in_flight:
            raise UsageError(
                f"request id {request.request_id} is already in flight",
                "give each request its own id",
            )

    def __enter__(self: ExecutorT) -> ExecutorT:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Decoded(Protocol):
    """What is counted of a request."""

    request: Request
    output_ids: list[int]
    stats: RequestStats


DecodedT = TypeVar("DecodedT", bound=Decoded)


class Counts(NamedTuple):
    """Tokens of requests, as in `ExecutorStats`."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    accepted: int = 0

    def plus(self, sequence: Decoded) -> Counts:
        """With those of one request more; a prompt counts once it is answered."""
        written = len(sequence.output_ids)
        read = len(sequence.request.given_ids) if written else 0
        return Counts(
            self.prompt_tokens + read,
            self.new_tokens + written,
            self.accepted + sequence.stats.accepted,
        )


_NONE = Counts()


@dataclass(frozen=True, slots=True)
class InFlight(Generic[DecodedT]):
    """Sequences by request id, in the order in which they came, and the counts of earlier ones.

    A sequence that has ended stays until its last output was taken for certain.
    """

    sequences: dict[int, DecodedT] = field(default_factory=dict)
    earlier: Counts = _NONE

    def counts(self) -> Counts:
        """Of all requests so far; safe beside a thread that steps."""
        counts = self.earlier
        for sequence in tuple(self.sequences.values()):
            counts = counts.plus(sequence)
        return counts

    def without(self, request_ids: Iterable[int]) -> InFlight[DecodedT]:
        """These are done with; unknown ones are ignored."""
        left, counts = dict(self.sequences), self.earlier
        for request_id in request_ids:
            if request_id in left:
                counts = counts.plus(left.pop(request_id))
        return InFlight(left, counts)


class RecoveringExecutor(Executor, Generic[DecodedT]):
    """An executor whose requests survive an exception anywhere in `poll`.

    Args:
        limits: what requests must fit into.
        stats: its counters; those of tokens come from the record.
    """

    def __init__(self, limits: ExecutorLimits, stats: ExecutorStats) -> None:
        super().__init__(limits)
        self._stats = stats
        self._in_flight: InFlight[DecodedT] = InFlight()
        self._unfinished = False
        """A change has begun and not ended: nothing but the record is certain."""
        self._new: list[Output] = []
        """Outputs that the next `poll` reports."""
        self._taken: list[int] = []
        """Ended requests whose last output the last `poll` has reported."""

    @abstractmethod
    def _recover(self) -> None:
        """Make all anew from the record, and report all of it again."""

    def stats(self) -> ExecutorStats:
        """Counters since the executor was opened, as they are now."""
        return replace(self._stats, **self._in_flight.counts()._asdict())

    def resend(self) -> None:
        """Outputs of the last `poll` may be lost: the next one reports all of them again."""
        self._unfinished = True

    def _check_submitted(self, request: Request) -> None:
        """Refuse a request that does not fit or whose id is in use; ended ones free theirs."""
        if request.request_id in self._taken and not self._unfinished:
            self._forget_taken()
        self._check_new(request, self._in_flight.sequences)

    def _begin(self) -> None:
        """Begin a change: `_unfinished` is False again when it has ended as it should."""
        if self._unfinished:
            self._recover()
        else:
            self._forget_taken()
            self._unfinished = True

    def _forget_taken(self) -> None:
        """The last outputs have arrived: who came back for more had no exception in between."""
        if self._taken:
            self._in_flight = self._in_flight.without(self._taken)
            self._taken = []

    def _report(self) -> list[Output]:
        """The end of a `poll`: its outputs."""
        outputs, self._new = self._new, []
        self._taken = [o.request_id for o in outputs if o.finish_reason is not None]
        self._unfinished = False
        return outputs

    def _release(self) -> None:
        """Let go of the requests."""
        self._in_flight = self._in_flight.without(self._in_flight.sequences)
