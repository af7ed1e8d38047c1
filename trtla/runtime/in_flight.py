"""The requests in flight and the counts of ended ones: the record that recovery starts from.

It changes in single steps of the interpreter only: an entry more in the dictionary, an output more
in a sequence's record, or all of it replaced by a new object. An interrupt comes before or after.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from trtla.runtime.executor import Request, RequestStats


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
