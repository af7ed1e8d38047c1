"""The application: routes of OpenAI's API, health, metrics and the page, on one `ServedModel`."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from trtla.api.answers import Labels, Writer
from trtla.api.errors import ApiError, unavailable
from trtla.api.generation import answers_to, check_name
from trtla.api.grammars import FIELDS
from trtla.api.protocol import ChatBody, CompletionBody
from trtla.errors import closest, sentence
from trtla.llm.answer import Answer
from trtla.llm.grammar_compiling import takes_long
from trtla.llm.preparing import GRAMMARS
from trtla.other_tools import counterpart
from trtla.serve.generation import CHAT, TEXTS, ServedModel
from trtla.serve.guard import KEY
from trtla.serve.log import RequestLog, note_error
from trtla.serve.metrics import ServerMetrics
from trtla.serve.responses import (
    LONG,
    BodyRoute,
    GenerationResponse,
    body_of,
    error_response,
    while_there,
)
from trtla.settings.fields import shown
from trtla.version import __version__

_PAGE = Path(__file__).parent / "page"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
_COMPILED = {*FIELDS, "tools"}
"""A body's fields that ask for a grammar."""
_WHO = "this server"
_RESPONSES, _METHODS = "/v1/responses", ["GET", "POST", "DELETE"]
_SCRAPE_S = 2.0  # for the executor's own figures; steps may be long


class Refusal(BaseModel):
    """An error in OpenAI's form."""

    class Error(BaseModel):
        """The message, type, field and code of an error."""

        message: str
        type: str
        param: str | None
        code: str | None

    error: Error


_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal} for status in (400, 401, 403, 404, 405, 408, 413, 429, 503, 504)
}
_TEXTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {}, "text/event-stream": {}}}
}


@dataclass(frozen=True, slots=True)
class Served:
    """The state that the routes share."""

    model: ServedModel
    name: str
    metrics: ServerMetrics
    log: RequestLog
    created: int
    isolated: bool = False
    """Requests share K/V blocks and drafts only with those of the same key."""

    def space(self, request: Request) -> int:
        """Return the space of a request's K/V blocks and drafts: of its key, or of all requests."""
        return -int(request.scope[KEY]) if self.isolated else 0


