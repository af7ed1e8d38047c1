"""_torch/pyexecutor/llm_request.py: what a drafter may read of a request, and write to it.

Strict: other names cannot be set, and `py_draft_tokens` takes lists of whole numbers alone.
"""

from __future__ import annotations

from collections.abc import Sequence


class SamplingConfig:
    """bindings.SamplingConfig: lists of one value, or None for what the request does not set."""

    __slots__ = ("beam_width", "min_p", "temperature", "top_k", "top_p")

    def __init__(self, **values: float) -> None:
        self.beam_width = 1
        for name in ("temperature", "top_k", "top_p", "min_p"):
            setattr(self, name, [values.pop(name)] if name in values else None)
        if values:
            raise TypeError(f"SamplingConfig has no {', '.join(values)}")


class LlmRequest:
    __slots__ = (
        "_draft",
        "_tokens",
        "py_disable_speculative_decoding",
        "py_end_id",
        "py_max_new_tokens",
        "py_orig_prompt_len",
        "request_id",
        "sampling_config",
    )

    def __init__(
        self,
        request_id: int,
        input_tokens: Sequence[int],
        max_new_tokens: int,
        end_id: int = -1,
        sampling_config: SamplingConfig | None = None,
    ) -> None:
        self.request_id = request_id
        self._tokens = list(input_tokens)
        self.py_orig_prompt_len = len(self._tokens)
        self.py_max_new_tokens = max_new_tokens
        self.py_end_id = end_id
        self.sampling_config = sampling_config or SamplingConfig()
        self.py_disable_speculative_decoding = False
        self._draft: list[int] = []

    def get_tokens(self, beam: int) -> list[int]:
        """The prompt and what was generated: a copy, as C++ gives it."""
        if beam != 0:
            raise IndexError(f"beam {beam} of 1")
        return list(self._tokens)

    def add_new_token(self, token: int, beam: int) -> None:
        self._tokens.append(token)

    def pause(self, max_input_len: int) -> None:
        """Evicted: what was generated becomes the prompt, as far as prompts may go."""
        del self._tokens[max_input_len:]

    @property
    def py_draft_tokens(self) -> list[int]:
        return self._draft

    @py_draft_tokens.setter
    def py_draft_tokens(self, tokens: list[int]) -> None:
        if type(tokens) is not list or any(type(token) is not int for token in tokens):
            raise TypeError(f"py_draft_tokens must be a list of int, not {tokens!r}")
        self._draft = tokens


def get_draft_token_length(request: LlmRequest) -> int:
    return len(request.py_draft_tokens)
