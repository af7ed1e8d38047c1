"""Errors in the form of OpenAI's API: status, message, type, param and code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtla.errors import PromptTooLong, RendererLost, TrtlaError, UsageError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    504: "timeout_error",
}
_FIELDS = {"private": "cache", "expected_output": "prediction"}
"""Settings that requests have under another name."""
RETRY_AFTER_S = 1
"""When a client that was turned away may ask again."""


class ApiError(Exception):
    """What a request is answered with instead of a text.

    Args:
        status: the HTTP status.
        message: one sentence, with the next step behind it.
        param: the field of the request that is at fault, if it is one.
        code: a name for programs.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        server = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = _TYPES.get(self.status, server)
        fields = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": fields}


def refused(error: TrtlaError, param: str | None = None) -> ApiError:
    """An error of trtla: 400 a wrong request, 503 what may succeed later, 500 other failures.

    A client has neither flags nor the `LLM`: a hint that names them becomes to omit the field at
    fault.

    Args:
        param: the field at fault where the error names no setting.
    """
    status, hint = 400 if isinstance(error, UsageError) else 500, error.hint
    setting = error.setting if isinstance(error, UsageError) else None
    if setting is not None:
        param = _FIELDS.get(setting, setting)
        if hint is not None and ("--" in hint or "LLM(" in hint):
            hint = f"omit {param}"
    code = None
    if isinstance(error, PromptTooLong):
        fits = (hint or "").startswith("lower")  # but for its answer
        code, hint = "context_length_exceeded", "shorten it" + ", or lower max_tokens" * fits
    text = error.message if hint is None else f"{error.message}; {hint}"
    if isinstance(error, RendererLost):
        return unavailable(text, "renderer_lost")
    return ApiError(status, text, param, code)


def gone() -> ApiError:
    """499, as nginx has it: nobody reads the answer; log and metrics do."""
    return ApiError(499, "the client went away before it was answered")


def unavailable(what: str, code: str) -> ApiError:
    """503 with a time to come back."""
    return ApiError(503, what, code=code, headers={"Retry-After": str(RETRY_AFTER_S)})


def too_busy(waiting: int) -> ApiError:
    """429: the queue is full."""
    return ApiError(
        429,
        f"the queue is full: {waiting} waiting; ask again later, or start the server with a larger "
        "--max-queue",
        code="queue_full",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def too_late(seconds: float) -> ApiError:
    """The request's time is over. Clients that ask once more by themselves are told not to."""
    return ApiError(
        504,
        f"the request took more than {seconds:g} s; ask for fewer tokens, or start the server with "
        "a larger --request-timeout",
        code="request_timeout",
        headers={"x-should-retry": "false"},
    )
