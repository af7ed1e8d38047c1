"""The client of an OpenAI-compatible server: what models it has, and one streamed request.

Times are taken by time.perf_counter where bytes are received. No proxy is used.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from trtla.bench.load.stream import Answer, EventParser, RequestFailed, reason_of
from trtla.errors import TrtlaError, UsageError, sentence
from trtla.settings.messages import Messages
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    import httpx

Endpoint = Literal["chat", "completions"]
ENDPOINTS = ("chat", "completions")
OURS = "trtla"
"""What our own server has for the owner of its model."""
_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_CONNECT_S = 10.0
_LIST_S = 30.0
_SILENCE_S = 600.0
"""A request without any byte for this long has failed."""
_BAD_REQUEST = (400, 422)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    prompt: str | Messages
    sampling: SamplingParams

    @property
    def key(self) -> tuple[Any, ...]:
        """What its text depends on: greedy decoding has no seed."""
        seed = None if self.sampling.greedy else self.sampling.seed
        return str(self.prompt), self.sampling.law, self.sampling.max_output_len, seed


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go, and what its requests have in common."""

    url: str
    """Without `/v1`."""
    key: str | None = None
    model: str | None = None
    """None until the server was asked."""
    endpoint: Endpoint | None = None
    owned_by: str | None = None
    usage: bool = True
    """Whether it takes `stream_options`, which ask for the numbers of tokens."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More keys of every request."""

    def body(self, asked: Asked) -> dict[str, Any]:
        """A request's JSON."""
        sampling, chat = asked.sampling, self.endpoint == "chat"
        return {
            "model": self.model,
            "messages" if chat else "prompt": asked.prompt,
            "max_tokens": sampling.max_output_len,
            "temperature": sampling.temperature,
            **({"top_k": sampling.top_k} if sampling.top_k else {}),
            **({"top_p": sampling.top_p} if sampling.top_p < 1.0 else {}),
            "seed": sampling.seed,
            "stream": True,
            **({"stream_options": {"include_usage": True}} if self.usage else {}),
            **({"metrics": True} if self.owned_by == OURS else {}),
            **self.extra,
        }


def server_url(text: str) -> str:
    """The address of a server, without a `/v1` at its end.

    Raises:
        UsageError: it is no http or https address.
    """
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is no number
        known = False
    if not known or parts.query or parts.fragment:
        raise UsageError(
            f"--serve {text} is not the address of a server", "give one like http://127.0.0.1:8000"
        )
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


class Client:
    """Connections to a server; an asynchronous context manager that closes them.

    Raises:
        TrtlaError: the package httpx is not installed.
    """

    def __init__(self, server: Server) -> None:
        try:
            import httpx
        except ImportError:
            raise TrtlaError(
                '--serve needs the package "httpx"', "pip install 'trtla[serve]'"
            ) from None
        self.server = server
        self._httpx = httpx
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {server.key}"} if server.key else {},
            timeout=httpx.Timeout(_SILENCE_S, connect=_CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def look(self) -> None:
        """Ask the server for its model where none is named, and whether it is ours.

        Raises:
            TrtlaError: there is no server, it refuses, or it has no such model.
        """
        models = await self._models()
        names = [str(one.get("id")) for one in models]
        wanted = self.server.model or next(iter(names), None)
        if wanted is None:
            raise TrtlaError(
                f"{self.server.url} has no list of models", "name one with --served-model-name"
            )
        if names and wanted not in names:
            raise UsageError(
                f"{self.server.url} has no model {wanted}", f"it has {', '.join(names)}"
            )
        about = next((one for one in models if one.get("id") == wanted), {})
        endpoint: Endpoint = "completions" if about.get("chat") is False else "chat"
        self.server = replace(
            self.server,
            model=wanted,
            endpoint=self.server.endpoint or endpoint,
            owned_by=about.get("owned_by"),
        )

    async def _models(self) -> list[Mapping[str, Any]]:
        """What the server lists; nothing where it has no such route."""
        url = self.server.url
        try:
            response = await self._http.get(f"{url}/v1/models", timeout=_LIST_S)
            body = response.json() if response.is_success else reason_of(_body(response))
        except self._httpx.HTTPError as error:
            raise TrtlaError(
                f"no server answers at {url}: {sentence(error)}",
                "start one, such as trtla serve --port 8000, or correct the address",
            ) from None
        except ValueError:
            body = None
        if response.status_code in (401, 403):
            raise TrtlaError(f"{url} refuses the key: {body}", "give its key with --api-key-file")
        if response.status_code == 503:
            raise TrtlaError(f"{url} is not ready: {body}", "wait until it has loaded its model")
        data = body.get("data") if isinstance(body, Mapping) else None
        return [one for one in data if isinstance(one, Mapping)] if isinstance(data, list) else []

    async def warm_up(self, asked: Asked) -> Answer:
        """Ask once, uncounted; a server that refuses `stream_options` gets none from now on.

        Raises:
            TrtlaError: the request has no answer.
        """
        first = await self.ask(asked)
        if first.status in _BAD_REQUEST and self.server.usage:
            self.server = replace(self.server, usage=False)
            again = await self.ask(asked)
            if again.error is None:
                return again
        if first.error is not None:
            raise TrtlaError(
                f"{self.server.url} did not answer the warm-up request: {first.error}",
                "correct what it names; --endpoint, --served-model-name and --extra-body are sent",
            )
        return first

    async def ask(self, asked: Asked) -> Answer:
        """Send a request and read its answer; what goes wrong is the answer's `error`."""
        answer = Answer(time.perf_counter())
        try:
            await self._read(asked, answer)
        except RequestFailed as error:
            answer.error = str(error)
        except self._httpx.HTTPError as error:
            answer.error = sentence(error)
        answer.closed = time.perf_counter()
        return answer

    async def _read(self, asked: Asked, answer: Answer) -> None:
        url = self.server.url + _PATHS[self.server.endpoint or "chat"]
        async with self._http.stream("POST", url, json=self.server.body(asked)) as response:
            answer.status = response.status_code
            if response.status_code != 200:
                await response.aread()
                raise RequestFailed(f"{response.status_code}: {reason_of(_body(response))}")
            parser = EventParser()
            async for received in response.aiter_bytes():
                at = time.perf_counter()
                for data in parser.feed(received):
                    answer.take(data, at)
            for data in parser.end():
                answer.take(data, time.perf_counter())
            answer.end(response.headers.get("content-type", ""))


def _body(response: httpx.Response) -> Any:
    """A refusal's JSON, else its text."""
    try:
        return response.json()
    except ValueError:
        return response.text or response.reason_phrase
