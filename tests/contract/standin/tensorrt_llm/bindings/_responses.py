"""Responses and results; TensorRT-LLM nanobind/executor/request.cpp, types.h.

Reading the result of an error, or the error of a result, throws.
"""

from __future__ import annotations

from typing import Any, ClassVar

from .._version import at_least
from ._cpp import throw

_FILE = "executor/responseImpl.h"


class Result:
    """What one sequence of a request has come to; plain attributes with C++ defaults."""

    _defaults: ClassVar[dict[str, Any]] = {
        "is_final": False,
        "output_token_ids": list,
        **dict.fromkeys(("cum_log_probs", "log_probs", "context_logits", "generation_logits")),
        "finish_reasons": list,
        "sequence_index": 0,
        "is_sequence_final": False,
        "decoding_iter": 0,
        **({"avg_decoded_tokens_per_iter": 0.0} if at_least(1, 1) else {}),
    }

    def __init__(self) -> None:
        for name, default in self._defaults.items():
            object.__setattr__(self, name, default() if callable(default) else default)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self._defaults:
            raise AttributeError(f"'Result' object has no attribute '{name}'")
        object.__setattr__(self, name, value)


class Response:
    """The answer for a request id: an error message or a result."""

    def __init__(
        self,
        request_id: int,
        error_msg: str | Result | None = None,
        client_id: int | None = None,
        *,
        result: Result | None = None,
    ) -> None:
        content = result if error_msg is None else error_msg
        if not isinstance(request_id, int) or not isinstance(content, str | Result):
            raise TypeError("__init__(): incompatible function arguments.")
        self._request_id, self._content, self._client_id = request_id, content, client_id

    @property
    def request_id(self) -> int:
        return self._request_id

    @property
    def client_id(self) -> int | None:
        return self._client_id

    def has_error(self) -> bool:
        return isinstance(self._content, str)

    @property
    def error_msg(self) -> str:
        if not isinstance(self._content, str):
            raise throw("Trying to get error message from a response without error", _FILE)
        return self._content

    @property
    def result(self) -> Result:
        if isinstance(self._content, str):
            raise throw(f"Trying to get result from a response with error: {self._content}", _FILE)
        return self._content


for _class in (Result, Response):
    _class.__module__ = "tensorrt_llm.bindings.executor"
