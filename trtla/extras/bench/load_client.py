"""A client of an OpenAI-compatible server: its list of models, and one streamed request.

Times are taken by time.perf_counter where bytes are received. No proxy is used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from trtla.console import counted
from trtla.errors import TrtlaError, UsageError, install_hint, sentence
from trtla.settings.messages import Messages
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    import httpx


_MOST_REASON = 300
"""Characters of a server's message that are kept."""


class AnswerFailed(Exception):
    """A request has no complete answer; the text is the reason."""


@dataclass(slots=True)
class StreamedAnswer:
    """The answer to one request with the times of its chunks, in seconds of one clock."""

    start: float
    """The time of sending."""
    texts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """The time at which each of the texts was received."""
    last: float | None = None
    """The time at which the last chunk with a choice was received."""
    closed: float = 0.0
    """The time at which the answer ended, complete or not."""
    usage: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] | None = None
    """Counters of `trtla serve`, an extension of the API."""
    finished: bool = False
    status: int | None = None
    """The HTTP status; None: no response yet."""
    error: str | None = None
    """The reason why there is no complete answer."""

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def input_tokens(self) -> int | None:
        return self._counted("prompt_tokens")

    @property
    def output_tokens(self) -> int:
        """The number that the server reports, else the number of chunks with text."""
        reported = self._counted("completion_tokens")
        return len(self.texts) if reported is None else reported

    @property
    def ttft_s(self) -> float | None:
        """Seconds from sending to the first text; None: there was no text."""
        return self.times[0] - self.start if self.times else None

    @property
    def e2el_s(self) -> float | None:
        """Seconds from sending to the last chunk with a choice."""
        return None if self.last is None else self.last - self.start

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds of an output token after the first; None: there are fewer than two."""
        if self.last is None or not self.times or self.output_tokens < 2:
            return None
        return (self.last - self.times[0]) / (self.output_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in pairwise(self.times)]

    def _counted(self, key: str) -> int | None:
        value = (self.usage or {}).get(key)
        return value if isinstance(value, int) else None

    def take(self, data: str, at: float) -> None:
        """Read the data of an event that was received at this time."""
        if data.strip() == "[DONE]":
            self.finished = True
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            chunk = None
        if not isinstance(chunk, Mapping):
            raise AnswerFailed(f"a chunk of the answer is not a JSON object: {data!r:.60}")
        if chunk.get("error"):
            raise AnswerFailed(reason_of(chunk))
        for key in ("usage", "metrics"):
            if isinstance(chunk.get(key), Mapping):
                setattr(self, key, chunk[key])
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, Sequence) else ():
            self._take_choice(choice, at)

    def _take_choice(self, choice: Any, at: float) -> None:
        if not isinstance(choice, Mapping):
            raise AnswerFailed(f"a choice of the answer is {choice!r:.60}")
        self.last = at
        self.finished = self.finished or choice.get("finish_reason") is not None
        if text := _text(choice):
            self.texts.append(text)
            self.times.append(at)

    def end(self) -> None:
        """Refuse a stream that ended before its answer did."""
        if not self.finished:
            chunks = counted(len(self.texts), "chunk")
            raise AnswerFailed(f"the stream ended early, after {chunks}")


def _text(choice: Mapping[str, Any]) -> str:
    """Return a chunk's text: of a completion, or of a chat with its reasoning."""
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        return str(choice.get("text") or "")
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    return str(thought or "") + str(delta.get("content") or "")


def reason_of(body: Any) -> str:
    """Return a server's message in one line, from a body in OpenAI's form or another."""
    while isinstance(body, Mapping):
        named = (body.get(key) for key in ("error", "message", "detail"))
        body = next((value for value in named if value), json.dumps(body))
    return " ".join(str(body).split())[:_MOST_REASON]


