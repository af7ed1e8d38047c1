"""Decodes what lines ask for: the batch is kept full, and little more than that is in memory."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from trtla.api.answers import Json, Labels, Writer, dumps
from trtla.api.asking import chat_answers, check_name, completion_answers
from trtla.api.errors import ApiError, refused
from trtla.api.protocol import ChatBody, CompletionBody
from trtla.batch.journal import Record
from trtla.batch.lines import Ask
from trtla.errors import TrtlaError, sentence
from trtla.llm.answer import Answer
from trtla.llm.llm import LLM
from trtla.llm.shared_executor import Caller
from trtla.runtime.request import Output

_AHEAD = 4
"""Texts in flight for each place in the batch: who waits fills the places that become free."""
_MOST_FAILURES = 3
"""Steps that fail one after another until the job ends."""
_SEEDS = 2**63


@dataclass(frozen=True, slots=True)
class Labelling:
    """What all answers of a job have in common."""

    key: str
    """Of the job: the same job gives the same ids."""
    created: int
    model: str

    def labels(self, ask: Ask) -> Labels:
        """Of the answer to a line; lines whose custom_id is not theirs alone go by their number."""
        what = f"id {ask.custom_id}" if ask.is_named else f"line {ask.number}"
        digest = hashlib.sha256(f"{self.key} {what}".encode()).hexdigest()
        return Labels(digest[:24], self.created, self.model, repeatable=True)


class _Work:
    """A line whose choices are growing; what `api.answers.Growing` asks for is here."""

    def __init__(self, ask: Ask, answers: list[Answer]) -> None:
        self.ask, self.answers = ask, answers
        self.started, self.first, self.tokens = time.monotonic(), None, 0
        self.growing = {answer.request.request_id: answer for answer in answers}
        self.writer: Writer

    started: float
    first: float | None
    tokens: int
    steps = accepted = decoded = 0
    """Of the choices that have ended."""

    def lacks(self, output: Output) -> bool:
        """Whether it goes on where its choice ends so far: a step may have failed."""
        answer = self.growing.get(output.request_id)
        return answer is not None and output.start >= answer.length

    def add(self, output: Output) -> None:
        """Take what came for a choice, if it is not known already.

        Raises:
            ApiError: the choice failed.
        """
        if not self.lacks(output):
            return
        answer = self.growing[output.request_id]
        if output.finish_reason is not None:
            del self.growing[output.request_id]
        if output.error is not None:
            raise refused(output.error)
        self.first = self.first or time.monotonic()
        self.tokens += len(output.new_tokens)
        try:
            chunk = answer.add(output)
            self.writer.add(chunk)
        except TrtlaError as error:
            raise refused(error) from None
        if chunk.completion is not None:
            stats = chunk.completion.stats
            self.steps += stats.steps
            self.accepted += stats.accepted
            self.decoded += stats.decoded


class Decoding:
    """Lines into records.

    Args:
        labelling: of the answers.
        log: takes a sentence about a step that failed.
    """

    def __init__(self, llm: LLM, labelling: Labelling, log: Callable[[str], None]) -> None:
        self._llm, self._labelling, self._log = llm, labelling, log
        self._caller = Caller()
        self._failures = 0
        self._works: dict[int, _Work] = {}
        """By the requests that are in flight."""
        self._room = _AHEAD * llm.limits.max_batch_size

    def records(self, asked: Iterable[Ask]) -> Iterator[Record]:
        """The records of lines as they finish; lines are taken when there is room for them."""
        waiting = iter(asked)
        try:
            try:
                more = True
                while more or self._works:
                    while more and len(self._works) < self._room:
                        ask = next(waiting, None)
                        more = ask is not None
                        if ask is not None and (record := self._begin(ask)):
                            yield record
                    if self._works and (record := self._step()):
                        yield record
            finally:  # as LLM does where a stream ends early
                self._llm.executor.abandon(self._caller, self._works)
        finally:
            self._llm.executor.drop(self._caller, self._works)

    def _begin(self, ask: Ask) -> Record | None:
        """Queue what a line asks for; where it is refused, its record."""
        try:
            work = self._prepared(ask)
        except ApiError as error:
            return self._failed(ask, error)
        requests = [answer.request for answer in work.answers]
        self._works.update({request.request_id: work for request in requests})
        try:
            self._llm.executor.submit(requests, self._caller)
        except Exception as error:
            return self._give_up(work, refused(_as_error(error)))
        return None

    def _prepared(self, ask: Ask) -> _Work:
        if ask.body is None:
            raise ask.error or ApiError(400, "the line asks for nothing")
        check_name(ask.body.model, self._labelling.model, "--served-model-name")
        body = _seeded(ask.body, ask.custom_id or "")
        try:
            if isinstance(body, ChatBody):
                work = _Work(ask, chat_answers(body, self._llm))
            else:
                work = _Work(ask, completion_answers(body, self._llm))
        except (ApiError, ImportError, MemoryError):  # the last two are not the line's fault
            raise
        except Exception as error:  # whatever a line brings, it ends no other
            raise ApiError(500, f"{sentence(error)} (this is a bug in trtla)") from None
        work.writer = Writer(body, self._labelling.labels(ask), work, self._spell)
        return work

    def _spell(self, token: int) -> bytes:
        tokenizer = self._llm.tokenizer
        return b"" if tokenizer is None else tokenizer.token_bytes(token)

    def _step(self) -> Record | None:
        """Take the next output, and the record of its line if that is finished."""
        output = self._received()
        work = self._works.get(output.request_id)
        if output.finish_reason is not None:
            self._llm.executor.forget(output.request_id)
        if work is None:
            return None
        if work.lacks(output):  # else a failed step had it sent once more
            self._failures = 0
        try:
            work.add(output)
        except ApiError as error:
            return self._give_up(work, error)
        if output.request_id not in work.growing:
            del self._works[output.request_id]
        return None if work.growing else self._answered(work)

    def _received(self) -> Output:
        while True:
            try:
                return self._llm.executor.receive(self._caller)
            except Exception as error:
                self._failures += 1
                self._log(f"a step failed ({self._failures} in a row): {sentence(error)}")
                if self._failures >= _MOST_FAILURES:
                    raise

    def _answered(self, work: _Work) -> Record:
        body = work.writer.whole()
        read, written = body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]
        line = self._line(work.ask, 200, body)
        own = (work.steps, work.accepted, work.decoded)
        return Record(work.ask.number, False, read, written, line, *own)

    def _give_up(self, work: _Work, error: ApiError) -> Record:
        """One choice failed: the line has, and the others are not waited for."""
        ids = [answer.request.request_id for answer in work.answers]
        self._llm.executor.abandon(self._caller, ids)
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
    return body.model_copy(update={"seed": int.from_bytes(digest[:8], "big") % _SEEDS})


def _as_error(error: Exception) -> TrtlaError:
    return error if isinstance(error, TrtlaError) else TrtlaError(sentence(error))
