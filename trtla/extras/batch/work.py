"""Decoding of lines: the batch is kept full, with little more than that in memory."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from trtla.api.answers import Json, Labels, Writer, dumps
from trtla.api.errors import ApiError, refused
from trtla.api.generation import Generation, answers_to, check_name
from trtla.api.protocol import ChatBody, CompletionBody
from trtla.errors import TrtlaError, sentence
from trtla.extras.batch.job import Job
from trtla.extras.batch.journal import Counts, Journal, Record
from trtla.extras.batch.lines import Line, LineRequest, Reader, Survey, parse
from trtla.llm.decoder import Event
from trtla.llm.llm import LLM
from trtla.runtime.request import Request

_AHEAD = 4
"""Texts in flight for each slot of the batch, so that free slots are filled at once."""
_COUNTED = ("steps", "accepted", "decoded")


@dataclass(frozen=True, slots=True)
class Labelling:
    """The labels that all answers of a job share."""

    key: str
    """The key of the job: the same job gives the same ids."""
    created: int
    model: str

    def labels(self, request: LineRequest) -> Labels:
        """Return the labels of a line's answer; one with a shared custom_id goes by its number."""
        named = f"id {request.custom_id}" if request.is_named else f"line {request.number}"
        digest = hashlib.sha256(f"{self.key} {named}".encode()).hexdigest()
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
        try:
            generation = Generation(answers_to(body, self._llm))
        except (ApiError, ImportError, MemoryError):  # the last two are not the line's fault
            raise
        except Exception as error:  # an error of one line ends no other
            raise ApiError(500, f"{sentence(error)} (this is a bug in trtla)") from None
        labels = self._labelling.labels(line)
        return _Work(line, generation, Writer(body, labels, generation, self._llm))

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
        read, written = body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]
        data = self._line(work.line, 200, body)
        stats = [done.stats for done in work.generation.done]
        counts = (sum(getattr(each, name) for each in stats) for name in _COUNTED)
        return Record(work.line.number, False, read, written, data, *counts)

    def _give_up(self, work: _Work, error: ApiError) -> Record:
        """Record the failure of a line after one choice, and cancel the others."""
        ids = [request.request_id for request in work.requests]
        self._llm.executor.cancel(ids)
        for request_id in ids:
            self._works.pop(request_id, None)
        return self._failed(work.line, error)

    def _failed(self, line: LineRequest, error: ApiError) -> Record:
        return Record(line.number, True, 0, 0, self._line(line, error.status, error.body))

    def _line(self, line: LineRequest, status: int, body: Json) -> bytes:
        key = self._labelling.labels(line).key
        answer = {"status_code": status, "request_id": f"req_{key}", "body": body}
        head = {"id": f"batch_req_{key}", "custom_id": line.custom_id}
        return dumps({**head, "response": answer, "error": None})


def _seeded(body: ChatBody | CompletionBody, custom_id: str) -> ChatBody | CompletionBody:
    """Give a body without a seed one from its custom_id: distinct, and the same every time."""
    if body.seed is not None:
        return body
    digest = hashlib.sha256(f"seed {custom_id}".encode()).digest()
    return body.model_copy(update={"seed": int.from_bytes(digest[:8], "big")})


@dataclass(slots=True)
class Figures:
    """This process's work on a job, and its speed."""

    before: int
    """Lines finished before it began."""
    tokens: int = 0
    """Output tokens of the lines that it has finished."""
    _started: float = field(default_factory=time.monotonic)
    _ended: float | None = None

    def end(self) -> None:
        """Stop the clock: the lines are done."""
        self._ended = time.monotonic()

    @property
    def seconds(self) -> float:
        return (self._ended or time.monotonic()) - self._started

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens a second; None: nothing was written."""
        return self.tokens / self.seconds if self.tokens else None

    def document(self) -> dict[str, Any]:
        """Return the figures for --json."""
        return {
            "before": self.before, "seconds": self.seconds, "tokens_per_s": self.tokens_per_s,
        }  # fmt: skip

    def described(self, counts: Counts) -> str:
        speed = self.tokens_per_s
        return f"{counts.failed} failed" + ("" if speed is None else f", {speed:.1f} tokens/s")


@dataclass(frozen=True, slots=True)
class Task:
    """A job, its journal, and its input file."""

    job: Job
    journal: Journal
    source: Path
    survey: Survey
    model: str
    """The model's name in answers."""

    @property
    def labelling(self) -> Labelling:
        return Labelling(self.job.identity.key, self.job.created, self.model)

    def records(self, llm: LLM, log: Callable[[str], None]) -> Iterator[Record]:
        """Do the lines that the journal lacks; yield each after it is kept."""
        requests = (parse(line, self.survey.first) for line in self.left())
        return self.kept(Decoding(llm, self.labelling, log).records(requests))

    def kept(self, records: Iterable[Record]) -> Iterator[Record]:
        """Add records to the journal; a repeated line counts once."""
        for record in records:
            if record.number not in self.journal:
                self.journal.add(record)
                yield record

    def left(self) -> Iterator[Line]:
        """Yield the lines that are not done."""
        changed = TrtlaError(
            f"{self.source} was changed while it was read",
            "leave it as it is, and start again with --force",
        )
        reader, before = Reader(self.source), self.survey
        for line in reader:
            # Check at once: the journal's records must answer the lines of the survey.
            if line.number > before.last or line.sum != before.sums[line.number]:
                raise changed
            if line.number not in self.journal:
                yield line
        if reader.digest != before.digest:
            raise changed
