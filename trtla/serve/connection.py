"""uvicorn's HTTP connections, with an end for clients that neither send nor read.

h11 parses: it limits heads, and answers HTTP/1.0 and upgrades as it should.
"""

from __future__ import annotations

import asyncio

import h11
from starlette.types import Receive, Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT_S = 30.0
"""For a request's head to arrive: the first from when the connection was made, others from their
first byte."""
_ABORT = "trtla.abort"


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
        """End."""
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
