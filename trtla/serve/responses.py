"""Sends answers while the client stays: its place in the batch is free when it goes away.

Connections are uvicorn's, with an end for clients that neither send nor read. h11 parses: it limits
heads, and answers HTTP/1.0 and upgrades as it should.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, get_type_hints

import h11
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from trtla.api.answers import Writer, dumps, event
from trtla.api.errors import ApiError, gone, too_late
from trtla.api.protocol import read_body
from trtla.serve.generation import Live
from trtla.serve.log import note_error

HEAD_TIMEOUT_S = 30.0
"""For a request's head to arrive: the first from when the connection was made, others from their
first byte."""
_ABORT = "trtla.abort"
KEEP_ALIVE_S = 15.0
"""A stream that says nothing for so long gets a comment, so that no proxy gives it up."""
_KEEP_ALIVE = b": keep-alive\n\n"
_LOOK_EVERY_S = 1.0
_FIRST = asyncio.FIRST_COMPLETED
_GRACE_S = 10.0  # to send what is written when the request's time is over


T = TypeVar("T")


class Connection(H11Protocol):
    """One client's connection; uvicorn itself limits how long it may stay idle between requests."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; a client that sends no request is not waited for without end."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes; the rest of a head, or of a body that nobody reads, has a limited time."""
        super().data_received(data)
        answered = self.conn.our_state is h11.DONE  # before all of the body was here
        if self.conn.their_state is not h11.IDLE and not answered:
            self._cancel_timer()
        elif self._head_timer is None:
            self._await_head()

    def on_response_complete(self) -> None:
        """Go on to the next request; the rest of a body that was answered before has its time."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and self._head_timer is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _cancel_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def remember(scope: Scope, receive: Receive) -> None:
    """Keep how a request's connection is broken off; `receive` is uvicorn's own."""
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    if transport is not None:
        scope[_ABORT] = transport.abort


def abort(scope: Scope) -> None:
    """Break a request's connection off, whatever is still to be sent; closing waits for that."""
    if _ABORT in scope:
        scope[_ABORT]()


async def while_there(receive: Receive, work: Awaitable[T]) -> T:
    """What work brings; it is cancelled when the client goes away before, which is an `ApiError`.

    Args:
        receive: the connection's; the body was read before.
    """
    doing, leave_task = asyncio.ensure_future(work), asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({doing, leave_task}, return_when=_FIRST)
        if doing.done():
            return doing.result()
        raise gone()
    finally:
        doing.cancel()
        leave_task.cancel()
        await asyncio.gather(doing, leave_task, return_exceptions=True)


def error_response(error: ApiError) -> Response:
    """An error as an answer of its own."""
    kind = "application/json"
    return Response(dumps(error.body), error.status, error.headers, media_type=kind)


class Answering(Response):
    """The answer to a request whose texts are being written.

    Args:
        generation: the texts.
        writer: gives them their form.
        stream: as events, while they grow.
        timeout_s: for all of it; a client that reads too slowly is cut off then.
        close: called once at the end, whatever comes.
    """

    def __init__(
        self,
        generation: Live,
        writer: Writer,
        stream: bool,
        timeout_s: float,
        close: Callable[[Live], None],
    ) -> None:
        kind = "text/event-stream" if stream else "application/json"
        self._named = {"x-request-id": writer.id}
        super().__init__(media_type=kind, headers={"Cache-Control": "no-store", **self._named})
        del self.headers["content-length"]
        self._generation, self._writer, self._is_stream = generation, writer, stream
        self._ends = generation.started + timeout_s + _GRACE_S
        self._timeout_s, self._close = timeout_s, close
        self._sent = 0.0
        """When something was sent last; 0: nothing yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = self._stream(scope, send) if self._is_stream else self._whole(scope, receive, send)
        answer_task = asyncio.ensure_future(work)
        leave_task = asyncio.ensure_future(_until_gone(receive))
        late = False
        try:
            while not (late := time.monotonic() > self._ends):
                both = {answer_task, leave_task}
                if (await asyncio.wait(both, timeout=_LOOK_EVERY_S, return_when=_FIRST))[0]:
                    break
                if self._is_stream and 0 < self._sent < time.monotonic() - KEEP_ALIVE_S:
                    self._generation.nudge()  # the stream sends a comment, once it can
        finally:
            self._close(self._generation)
            leave_task.cancel()
            answer_task.cancel()
            await asyncio.gather(answer_task, leave_task, return_exceptions=True)
        if late:
            note_error(scope, too_late(self._timeout_s))
        if late and not self._sent:
            await error_response(too_late(self._timeout_s))(scope, receive, send)
        elif late:
            abort(scope)
        elif not answer_task.cancelled():
            answer_task.result()

    async def _send(self, send: Send, data: bytes, more: bool = True) -> None:
        self._sent = time.monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": more})

    async def _stream(self, scope: Scope, send: Send) -> None:
        headers = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **headers})
        self._sent = time.monotonic()
        try:
            while not self._generation.ended:
                chunks = await self._generation.next()
                events = [one for chunk in chunks if (one := self._writer.add(chunk))]
                if events or not chunks:
                    await self._send(send, b"".join(events) or _KEEP_ALIVE)
            last = b"".join(self._writer.end())
        except ApiError as error:
            note_error(scope, error)
            last = event(error.body)
        await self._send(send, last, more=False)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            while not self._generation.ended:
                for chunk in await self._generation.next():
                    self._writer.add(chunk)
        except ApiError as error:
            note_error(scope, error)
            await error_response(error)(scope, receive, send)
            return
        self._sent, whole = time.monotonic(), dumps(self._writer.whole())
        answer = Response(whole, headers=self._named, media_type="application/json")
        await answer(scope, receive, send)


async def _until_gone(receive: Receive) -> None:
    """Wait until the client has closed its connection; the body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


LONG = 1 << 15
"""Bytes of a body; those with more wait for each other, and no others wait for them."""


class BodyRoute(APIRoute):
    """A route whose endpoint takes `body` and `request`, or no body at all.

    FastAPI describes it by the endpoint's signature, and would read it on the event loop.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        kind = get_type_hints(self.endpoint).get("body")
        if kind is None:
            return super().get_route_handler()

        async def handle(request: Request) -> Response:
            data = await request.body()
            if len(data) <= LONG:
                body = read_body(kind, data)
            else:
                lanes = request.app.state.model.engine.lanes
                reading = lanes.done("aside", partial(read_body, kind, data))
                body = await while_there(request.receive, reading)
            answer: Response = await self.endpoint(body, request)
            return answer

        return handle
