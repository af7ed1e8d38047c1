"""Logits that are no answer: what stands in place of their token, and the error of the request."""

from __future__ import annotations

from trtla.errors import TrtlaError

NO_TOKEN = -1
"""In place of a token: the row's logits hold NaN or +infinity, or all of them are -infinity."""


def no_answer(label: str, place: int) -> TrtlaError:
    """The error of a request whose output token `place`, counted from 0, cannot be chosen."""
    return TrtlaError(
        f"{label}: the model's logits for output token {place} are not finite",
        "try --dtype float32 or bfloat16, whose range is wider; if that fails too, the checkpoint "
        "holds NaN or infinite weights: see trtla inspect",
    )
