"""_torch/pyexecutor/resource_manager.py: resource managers, notified as requests go on."""

from __future__ import annotations

from abc import ABC, abstractmethod

from .llm_request import LlmRequest
from .scheduler import ScheduledRequests


class BaseResourceManager(ABC):
    @abstractmethod
    def get_max_resource_count(self) -> int:
        """How much there is to share out."""

    @abstractmethod
    def get_needed_resource_to_completion(self, request: LlmRequest) -> int:
        """How much of it a request needs."""

    def add_dummy_requests(self, request_ids: list[int]) -> None:  # noqa: B027
        """Requests of the warm-up."""

    def prepare_resources(self, scheduled_batch: ScheduledRequests) -> None:  # noqa: B027
        """Before a pass."""

    def update_resources(self, scheduled_batch: ScheduledRequests) -> None:  # noqa: B027
        """After a pass."""

    def free_resources(self, request: LlmRequest) -> None:  # noqa: B027
        """A request is over, or evicted."""

    def shutdown(self) -> None:  # noqa: B027
        """The executor ends."""
