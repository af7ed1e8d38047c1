"""Errors in the form of OpenAI's API: status, message, type, param and code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtla.errors import PromptTooLong, RendererLost, TrtlaError, UsageError, flag_name

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    504: "timeout_error",
}
_FIELDS = {"private": "cache", "expected_output": "prediction"}
"""Settings that requests name differently."""
RETRY_AFTER_S = 1
"""Seconds after which a refused client may try again."""


class ApiError(Exception):
    """The answer to a request that gets no text.

    Args:
        status: the HTTP status.
        message: one sentence, with the next step behind it.
        param: the field of the request that is at fault, if any.
        code: a name for programs; by default `invalid_parameter` where one is at fault.
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
        if code is None and param is not None and status == 400:
            code = "invalid_parameter"
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        server = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = _TYPES.get(self.status, server)
        fields = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": fields}


_INSTEAD = {"no_chat": "/v1/completions"}
"""The route or field that clients use in place of a flag that no server has."""


def _field(setting: str) -> str:
    return _FIELDS.get(setting, setting)


def refused(error: TrtlaError, param: str | None = None) -> ApiError:
    """Convert an error of trtla: 400 a wrong request, 503 a temporary one, 500 other failures.

    A client has neither flags nor the `LLM`: a hint to change other settings is replaced by one to
    omit the field at fault.

    Args:
        param: the field at fault if the error names no setting.
    """
    status, (message, hint) = (
        400 if isinstance(error, UsageError) else 500,
        error.spelt(_field, _field),
    )
    if error.setting is None:
        message, hint = error.spelt(lambda name: _INSTEAD.get(name, flag_name(name)))
    else:
        param = _field(error.setting)
        if not error.advises(error.setting) or any(word in (hint or "") for word in ("--", "LLM(")):
            hint = f"omit {param}"
    code = None
    if isinstance(error, PromptTooLong):
        fits = (hint or "").startswith("lower")  # except for its answer
        code, hint = "context_length_exceeded", "shorten it" + ", or lower max_tokens" * fits
    text = message if hint is None else f"{message}; {hint}"
    if isinstance(error, RendererLost):
        return unavailable(text, "renderer_lost")
    return ApiError(status, text, param, code)


def gone() -> ApiError:
    """Return 499, as in nginx: only log and metrics see it."""
    return ApiError(499, "the client went away before it was answered")


def unavailable(reason: str, code: str) -> ApiError:
    """Return 503 with a time to retry."""
    return ApiError(503, reason, code=code, headers={"Retry-After": str(RETRY_AFTER_S)})


def too_busy(waiting: int) -> ApiError:
    """Return 429 for a full queue."""
    return ApiError(
        429,
        f"the queue is full: {waiting} waiting; ask again later, or start the server with a larger "
        "--max-queue",
        code="queue_full",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def too_late(seconds: float) -> ApiError:
    """Return 504 for a timeout. Clients that retry on their own are asked not to."""
    return ApiError(
        504,
        f"the request took more than {seconds:g} s; ask for fewer tokens, or start the server with "
        "a larger --request-timeout",
        code="request_timeout",
        headers={"x-should-retry": "false"},
    )