def new_app(served: Served) -> FastAPI:
    """Create the application of a model."""
    app = FastAPI(
        title="trtla", version=__version__, docs_url=None, redoc_url=None, responses=_REFUSALS
    )
    app.router.route_class, app.state.model = BodyRoute, served.model
    _handle_errors(app, served.log)
    _answer_health(app, served)
    _answer_texts(app, served)
    _show_page(app)
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """Have the application described when it is asked for, with the body of responses."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            from trtla.api.responses.body import described

            document = describe()
            for path in document["paths"].values():  # ours is 400, which is among the refusals
                for operation in path.values():
                    operation["responses"].pop("422", None)
            body, schemas = described()
            document["paths"][_RESPONSES]["post"]["requestBody"] = body
            document["components"]["schemas"] |= schemas
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]


_SCRAPED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}


def _answer_health(app: FastAPI, served: Served) -> None:
    model = served.model

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    @app.head("/ping", include_in_schema=False)
    @app.get("/ping")
    async def health() -> dict[str, str]:
        if not model.ready:
            raise model.absence()
        if model.is_stuck:
            raise unavailable("requests are not being made ready; start the server again", "stuck")
        return {"status": "ok"}

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @app.get("/metrics", response_class=Response, responses=_SCRAPED)
    async def metrics() -> Response:
        stats = None
        if model.ready:
            with suppress(Exception):
                stats = await asyncio.wait_for(model.engine.stats(), _SCRAPE_S)
            if (replicas := model.engine.llm.executor.replicas) is not None:
                served.metrics.count_replicas(replicas)
        text = served.metrics.text(stats)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model_card(served)]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        check_name(name, served.name, _WHO)
        return _model_card(served)


def _model_card(served: Served) -> dict[str, Any]:
    llm = served.model.llm
    lookahead = llm.lookahead
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "trtla",
        "root": served.name,
        "parent": None,
        "max_model_len": llm.limits.max_text_len,
        "lookahead": lookahead if lookahead == "auto" else list(lookahead.as_tuple()),
        "chat": llm.tokenizer is not None and llm.tokenizer.has_chat_template,
        "description": llm.description,
    }


def _answer_texts(app: FastAPI, served: Served) -> None:
    @app.post("/v1/chat/completions", response_class=Response, responses=_TEXTS)
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        return await _answer(served, request, body, body.n)

    @app.post("/v1/completions", response_class=Response, responses=_TEXTS)
    async def completions(body: CompletionBody, request: Request) -> Response:
        return await _answer(served, request, body, body.n * len(body.prompts))

    @app.post(_RESPONSES, response_class=Response, responses=_TEXTS)
    async def responses(request: Request) -> Response:
        from trtla.api.responses.answer import ResponseWriter, response_answers
        from trtla.api.responses.body import read_response

        body = await body_of(request, read_response)
        made = response_answers, partial(ResponseWriter, body)
        return await _answer(served, request, body.chat, 1, *made)

    @app.api_route(f"{_RESPONSES}/{{name}}", methods=_METHODS, include_in_schema=False)
    @app.api_route(f"{_RESPONSES}/{{name}}/{{part}}", methods=_METHODS, include_in_schema=False)
    async def stored(name: str) -> Response:
        raise ApiError(
            404,
            f"there is nothing at {_RESPONSES}/{shown(name)}: responses are not stored; POST the "
            f"whole input to {_RESPONSES}",
        )


async def _answer(
    served: Served,
    request: Request,
    body: ChatBody | CompletionBody,
    count: int,
    make: Callable[..., list[Answer]] = answers_to,
    write: Callable[..., Writer] = Writer,
) -> Response:
    check_name(body.model, served.name, _WHO)
    model, log = served.model, request.scope["trtla"]
    lane = _lane(body, len(await request.body()))
    prepare = partial(make, body, space=served.space(request))
    work = model.generate(prepare, count, lane, not body.stream)
    generation = await while_there(request.receive, work)
    log["prompt_tokens"] = generation.prompt_tokens

    def close(ended: Any) -> None:
        model.cancel(generation)
        log["completion_tokens"] = generation.tokens
        if generation.first is not None:
            log["ttft_ms"] = round(1000 * (generation.first - generation.started), 1)

    labels = Labels(secrets.token_hex(12), int(time.time()), served.name)
    writer = write(body, labels, generation, model.engine.llm)
    return GenerationResponse(generation, writer, body.stream, model.timeout_s, close)


def _lane(body: ChatBody | CompletionBody, length: int) -> str:
    """Return the lane that prepares a request: those that may take long have their own."""
    lane, takes = CHAT if isinstance(body, ChatBody) else TEXTS, length > LONG
    if any(getattr(body, name, None) for name in _COMPILED):
        lane = GRAMMARS
        takes = takes or takes_long(json.dumps(body.model_dump(include=_COMPILED)))
    return f"long-{lane}" if takes else lane


def _show_page(app: FastAPI) -> None:
    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(_PAGE / "index.html", headers=_PAGE_HEADERS)

    if _PAGE.is_dir():
        app.mount("/page", StaticFiles(directory=_PAGE))


def _instead(path: str, routes: Iterable[str]) -> str:
    """Return a hint to the route that a wrong path ends with, but for /v1, or resembles."""
    own = {route: route.removeprefix("/v1") for route in routes}
    ends = [route for route, end in own.items() if path.endswith(end)]
    nearest = counterpart(path.rstrip("/"), own) or max(ends, key=len, default=None)
    meant = nearest or closest(path, own)
    return f"did you mean {meant}?" if meant else "/openapi.json lists all routes"


def _handle_errors(app: FastAPI, log: RequestLog) -> None:
    def answer(request: Request, error: ApiError) -> Response:
        note_error(request.scope, error)
        return error_response(error)

    @app.exception_handler(ApiError)
    async def refuse(request: Request, error: ApiError) -> Response:
        return answer(request, error)

    @app.exception_handler(HTTPException)
    async def refuse_path(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:200]
        nothing = f"there is nothing at {path}; {_instead(path, app.openapi()['paths'])}"
        messages = {404: nothing, 405: f"{request.method} is not for {path}"}
        text = messages.get(error.status_code, str(error.detail))
        return answer(request, ApiError(error.status_code, text, headers=error.headers))

    @app.exception_handler(Exception)
    async def report(request: Request, error: Exception) -> Response:
        log.problem(f"{sentence(error)} (this is a bug in trtla)")
        return answer(request, ApiError(500, "the server failed; its log says why"))
