"""Routes that take a JSON body: a long one is read in a thread, so that no stream stands still."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, get_type_hints

from fastapi import Request, Response
from fastapi.routing import APIRoute

from trtla.api.bodies import read_body
from trtla.serve.responses import while_there

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
                reading = request.app.state.model.aside(partial(read_body, kind, data))
                body = await while_there(request.receive, reading)
            answer: Response = await self.endpoint(body, request)
            return answer

        return handle
