"""_torch/pyexecutor/scheduler.py: the requests of a pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from .llm_request import LlmRequest


@dataclass(slots=True)
class ScheduledRequests:
    context_requests: list[LlmRequest] = field(default_factory=list)
    generation_requests: list[LlmRequest] = field(default_factory=list)
