"""Decodes what lines ask for: the batch is kept full, and little more than that is in memory."""

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
from trtla.batch.job import Job
from trtla.batch.journal import Counts, Journal, Record
from trtla.batch.lines import Ask, Line, Reader, Survey, parse
from trtla.errors import TrtlaError, sentence
from trtla.llm.engine_thread import Event
from trtla.llm.llm import LLM
from trtla.runtime.request import Request

_AHEAD = 4
"""Texts in flight for each place in the batch: who waits fills the places that become free."""
_COUNTED = ("steps", "accepted", "decoded")


@dataclass(frozen=True, slots=True)
class Labelling:
    """What all answers of a job have in common."""

    key: str
    """The key of the job: the same job gives the same ids."""
    created: int
    model: str

    def labels(self, ask: Ask) -> Labels:
        """The labels of the answer to a line; one whose custom_id is shared goes by its number."""
        what = f"id {ask.custom_id}" if ask.is_named else f"line {ask.number}"
        digest = hashlib.sha256(f"{self.key} {what}".encode()).hexdigest()
        return Labels(digest[:24], self.created, self.model, repeatable=True)


@dataclass(frozen=True, slots=True)
class _Work:
    ask: Ask
    generation: Generation
    writer: Writer

    @property
    def requests(self) -> list[Request]:
        return [answer.request for answer in self.generation.answers]


class Decoding:
    """Lines into records."""

    def __init__(self, llm: LLM, labelling: Labelling, log: Callable[[str], None]) -> None:
        self._llm, self._labelling = llm, labelling
        self._inbox: SimpleQueue[Sequence[Event]] = SimpleQueue()
        self._works: dict[int, _Work] = {}
        """By the requests that are in flight."""
        self._room = _AHEAD * llm.limits.max_batch_size
        llm.executor.log = log

    def records(self, requests: Iterable[Ask]) -> Iterator[Record]:
        """The records of lines as they finish; lines are taken when there is room for them."""
        waiting = iter(requests)
        try:
            more = True
            while more or self._works:
                while more and len(self._works) < self._room:
                    ask = next(waiting, None)
                    more = ask is not None
                    if ask is not None and (record := self._begin(ask)):
                        yield record
                if self._works:
                    yield from filter(None, map(self._take, self._inbox.get()))
        finally:
            self._llm.executor.cancel(self._works)

    def _begin(self, ask: Ask) -> Record | None:
        """Queue what a line asks for; where it is refused, its record."""
        try:
            work = self._prepared(ask)
        except ApiError as error:
            return self._failed(ask, error)
        self._works.update({request.request_id: work for request in work.requests})
        self._llm.executor.submit(work.requests, self._inbox.put)
        return None

    def _prepared(self, ask: Ask) -> _Work:
        if ask.body is None:
            raise ask.error or ApiError(400, "the line asks for nothing")
        check_name(ask.body.model, self._labelling.model, "--served-model-name")
        body = _seeded(ask.body, ask.custom_id or "")
        try:
            generation = Generation(answers_to(body, self._llm))
        except (ApiError, ImportError, MemoryError):  # the last two are not the line's fault
            raise
        except Exception as error:  # whatever a line brings, it ends no other
            raise ApiError(500, f"{sentence(error)} (this is a bug in trtla)") from None
        labels = self._labelling.labels(ask)
        return _Work(ask, generation, Writer(body, labels, generation, self._llm))

    def _take(self, event: Event) -> Record | None:
        """The record of an event's line, if that is finished."""
        request_id, what = event
        work = self._works.get(request_id)
        if work is None:
            return None
        if isinstance(what, BaseException):
            raise what
        try:
            work.writer.add(work.generation.add(request_id, what))
        except (ApiError, TrtlaError) as error:
            return self._give_up(work, error if isinstance(error, ApiError) else refused(error))
        if request_id not in work.generation.request_ids:
            del self._works[request_id]
        return self._answered(work) if work.generation.ended else None

    def _answered(self, work: _Work) -> Record:
        body = work.writer.whole()
        read, written = body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]
        line = self._line(work.ask, 200, body)
        stats = [one.stats for one in work.generation.done]
        own = (sum(getattr(one, name) for one in stats) for name in _COUNTED)
        return Record(work.ask.number, False, read, written, line, *own)

    def _give_up(self, work: _Work, error: ApiError) -> Record:
        """One choice failed: the line has, and the others are not waited for."""
        ids = [request.request_id for request in work.requests]
        self._llm.executor.cancel(ids)
        for one in ids:
            self._works.pop(one, None)
        return self._failed(work.ask, error)

    def _failed(self, ask: Ask, error: ApiError) -> Record:
        return Record(ask.number, True, 0, 0, self._line(ask, error.status, error.body))

    def _line(self, ask: Ask, status: int, body: Json) -> bytes:
        key = self._labelling.labels(ask).key
        answer = {"status_code": status, "request_id": f"req_{key}", "body": body}
        head = {"id": f"batch_req_{key}", "custom_id": ask.custom_id}
        return dumps({**head, "response": answer, "error": None})


