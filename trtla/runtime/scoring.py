"""How probable a text is: what an executor that knows it tells, and the perplexity that follows.

Plain floats; `log_probs` runs the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from trtla.errors import UsageError
from trtla.runtime.executor import Executor, Request


@runtime_checkable
class Scorer(Protocol):
    """An executor that tells how probable a text is."""

    def log_probs(self, request: Request, output_ids: Sequence[int]) -> list[float]:
        """Natural logarithms, one for each of `output_ids`, which follow the request's prompt."""


def scorer(executor: Executor, name: str) -> Scorer:
    """The executor of the engine called `name`, as one that scores.

    Raises:
        UsageError: it is TensorRT-LLM's.
    """
    if not isinstance(executor, Scorer):
        raise UsageError(
            f"{name} is a TensorRT-LLM engine, and trtla builds none that give logits",
            "score with a torch engine",
        )
    return executor


def perplexity(log_probs: Sequence[float]) -> float:
    """exp of the mean negative log probability of at least one token."""
    return math.exp(-sum(log_probs) / len(log_probs))
