"""What travels between the server and its replicas: requests one way, steps the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from trtla.errors import TrtlaError, UsageError, sentence
from trtla.llm.text import Tokenizer
from trtla.llm.text_stream import StopStrings
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.request import Output, Request
from trtla.runtime.stats import ExecutorStats, RequestStats


@dataclass(frozen=True, slots=True)
class Opened:
    """What a replica says of its model."""

    limits: ExecutorLimits
    description: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a replica says of itself while it runs."""

    replica: str
    process: int
    stats: ExecutorStats


def packed(request: Request, begun: Sequence[int], left_ms: int | None) -> Request:
    """A request as it travels, for a text of which some tokens may be known.

    Args:
        left_ms: of its time; None: it has no limit.
    """
    sampling = replace(request.sampling, allotted_time_ms=left_ms)
    return replace(request, sampling=sampling, begun=tuple(begun), stop_check=None)


def unpacked(request: Request, request_id: int, tokenizer: Tokenizer | None) -> Request:
    """A request that has arrived, under an id of who decodes it."""
    check: Callable[[list[int]], bool] | None = None
    if request.sampling.stop and tokenizer is not None:
        stop = request.sampling.stop
        check = StopStrings(partial(tokenizer.stream, request.input_ids, stop))
    return replace(request, request_id=request_id, stop_check=check)


_UNCOUNTED = RequestStats()


def light(output: Output) -> Output:
    """An output as it travels: the counters, which grow with the text, go with the last one."""
    error = None if output.error is None else plain(output.error)
    stats = _UNCOUNTED if output.finish_reason is None else output.stats
    return replace(output, stats=stats, error=error)


def plain(error: BaseException) -> TrtlaError:
    """An error that can travel, whatever it holds."""
    if not isinstance(error, TrtlaError):
        return TrtlaError(sentence(error))
    kind = UsageError if isinstance(error, UsageError) else TrtlaError
    return kind(error.message, error.hint)
