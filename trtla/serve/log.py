"""The server's log: one line a request, on stderr. Neither texts nor keys are ever in it."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import Any

from starlette.types import Scope

from trtla.api.errors import ApiError

_QUIET = ("/health", "/ping", "/metrics")
"""Asked every few seconds by machines; what they are answered is worth no line."""


STATUS = "trtla.status"
"""The status of the error that a request ended with, also in a stream that began with 200."""


def note_error(scope: Scope, error: ApiError) -> None:
    """Let log and metrics have what was wrong with a request: names, no values."""
    names = {"param": error.param, "code": error.code}
    known = {name: _printable(value[:80]) for name, value in names.items() if value}
    scope.setdefault("trtla", {}).update(known)
    scope[STATUS] = error.status


class RequestLog:
    """Writes lines for people, or JSON lines."""

    def __init__(self, as_json: bool, quiet: bool = False) -> None:
        self._json, self._quiet = as_json, quiet

    def request(self, scope: Scope, status: int, seconds: float) -> None:
        """A request that was answered; 499: its client went away before."""
        path = scope["path"]
        if path in _QUIET or self._quiet:
            return
        client = scope.get("client") or ("-",)
        self._write(
            "request",
            client=client[0],
            method=scope["method"],
            path=path[:200],
            status=status,
            ms=round(1000 * seconds, 1),
            **scope.get("trtla", {}),
        )

    def problem(self, text: str) -> None:
        self._write("error", message=text)

    def note(self, text: str, *, always: bool = False) -> None:
        """A remark; `always`: also where only errors are wanted."""
        if always or not self._quiet:
            self._write("note", message=text)

    def _write(self, kind: str, **fields: Any) -> None:
        if self._json:
            line = json.dumps({"time": round(time.time(), 3), "event": kind, **fields})
        elif kind == "request":
            known = [fields.pop(name) for name in ("client", "method", "path", "status", "ms")]
            more = "".join(f" {name}={value}" for name, value in fields.items())
            who, method, path, status, ms = known
            clock, path = time.strftime("%H:%M:%S"), _printable(path)
            line = f"{clock} {who} {method} {path} {status} {ms:g} ms{more}"
        else:
            line = f"{kind}: {_printable(fields['message'])}"
        with suppress(OSError, RuntimeError):  # whoever read the log is gone, or a signal is inside
            print(line, file=sys.stderr, flush=True)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
