"""_torch/speculative/drafter.py of 2026: what a user-provided drafter derives from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, final

from ..._version import at_least
from ..pyexecutor.llm_request import get_draft_token_length
from ..pyexecutor.scheduler import ScheduledRequests


class Drafter(ABC):
    def __init__(
        self,
        max_draft_len: int | None = None,
        max_total_draft_tokens: int | None = None,
        max_concurrency: int | None = None,
        draft_len_schedule: dict[int, int] | None = None,
    ) -> None:
        self.max_draft_len = max_draft_len
        self.max_total_draft_tokens = max_total_draft_tokens
        self._static_max_total_draft_tokens = max_total_draft_tokens
        self.max_concurrency = max_concurrency
        self.draft_len_schedule = draft_len_schedule

    if not at_least(1, 2):

        def __init__(self, max_concurrency: int | None = None) -> None:  # type: ignore[no-redef]
            self.max_concurrency = max_concurrency

    @abstractmethod
    def prepare_draft_tokens(
        self, scheduled_requests: ScheduledRequests, resource_manager: Any = None
    ) -> None:
        """Write a list to each generating request's `py_draft_tokens`."""

    @final
    def pad_draft_tokens_for_cuda_graph(self, scheduled_requests: ScheduledRequests) -> None:
        """Lengthen the drafter's own lists, in place, to the most tokens there can be."""
        for request in scheduled_requests.generation_requests:
            missing = self._static_max_total_draft_tokens - get_draft_token_length(request)
            request.py_draft_tokens.extend(0 for _ in range(missing))

    def update_max_total_draft_tokens(self, new_max_total_draft_tokens: int) -> None:
        """Another length from now on, as a schedule by batch size has it."""
        self.max_total_draft_tokens = new_max_total_draft_tokens
        self.max_draft_len = new_max_total_draft_tokens