def _seeded(body: ChatBody | CompletionBody, custom_id: str) -> ChatBody | CompletionBody:
    """A body without a seed gets one of its custom_id: each its own, and the same again."""
    if body.seed is not None:
        return body
    digest = hashlib.sha256(f"seed {custom_id}".encode()).digest()
    return body.model_copy(update={"seed": int.from_bytes(digest[:8], "big")})


@dataclass(slots=True)
class Figures:
    """What this process does for a job, and how fast."""

    before: int
    """Lines that were done when it began."""
    tokens: int = 0
    """Output tokens of the lines that it has finished."""
    _started: float = field(default_factory=time.monotonic)
    _ended: float | None = None

    def end(self) -> None:
        """The lines are done: time stands still from now on."""
        self._ended = time.monotonic()

    @property
    def seconds(self) -> float:
        return (self._ended or time.monotonic()) - self._started

    @property
    def tokens_per_s(self) -> float | None:
        """None: nothing was written."""
        return self.tokens / self.seconds if self.tokens else None

    def document(self) -> dict[str, Any]:
        """For --json."""
        return {
            "before": self.before, "seconds": self.seconds, "tokens_per_s": self.tokens_per_s,
        }  # fmt: skip

    def described(self, counts: Counts) -> str:
        speed = self.tokens_per_s
        return f"{counts.failed} failed" + ("" if speed is None else f", {speed:.1f} tokens/s")


@dataclass(frozen=True, slots=True)
class Task:
    """A job, what is done of it, and the file that it is of."""

    job: Job
    journal: Journal
    source: Path
    survey: Survey
    model: str
    """Its name in answers."""

    @property
    def labelling(self) -> Labelling:
        return Labelling(self.job.identity.key, self.job.created, self.model)

    def records(self, llm: LLM, log: Callable[[str], None]) -> Iterator[Record]:
        """Do the lines that the journal does not have; each is in it when it comes."""
        requests = (parse(line, self.survey.first) for line in self.left())
        return self.kept(Decoding(llm, self.labelling, log).records(requests))

    def kept(self, records: Iterable[Record]) -> Iterator[Record]:
        """Put records into the journal; of a line that comes twice the first."""
        for record in records:
            if record.number not in self.journal:
                self.journal.add(record)
                yield record

    def left(self) -> Iterator[Line]:
        """The lines that are not done."""
        changed = TrtlaError(
            f"{self.source} was changed while it was read",
            "leave it as it is, and begin anew with --force",
        )
        reader, found = Reader(self.source), self.survey
        for line in reader:
            # at once: what is in the journal is taken for answers to the lines of the survey
            if line.number > found.last or line.sum != found.sums[line.number]:
                raise changed
            if line.number not in self.journal:
                yield line
        if reader.digest != found.digest:
            raise changed
