"""From a request's bytes to a checked body, in time that its length bounds."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError

from trtla.api.body_errors import body_error
from trtla.api.errors import ApiError
from trtla.api.protocol import Body
from trtla.files import JsonError, parse_json

BodyT = TypeVar("BodyT", bound=Body)
_MOST_NESTED = 10_000
"""Lists and objects in a body: each of them costs as much as a long text."""


def read_body(kind: type[BodyT], data: bytes) -> BodyT:
    """A request's body.

    Raises:
        ApiError: it is not JSON, or not such a body.
    """
    nested = _nested(data)
    if nested > _MOST_NESTED:
        raise ApiError(
            400,
            f"the body has {nested} lists and objects, above {_MOST_NESTED}; send fewer messages, "
            "parts or prompts at a time",
            code="body_too_large",
        )
    try:
        value = parse_json(data, unique=True)
    except JsonError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    return check_body(kind, value)


def check_body(kind: type[BodyT], value: Any) -> BodyT:
    """A body that was parsed; `ApiError` where it is not such a body."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
    raise body_error(errors)


def _nested(data: bytes) -> int:
    """The lists and objects of a JSON text; brackets in its strings are none."""
    if data.count(b"[") + data.count(b"{") <= _MOST_NESTED:
        return 0
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    return sum(part.count(b"[") + part.count(b"{") for part in bare.split(b'"')[::2])
