"""Checks in front of the application: keys, hosts, origins and sizes; and the request log.

Pure ASGI, since it must see a body before it is read and a connection while it is answered.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trtla.api.errors import ApiError, gone
from trtla.errors import UsageError
from trtla.files import read_text
from trtla.serve.log import STATUS, RequestLog, note_error
from trtla.serve.metrics import ServerMetrics
from trtla.serve.responses import error_response, remember
from trtla.settings.serving import ServeSettings

KEY = "trtla.key"
"""In a request's scope: the number of its key, from 1."""
BODY_TIMEOUT_S = 30.0
"""Longest wait for a body."""
_GONE = 499  # as in nginx: the client did not wait for the answer
_DISCARDED = 1 << 24  # bytes of a body that is too large
_PRIVATE = (".local", ".internal", ".home.arpa", ".lan", ".localdomain", ".svc")
"""Endings of names that no public name server resolves: reserved, or never assigned."""
_HEALTH = ("/health", "/ping")
_OPEN = (*_HEALTH, "/", "/page/", "/favicon.ico")
"""Paths that need no key: they reveal nothing about requests."""


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Read a file's keys, one a line; empty lines and lines that begin with # are skipped."""
    lines = (line.strip() for line in read_text(path).splitlines())
    keys = tuple(line.encode() for line in lines if line and not line.startswith("#"))
    if not all(key.isascii() for key in keys):
        raise UsageError(f"{path} holds a key with letters beyond ASCII", "make it of ASCII's")
    if not keys:
        raise UsageError(
            f"{path} holds no key", "write one key a line, such as: openssl rand -hex 24"
        )
    return keys


def is_loopback(host: str) -> bool:
    """Return True if a host name or address is this machine's loopback."""
    host = host.lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_private(host: str) -> bool:
    """Return True for an address, or a name that strangers cannot point at this machine."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return "." not in host or host.endswith(_PRIVATE) or host == socket.gethostname().lower()
    return True


def _place(address: str) -> tuple[str, str]:
    """Return the host name, and host and port as written; empty for an invalid address."""
    try:
        parts = urlsplit(address)
        return (parts.hostname or "").removesuffix("."), parts.netloc
    except ValueError:
        return "", ""


class Guard:
    """Passes requests to the application, or answers them itself.

    Args:
        app: the application.
        keys: that clients may use; empty: no key is needed.
        settings: the address that it listens on (a loopback one accepts loopback names only),
            origins of web pages that may use it besides its own, and the largest body.
        log: of requests.
        metrics: counts answers.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Sequence[bytes],
        settings: ServeSettings,
        log: RequestLog,
        metrics: ServerMetrics,
    ) -> None:
        address, origins = settings.host, settings.allow_origin
        self._app, self._keys, self._origins = app, keys, frozenset(origins)
        self._hosts = {address.lower(), *(_place(origin)[0] for origin in origins)}
        self._local, self._max_body = is_loopback(address), settings.max_body
        self._log, self._metrics = log, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started, status = time.monotonic(), 0
        scope["trtla"] = {}
        remember(scope, receive)

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            try:
                headers = Headers(scope=scope)
                self._check(scope, headers)
                body = await self._body(scope, headers, receive)
                await self._app(scope, body, watched)
            except ApiError as error:
                note_error(scope, error)
                await error_response(error)(scope, receive, watched)
        finally:
            status = scope.get(STATUS) or status or _GONE
            self._metrics.answered(status)
            self._log.request(scope, status, time.monotonic() - started)

    def _check(self, scope: Scope, headers: Headers) -> None:
        host, path = _place(f"//{headers.get('host', '')}")[0], scope["path"]
        if path not in _HEALTH:  # probes use any name, and learn nothing
            self._check_host(host)
        self._check_origin(headers, host)
        if self._keys and path not in _OPEN and not path.startswith("/page/"):
            scope[KEY] = self._check_key(headers)

    def _check_host(self, host: str) -> None:
        """Refuse foreign names: one for this address can be a page's way around its origin. A page
        never sends an empty name, and never a key."""
        if not host or host in self._hosts or is_loopback(host):
            return
        if self._keys or (not self._local and _is_private(host)):
            return
        near = "127.0.0.1 or localhost" if self._local else "by its address"
        raise ApiError(
            403,
            f"this server is reached by a name that is not its own; ask {near}, or start it with "
            "--api-key-file or --allow-origin http://NAME",
            code="host_not_allowed",
        )

    def _check_origin(self, headers: Headers, host: str) -> None:
        """Refuse pages of other origins; its own have a checked name, except for health."""
        origin = headers.get("origin")
        if origin is None or origin in self._origins:
            return
        if not host or _place(origin)[1] != headers.get("host"):
            raise ApiError(
                403,
                f"pages of {origin[:200]} may not use this server; it can be started with "
                "--allow-origin",
                code="origin_not_allowed",
            )

    def _check_key(self, headers: Headers) -> int:
        kind, _, key = headers.get("authorization", "").partition(" ")
        key_bytes = key.strip().encode()
        matches = [hmac.compare_digest(key_bytes, known) for known in self._keys]  # always all
        if kind.lower() != "bearer" or not any(matches):
            raise ApiError(
                401,
                "the API key is missing or not one of this server's; send it as "
                "Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return matches.index(True) + 1

    async def _body(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            return receive
        self._check_kind(headers)
        try:
            data = await asyncio.wait_for(self._read(headers, receive), BODY_TIMEOUT_S)
        except asyncio.TimeoutError:
            raise ApiError(
                408,
                f"the body did not arrive within {BODY_TIMEOUT_S:g} s",
                code="body_timeout",
                headers={"Connection": "close"},
            ) from None
        messages = [{"type": "http.request", "body": data, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        return replay

    def _check_kind(self, headers: Headers) -> None:
        """Accept JSON only: a page may send other types to another origin without asking."""
        kind, _, more = headers.get("content-type", "").lower().partition(";")
        charset = more.partition("charset=")[2].strip(' "')
        if kind.strip() != "application/json" or charset not in ("", "utf-8", "utf8"):
            raise ApiError(
                400,
                "the body must be JSON in UTF-8, with Content-Type: application/json",
                code="content_type",
            )
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(
                415,
                f"the body is in the coding {headers['content-encoding'][:100]}; send it as it is",
                code="content_encoding",
            )
        if "transfer-encoding" in headers and "content-length" in headers:
            raise ApiError(
                400,
                "the body has both a Content-Length and a Transfer-Encoding; send one of them",
                code="body_length",
                headers={"Connection": "close"},
            )

    async def _read(self, headers: Headers, receive: Receive) -> bytes:
        length = headers.get("content-length", "")
        declared = int(length[:20]) if length.isdecimal() else 0
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise gone()
            data, more = message.get("body", b""), message.get("more_body", False)
            size += len(data)
            if max(size, declared) > self._max_body:
                # Read and discard the rest: a client that still sends would see a reset connection
                # instead of the answer.
                parts.clear()
                if not more or size > self._max_body + _DISCARDED:
                    raise self._too_large()
            else:
                parts.append(data)
        return b"".join(parts)

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body is above {self._max_body} bytes; shorten it, or start the server with a "
            "larger --max-body",
            code="body_too_large",
            headers={"Connection": "close"},
        )
