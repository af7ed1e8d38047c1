"""One executor for many threads: whose turn it is with it, and which output is for whom.

No thread of its own: who waits for outputs steps the executor for all, and the others wait for
theirs meanwhile. Calls come in order of arrival; where streams wait, a step follows each call, and
where calls wait, a call follows each step. The turn is never assigned: who waits takes it when it
is next, so nobody can hold it without knowing. What outlives a call changes in single steps of the
interpreter, so an interrupt or a finaliser may come between any two of them.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

from trtla.errors import TrtlaError
from trtla.runtime.executor import Executor, check_process
from trtla.runtime.request import Output, Request

T = TypeVar("T")

_LOOK_AGAIN_S = 1.0  # only where an interrupt has cost the thread that should have woken this one


class Caller:
    """A stream or a single call; its methods are the shared executor's business."""

    def __init__(self) -> None:
        self.inbox: SimpleQueue[Output | None] = SimpleQueue()
        """None: look again whose turn it is."""
        self.thread = threading.get_ident()


class SharedExecutor:
    """An executor that any thread may use at any time, in the process that opened it.

    Every method raises `TrtlaError` in a forked process, and where the executor is used from within
    its own step, by a drafter's watch for instance.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._process = os.getpid()
        self._turn: dict[str, Caller] = {}  # one entry at most: who is inside the executor
        self._calls: deque[Caller] = deque()  # wait to get inside, the oldest first
        self._idle: deque[Caller] = deque()  # streams that wait for outputs
        self._step_due = False
        """A call has been inside since the last step: streams that wait come first."""
        self._receivers: dict[int, Caller] = {}
        self._abandoned: deque[int] = deque()
        self._unfinished = False
        """Outputs have left the executor, and may not have reached their receivers."""

    @property
    def is_foreign(self) -> bool:
        """Whether this is a fork of the process that opened the executor."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Refuse a forked process."""
        check_process(self._process)

    def call(self, work: Callable[[Executor], T]) -> T:
        """Do something with the executor between two steps."""
        self.check()
        caller = Caller()
        try:
            try:
                self._calls.append(caller)
                while not self._may_call(caller) or not self._take(caller):
                    self._wait(caller)
                self._step_due = True
                self._settle()
                return work(self._executor)
            finally:
                self._leave(caller)
        finally:
            self._leave(caller)  # an interrupt may have come before the first one was done

    def submit(self, requests: Iterable[Request], caller: Caller) -> None:
        """Queue requests whose outputs this caller receives; in the end it must `abandon` them and,
        since an interrupt may come within that, `drop` them."""

        def work(executor: Executor) -> None:
            for request in requests:
                self._receivers[request.request_id] = caller
                executor.submit(request)

        self.call(work)

    def receive(self, caller: Caller) -> Output:
        """The next output for a caller: one that waits, else it steps, or waits for who does.

        What a step raises goes to the caller that made the step.
        """
        self.check()
        caller.thread = threading.get_ident()
        try:
            output = None
            while output is None:
                if not caller.inbox.empty():
                    output = caller.inbox.get()
                elif self._may_step(caller) and self._take(caller):
                    self._step(caller)
                else:
                    output = self._wait_for_output(caller)
            return output
        finally:
            self._leave(caller)

    def forget(self, request_id: int) -> None:
        """A request's last output has been received."""
        self._receivers.pop(request_id, None)

    def abandon(self, caller: Caller, request_ids: Iterable[int]) -> None:
        """`drop`, and cancel at once where nobody is inside the executor."""
        caller.thread = threading.get_ident()
        self.drop(caller, request_ids)
        if self._abandoned and not self.is_foreign and self._take(caller):
            self._settle()
            self._leave(caller)

    def drop(self, caller: Caller, request_ids: Iterable[int]) -> None:
        """No output of these is wanted any more; the next who is inside cancels them.

        May be called anywhere, by finalisers too, and again, which does what is left to be done.
        """
        for request_id in request_ids:
            if request_id in self._receivers:
                self._abandoned.append(request_id)
                self._receivers.pop(request_id, None)
        self._leave(caller)

    def _next(self) -> Caller | None:
        """Whose turn it is when nobody is inside, of those who wait."""
        queues = (self._calls, self._idle)
        for queue in reversed(queues) if self._step_due else queues:
            with suppress(IndexError):  # nobody waits there, or not any more
                return queue[0]
        return None

    def _may_call(self, caller: Caller) -> bool:
        return self._next() is caller or self._interrupts(caller)

    def _may_step(self, caller: Caller) -> bool:
        """Whether no call comes first; any stream may step, as that serves all of them."""
        return self._step_due or not self._calls or self._interrupts(caller)

    def _interrupts(self, caller: Caller) -> bool:
        """Whether its thread waits already: a signal handler goes on before what it interrupts."""
        waiting = (*self._calls.copy(), *self._idle.copy())
        return any(w.thread == caller.thread and w is not caller for w in waiting)

    def _take(self, caller: Caller) -> bool:
        """Take the turn if it is free; True also where the caller has it already."""
        return self._turn.setdefault("now", caller) is caller

    def _leave(self, caller: Caller) -> None:
        """Want nothing more for now."""
        if self._calls or self._idle:
            for queue in (self._calls, self._idle):
                with suppress(ValueError):  # it was not there
                    queue.remove(caller)
        self._pass_on(caller)

    def _pass_on(self, caller: Caller) -> None:
        """Give the turn back; where nobody is inside then, wake who is next."""
        if self._turn.get("now") is caller:
            del self._turn["now"]
        if (self._calls or self._idle) and not self._turn:
            waiting = self._next()
            if waiting is not None:
                waiting.inbox.put(None)

    def _wait_for_output(self, caller: Caller) -> Output | None:
        """Wait for an output or for the turn; None: look again."""
        if caller not in self._idle:
            self._idle.append(caller)
        self._pass_on(caller)
        # A look after that, since who leaves looks for those who wait after it has left.
        return self._wait(caller) if self._turn or not self._may_step(caller) else None

    def _wait(self, caller: Caller) -> Output | None:
        inside = self._turn.get("now")
        if inside is not None and inside.thread == caller.thread:
            raise TrtlaError(
                "the model is used from within one of its own steps",
                "use it when the step has ended, or open the model a second time",
            )
        try:
            return caller.inbox.get(timeout=_LOOK_AGAIN_S)
        except Empty:
            return None

    def _settle(self) -> None:
        """Before anything else inside: what interrupts and finalisers have left to be done."""
        if self._unfinished:
            self._executor.resend()
        while self._abandoned:
            self._executor.cancel(self._abandoned[0])
            self._abandoned.popleft()

    def _step(self, caller: Caller) -> None:
        """Step, and put the outputs into their receivers' inboxes."""
        self._step_due = False
        self._settle()
        self._unfinished = True
        outputs = self._executor.poll()
        for output in outputs:
            receiver = self._receivers.get(output.request_id)
            if receiver is not None:
                receiver.inbox.put(output)
        self._unfinished = False
        if not outputs and caller.inbox.empty():
            raise TrtlaError(
                "the executor has nothing in flight, and a request has not ended",
                "ask again; if that does not help, open the model again",
            )
