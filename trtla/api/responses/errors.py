"""Errors of the chat that a response asks for, in the names of the response's fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from trtla.api.errors import ApiError

_NAMES = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "tool_calls": "function calls",
}
_WORDS = re.compile(rf"\b({'|'.join(_NAMES)})\b")


@contextmanager
def renamed() -> Iterator[None]:
    """Raise errors of the block with the names of a response's fields."""
    try:
        yield
    except ApiError as error:
        text = _WORDS.sub(lambda found: _NAMES[found[0]], error.message)
        param = error.param and _NAMES.get(error.param.partition(".")[0], error.param)
        raise ApiError(error.status, text, param, error.code, error.headers) from None
