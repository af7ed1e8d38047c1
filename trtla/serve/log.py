"""The server's log: one line a request, on stderr, without texts and keys."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import Any

from starlette.types import Scope

from trtla.api.errors import ApiError

_QUIET = ("/health", "/ping", "/metrics")
"""Paths that machines poll every few seconds; they are not logged."""


STATUS = "trtla.status"
"""The status of the error that a request ended with, also in a stream that began with 200."""


def note_error(scope: Scope, error: ApiError) -> None:
    """Record a request's error for log and metrics: names without values."""
    names = {"param": error.param, "code": error.code}
    known = {name: _printable(value[:80]) for name, value in names.items() if value}
    scope.setdefault("trtla", {}).update(known)
    scope[STATUS] = error.status


class RequestLog:
    """Writes lines for people, or JSON lines."""

    def __init__(self, as_json: bool, quiet: bool = False) -> None:
        self._json, self._quiet = as_json, quiet

    def request(self, scope: Scope, status: int, seconds: float) -> None:
        """Log an answered request; 499: its client disconnected before."""
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
        """Log a remark; `always`: even if only errors are logged."""
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
        with suppress(OSError, RuntimeError):  # stderr is closed, or a signal interrupted a write
            print(line, file=sys.stderr, flush=True)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
