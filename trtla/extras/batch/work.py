"""Decoding of lines: the batch is kept full, with little more than that in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

from trtla.api.answers import Json, Labels, Writer, dumps
from trtla.api.errors import ApiError, refused
from trtla.api.generation import Generation, answers_to, check_name
from trtla.errors import TrtlaError, sentence
from trtla.extras.batch.job import Job
from trtla.extras.batch.journal import Journal, Record
from trtla.extras.batch.lines import Asked, LineRequest, Lines
from trtla.llm.decoder import Event
from trtla.llm.llm import LLM
from trtla.runtime.request import Request

_AHEAD = 4
"""Texts in flight for each slot of the batch, so that free slots are filled at once."""


@dataclass(frozen=True, slots=True)
class Labelling:
    """The labels that all answers of a job share."""

    key: str
    """The key of the job: the same job gives the same ids."""
    created: int
    model: str

    def labels(self, request: LineRequest) -> Labels:
        """Return the labels of a line's answer."""
        digest = hashlib.sha256(f"{self.key} {request.number}".encode()).hexdigest()
        return Labels(digest[:24], self.created, self.model, repeatable=True)


@dataclass(frozen=True, slots=True)
class _Work:
    line: LineRequest
    generation: Generation
    writer: Writer

    @property
    def requests(self) -> list[Request]:
        return [answer.request for answer in self.generation.answers]


class Decoding:
    """Decodes lines into records."""

    def __init__(self, llm: LLM, labelling: Labelling, log: Callable[[str], None]) -> None:
        self._llm, self._labelling = llm, labelling
        self._inbox: SimpleQueue[Sequence[Event]] = SimpleQueue()
        self._works: dict[int, _Work] = {}
        """By requests in flight."""
        self._room = _AHEAD * llm.limits.max_batch_size
        llm.executor.log = log

    def records(self, requests: Iterable[LineRequest]) -> Iterator[Record]:
        """Yield the records of lines as they finish; lines are taken when there is room for
        them."""
        waiting = iter(requests)
        try:
            more = True
            while more or self._works:
                while more and len(self._works) < self._room:
                    line = next(waiting, None)
                    more = line is not None
                    if line is not None and (record := self._begin(line)):
                        yield record
                if self._works:
                    yield from filter(None, map(self._take, self._inbox.get()))
        finally:
            self._llm.executor.cancel(self._works)

    def _begin(self, line: LineRequest) -> Record | None:
        """Queue a line's texts, or return the record of its refusal."""
        try:
            work = self._prepared(line)
        except ApiError as error:
            return self._failed(line, error)
        self._works.update({request.request_id: work for request in work.requests})
        self._llm.executor.submit(work.requests, self._inbox.put, whole=True)
        return None

    def _prepared(self, line: LineRequest) -> _Work:
        if line.body is None:
            raise line.error or ApiError(400, "the line asks for nothing")
        check_name(line.body.model, self._labelling.model, "--served-model-name")
        body = _seeded(line.body, line.custom_id or "")
        make, write = _makers(line)
        try:
            generation = Generation(make(body, self._llm))
        except (ApiError, ImportError, MemoryError):  # the last two are not the line's fault
            raise
        except Exception as error:  # an error of one line ends no other
            raise ApiError(500, f"{sentence(error)} (this is a bug in trtla)") from None
        labels = self._labelling.labels(line)
        return _Work(line, generation, write(body, labels, generation, self._llm))

    def _take(self, event: Event) -> Record | None:
        """Return the record of an event's line, if that is finished."""
        request_id, output = event
        work = self._works.get(request_id)
        if work is None:
            return None
        if isinstance(output, BaseException):
            raise output
        try:
            work.writer.add(work.generation.add(request_id, output))
        except (ApiError, TrtlaError) as error:
            return self._give_up(work, error if isinstance(error, ApiError) else refused(error))
        if request_id not in work.generation.request_ids:
            del self._works[request_id]
        return self._answered(work) if work.generation.ended else None

    def _answered(self, work: _Work) -> Record:
        body = work.writer.whole()
        read, written = work.writer.tokens
        data = self._line(work.line, 200, body)
        stats = [done.stats for done in work.generation.done]
        steps, decoded = sum(each.steps for each in stats), sum(each.decoded for each in stats)
        return Record(work.line.number, False, read, written, steps, decoded, data)

    def _give_up(self, work: _Work, error: ApiError) -> Record:
        """Record the failure of a line after one choice, and cancel the others."""
        ids = [request.request_id for request in work.requests]
        self._llm.executor.cancel(ids)
        for request_id in ids:
            self._works.pop(request_id, None)
        return self._failed(work.line, error)

    def _failed(self, line: LineRequest, error: ApiError) -> Record:
        data = self._line(line, error.status, error.body)
        return Record(line.number, True, 0, 0, 0, 0, data)

    def _line(self, line: LineRequest, status: int, body: Json) -> bytes:
        key = self._labelling.labels(line).key
        answer = {"status_code": status, "request_id": f"req_{key}", "body": body}
        head = {"id": f"batch_req_{key}", "custom_id": line.custom_id}
        return dumps({**head, "response": answer, "error": None})


def _makers(line: LineRequest) -> tuple[Callable[..., Any], Callable[..., Writer]]:
    """Return what makes a line's texts, and what writes its answer."""
    if line.response is None:
        return answers_to, Writer
    from trtla.api.responses.answer import ResponseWriter, response_answers

    return response_answers, partial(ResponseWriter, line.response)


def _seeded(body: Asked, custom_id: str) -> Asked:
    """Give a body without a seed one from its custom_id: distinct, and the same every time."""
    if body.seed is not None:
        return body
    digest = hashlib.sha256(f"seed {custom_id}".encode()).digest()
    return body.model_copy(update={"seed": int.from_bytes(digest[:8], "big")})


@dataclass(frozen=True, slots=True)
class Task:
    """A job, its journal, and its input."""

    job: Job
    journal: Journal
    lines: Lines

    @property
    def labelling(self) -> Labelling:
        return Labelling(self.job.key, self.job.created, self.job.identity["served_model_name"])

    @property
    def left(self) -> Iterator[int]:
        """The numbers of the lines that are not done."""
        return (number for number in self.lines.data if number not in self.journal)