Endpoint = Literal["chat", "completions"]
OURS = "trtla"
"""The owner that our own server reports for its model."""
_CONNECT_S = 10.0
_LIST_S = 30.0
_SILENCE_S = 600.0
"""A request without any byte for this long has failed."""
_BAD_REQUEST = (400, 422)


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One prompt with its sampling."""

    prompt: str | Messages
    sampling: SamplingParams

    @property
    def key(self) -> tuple[Any, ...]:
        """Everything that its text depends on; greedy decoding has no seed."""
        seed = None if self.sampling.greedy else self.sampling.seed
        return str(self.prompt), self.sampling.draw_settings, self.sampling.max_output_len, seed


@dataclass(frozen=True, slots=True)
class Server:
    """The server's address, and the fields that all requests share."""

    url: str
    """Without `/v1`."""
    key: str | None = None
    model: str | None = None
    """None: not known before the server reports its models."""
    endpoint: Endpoint | None = None
    owned_by: str | None = None
    usage: bool = True
    """True: the server accepts `stream_options`, which ask for the numbers of tokens."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More keys of every request."""

    def body(self, request: LoadRequest) -> dict[str, Any]:
        sampling, chat = request.sampling, self.endpoint == "chat"
        return {
            "model": self.model,
            "messages" if chat else "prompt": request.prompt,
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


class Client:
    """Connections to a server, to be closed in the end."""

    def __init__(self, server: Server) -> None:
        try:
            import httpx
            import httpx_sse
        except ImportError as error:
            package = str(error.name).replace("_", "-")
            raise TrtlaError(
                f'--serve needs the package "{package}"', install_hint("serve")
            ) from None
        self.server = server
        self._httpx, self._sse = httpx, httpx_sse
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {server.key}"} if server.key else {},
            timeout=httpx.Timeout(_SILENCE_S, connect=_CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def look(self) -> None:
        """Ask the server for its model if none is named, and for its owner."""
        models = await self._models()
        names = [str(model.get("id")) for model in models]
        wanted = self.server.model or next(iter(names), None)
        if wanted is None:
            raise TrtlaError(
                f"{self.server.url} has no list of models", "name one with --served-model-name"
            )
        if names and wanted not in names:
            raise UsageError(
                f"{self.server.url} has no model {wanted}", f"it has {', '.join(names)}"
            )
        about = next((model for model in models if model.get("id") == wanted), {})
        endpoint: Endpoint = "completions" if about.get("chat") is False else "chat"
        self.server = replace(
            self.server,
            model=wanted,
            endpoint=self.server.endpoint or endpoint,
            owned_by=about.get("owned_by"),
        )

    async def _models(self) -> list[Mapping[str, Any]]:
        """Return the server's list of models, empty if it has no such route."""
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
        return (
            [item for item in data if isinstance(item, Mapping)] if isinstance(data, list) else []
        )

    async def warm_up(self, request: LoadRequest) -> StreamedAnswer:
        """Send one uncounted request; a server that refuses `stream_options` gets none later on."""
        first = await self.ask(request)
        if first.status in _BAD_REQUEST and self.server.usage:
            self.server = replace(self.server, usage=False)
            again = await self.ask(request)
            if again.error is None:
                return again
        if first.error is not None:
            raise TrtlaError(
                f"{self.server.url} did not answer the warm-up request: {first.error}",
                "correct what it names; --endpoint, --served-model-name and --extra-body are sent",
            )
        return first

    async def ask(self, request: LoadRequest) -> StreamedAnswer:
        """Send a request and read its answer; a failure becomes the answer's `error`.

        A server may close a connection that was used before just as the request is sent: then it
        is sent once more, as browsers do.
        """
        try:
            return await self._ask(request)
        except self._httpx.RemoteProtocolError:
            return await self._ask(request, is_last=True)

    async def _ask(self, request: LoadRequest, *, is_last: bool = False) -> StreamedAnswer:
        answer = StreamedAnswer(time.perf_counter())
        try:
            await self._read(request, answer)
        except AnswerFailed as error:
            answer.error = str(error)
        except self._httpx.HTTPError as error:
            closed = isinstance(error, self._httpx.RemoteProtocolError)
            if closed and answer.status is None and not is_last:
                raise
            answer.error = sentence(error)
        answer.closed = time.perf_counter()
        return answer

    async def _read(self, request: LoadRequest, answer: StreamedAnswer) -> None:
        path = "completions" if self.server.endpoint == "completions" else "chat/completions"
        url = f"{self.server.url}/v1/{path}"
        async with self._http.stream("POST", url, json=self.server.body(request)) as response:
            answer.status = response.status_code
            if response.status_code != 200:
                await response.aread()
                raise AnswerFailed(f"{response.status_code}: {reason_of(_body(response))}")
            async for event in self._sse.EventSource(response).aiter_sse():
                if event.data:
                    answer.take(event.data, time.perf_counter())
            answer.end()


def _body(response: httpx.Response) -> Any:
    """Return a refusal's JSON, else its text."""
    try:
        return response.json()
    except ValueError:
        return response.text or response.reason_phrase
