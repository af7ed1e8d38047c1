"""Requests for the engines of the fixture `engine`, and running them to their end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtla import SamplingParams
from trtla.runtime.executor import Executor
from trtla.runtime.request import Output, Request

PROMPT = tuple(b"def read(path):\n    ")
Engines = Callable[..., Path]
"""What the fixture is: gives an engine folder for a triple."""


def request(number: int, prompt: tuple[int, ...] = PROMPT, **given: Any) -> Request:
    sampling = SamplingParams(max_output_len=16, **given.pop("sampling", {}))
    return Request(number, prompt, sampling, **given)


def drain(executor: Executor) -> dict[int, Output]:
    """The last output of every request."""
    last: dict[int, Output] = {}
    while step := executor.poll():
        last.update({output.request_id: output for output in step})
    return last
