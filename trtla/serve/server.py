"""The server process: bind the port, load the model, listen, drain on a signal.

The port is bound before the model loads, so that a second server fails at once. Connections are
refused until the model is open.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from trtla.console import counted
from trtla.errors import RankLost, ReplicasLost, UsageError
from trtla.llm.prompt import RequestMaker
from trtla.serve.app import Served, new_app
from trtla.serve.generation import ServedModel
from trtla.serve.guard import Guard, is_loopback, read_keys
from trtla.serve.log import RequestLog
from trtla.serve.metrics import ServerMetrics
from trtla.serve.origins import Origins
from trtla.serve.responses import Connection
from trtla.settings.serving import ServeSettings

_BACKLOG = 2048
_LOOK_EVERY_S = 0.2
LINGER_S = 10.0
"""Time for clients to read the last of their texts when the server ends."""
_KEEP_ALIVE_S = 75  # idle connections; longer than the usual 60 s of proxies in front


def bind(settings: ServeSettings) -> socket.socket:
    """Return the socket to listen on, which refuses connections yet."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with _usable(listening, settings):
        listening.bind((settings.host, settings.port))
    return listening


@contextmanager
def _usable(listening: socket.socket, settings: ServeSettings) -> Iterator[None]:
    """Refuse an address that fails in this block: another server may have it."""
    try:
        yield
    except (OSError, UnicodeError) as error:
        listening.close()
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"{settings.host}:{settings.port} cannot be listened on: {why}",
            "choose another --port, 0 for a free one; --host is an address of this machine",
        ) from None


def is_open_to_all(settings: ServeSettings) -> bool:
    """Return True if other machines can reach it without a key."""
    return settings.api_key_file is None and not is_loopback(settings.host)


_MOMENT_S = 0.5


class _Server(uvicorn.Server):
    """uvicorn with our signals: the first drains, the second stops at once."""

    def __init__(self, config: uvicorn.Config, on_drain: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_drain = on_drain
        self.signals: list[int] = []

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with _signals_to(self.handle_exit):
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.signals.append(sig)
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self._on_drain()


def serve(
    settings: ServeSettings,
    open_model: Callable[[], RequestMaker],
    name: str,
    log: RequestLog,
    ready: Callable[[RequestMaker, str], None],
    holds_gil: bool = False,
) -> int:
    """Serve a model until a signal.

    Args:
        open_model: opens it, called in a thread of its own.
        name: of the model in the API.
        log: of requests.
        ready: called with the model and the server's address once it answers.
        holds_gil: True if no Python runs while the model loads.

    Returns:
        The exit code: 0 after SIGTERM and a drain, 128 + the signal after a second signal.
    """
    keys = read_keys(Path(settings.api_key_file)) if settings.api_key_file else ()

    def begin(maker: RequestMaker, address: str) -> None:
        gc.freeze()  # collecting all loaded objects again would stall all streams
        ready(maker, address)

    service = Service(settings, keys, open_model, name, log, begin, holds_gil)
    with bind(settings) as listening:
        asyncio.run(service.run(listening))
    code = service.exit_code
    if service.server.force_exit or not _is_idle(service.model):  # neither is waited for
        os._exit(code)
    return code


def _is_idle(model: ServedModel) -> bool:
    """Return True if no request is prepared; a thread that has just prepared one gets a moment."""
    last = time.monotonic() + _MOMENT_S
    while model.is_preparing and time.monotonic() < last:
        time.sleep(0.01)
    return not model.is_preparing


@dataclass
class Service:
    """One server in one event loop; the fields are the arguments of `serve`, with the keys read."""

    settings: ServeSettings
    keys: tuple[bytes, ...]
    open_model: Callable[[], RequestMaker]
    name: str
    log: RequestLog
    ready: Callable[[RequestMaker, str], None]
    holds_gil: bool = False
    model: ServedModel = field(init=False)
    server: _Server = field(init=False)

    async def run(self, listening: socket.socket) -> None:
        """Serve on this socket until `end`, or a signal in the main thread; then drain."""
        metrics = ServerMetrics()
        logs = (self.log.problem, self.log.note)
        self.model = model = ServedModel(self.open_model, self.settings, metrics, *logs)
        created, isolated = int(time.time()), self.settings.isolate_keys
        app: ASGIApp = new_app(Served(model, self.name, metrics, self.log, created, isolated))
        app = Guard(app, self.keys, self.settings, self.log, metrics)
        if origins := self.settings.allow_origin:
            app = Origins(app, origins, allow_methods=("GET", "POST"), allow_headers=("*",))
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            server_header=False,
            proxy_headers=False,
        )
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # our log has its messages
        self.server = _Server(config, self._drain)
        with _signals_to(signal.SIG_DFL) if self.holds_gil else nullcontext():
            model.engine.begin()
            await model.engine.changed.wait()
        if model.engine.failure is not None:
            await model.stop()
            return
        with _usable(listening, self.settings):
            listening.listen(_BACKLOG)
        watching = asyncio.create_task(self._watch(_address(listening)))
        ending = asyncio.create_task(self._cut_off())
        try:
            await self.server.serve([listening])
        finally:
            watching.cancel()
            ending.cancel()
            if not self.server.force_exit:
                await self.model.stop()

    async def _watch(self, address: str) -> None:
        """Report that the server answers; end if the model has lost its processes."""
        engine = self.model.engine
        self.ready(engine.llm, address)
        while not isinstance(engine.failure, RankLost | ReplicasLost):
            engine.changed.clear()
            await engine.changed.wait()
        self.server.should_exit = True

    async def _cut_off(self) -> None:
        """Abort connections after the last text has ended, so that no client holds up the end."""
        while not self.model.draining or self.model.num_in_flight:
            await asyncio.sleep(_LOOK_EVERY_S)
        await asyncio.sleep(LINGER_S)
        for connection in tuple(self.server.server_state.connections):
            connection.transport.abort()

    def end(self) -> None:
        """Accept no more requests, and end after those in flight."""
        self._drain()
        self.server.should_exit = True

    def _drain(self) -> None:
        """Accept no more requests."""
        if not self.model.draining:
            self.model.draining, left = True, self.model.num_in_flight
            if left:
                texts = counted(left, "text")
                self.log.note(f"ending after {texts}; a second signal stops at once")

    @property
    def exit_code(self) -> int:
        """The exit code of the process; raises the error of a model that could not be opened."""
        server, failure = self.server, self.model.engine.failure
        if not server.signals and failure is not None:
            raise failure
        if server.force_exit or signal.SIGINT in server.signals:
            return 128 + server.signals[-1]
        return 0 if failure is None else 1


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


Handler = Callable[[int, FrameType | None], Any] | signal.Handlers


@contextmanager
def _signals_to(handler: Handler) -> Iterator[None]:
    """Route signals that end the server to this handler; only possible in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {name: signal.signal(name, handler) for name in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for name, old in before.items():
            signal.signal(name, old)
