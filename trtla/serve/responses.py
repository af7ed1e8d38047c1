"""Responses that end when the client disconnects, which frees their places in the batch.

Connections are uvicorn's, with timeouts for clients that neither send nor read. h11 parses: it
limits heads, and answers HTTP/1.0 and upgrades correctly.
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

from trtla.api.answers import Writer, dumps
from trtla.api.errors import ApiError, gone, too_late
from trtla.api.reading import read_body
from trtla.serve.generation import AsyncGeneration
from trtla.serve.log import note_error

HEAD_TIMEOUT_S = 30.0
"""Longest wait for a request's head: the first from the connection on, later ones from their first
byte on."""
_ABORT = "trtla.abort"
KEEP_ALIVE_S = 15.0
"""A stream that is silent for so long gets a comment, so that no proxy drops it."""
_KEEP_ALIVE = b": keep-alive\n\n"
_LOOK_EVERY_S = 1.0
_FIRST = asyncio.FIRST_COMPLETED
_GRACE_S = 10.0  # for sending the remaining output after the request's time


T = TypeVar("T")


class Connection(H11Protocol):
    """One client's connection; uvicorn itself limits idle times between requests."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, with a limited wait for the first request."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes; the rest of a head, or of a body that is not read, has a time limit."""
        super().data_received(data)
        answered = self.conn.our_state is h11.DONE  # before all of the body was here
        if self.conn.their_state is not h11.IDLE and not answered:
            self._cancel_timer()
        elif self._head_timer is None:
            self._await_head()

    def on_response_complete(self) -> None:
        """Continue with the next request; the rest of an unread body has a time limit."""
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
    """Keep the way to abort a request's connection; `receive` is uvicorn's own."""
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    if transport is not None:
        scope[_ABORT] = transport.abort


def abort(scope: Scope) -> None:
    """Abort a request's connection at once; closing it would first send everything."""
    if _ABORT in scope:
        scope[_ABORT]()


async def while_there(receive: Receive, work: Awaitable[T]) -> T:
    """Return work's result; a client that disconnects before cancels it, with an `ApiError`.

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
    """Return an error as a response."""
    kind = "application/json"
    return Response(dumps(error.body), error.status, error.headers, media_type=kind)


class GenerationResponse(Response):
    """The response to a request whose texts are being generated.

    Args:
        generation: the texts.
        writer: formats them.
        stream: send events as they grow.
        timeout_s: for the whole response; a client that reads too slowly is cut off then.
        close: called once at the end, in any case.
    """

    def __init__(
        self,
        generation: AsyncGeneration,
        writer: Writer,
        stream: bool,
        timeout_s: float,
        close: Callable[[AsyncGeneration], None],
    ) -> None:
        kind = "text/event-stream" if stream else "application/json"
        self._id_header = {"x-request-id": writer.id}
        headers = {"Cache-Control": "no-store", **self._id_header}
        super().__init__(media_type=kind, headers=headers)
        del self.headers["content-length"]
        self._generation, self._writer, self._is_stream = generation, writer, stream
        self._ends = generation.started + timeout_s + _GRACE_S
        self._timeout_s, self._close = timeout_s, close
        self._sent = 0.0
        """The time when data was last sent; 0: not yet."""

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
                    self._generation.nudge()  # the stream sends a comment
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
        if begun := self._writer.begin():
            await self._send(send, begun)
        try:
            while not self._generation.ended:
                chunks = await self._generation.next()
                events = [data for chunk in chunks if (data := self._writer.add(chunk))]
                if events or not chunks:
                    await self._send(send, b"".join(events) or _KEEP_ALIVE)
            last = b"".join(self._writer.end())
        except ApiError as error:
            note_error(scope, error)
            last = self._writer.failed(error)
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
        answer = Response(whole, headers=self._id_header, media_type="application/json")
        await answer(scope, receive, send)


async def _until_gone(receive: Receive) -> None:
    """Wait until the client has closed its connection; the body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


LONG = 1 << 15
"""Bytes of a body; longer ones are prepared one after another, next to the others."""


async def body_of(request: Request, read: Callable[[bytes], T]) -> T:
    """Return a request's body as it is read: a long one in a thread."""
    data = await request.body()
    if len(data) <= LONG:
        return read(data)
    lanes = request.app.state.model.engine.lanes
    return await while_there(request.receive, lanes.done("bodies", partial(read, data)))


class BodyRoute(APIRoute):
    """A route whose endpoint takes `body` and `request`, or no body at all.

    FastAPI describes it by the endpoint's signature, but would read it on the event loop.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        kind = get_type_hints(self.endpoint).get("body")
        if kind is None:
            return super().get_route_handler()

        async def handle(request: Request) -> Response:
            body = await body_of(request, partial(read_body, kind))
            answer: Response = await self.endpoint(body, request)
            return answer

        return handle
