"""_torch/pyexecutor/py_executor.py: the loop without overlap, with a target that a test brings.

It is given a configuration as a worker process is: through a pickle. `evict` makes a request give
up its K/V blocks, as a full cache does.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence

from ...llmapi import UserProvidedDecodingConfig
from ..speculative.drafter import Drafter
from .llm_request import LlmRequest
from .resource_manager import BaseResourceManager
from .scheduler import ScheduledRequests

Target = Callable[[Sequence[int]], int]
"""The target's next token after these."""


class PyExecutor:
    """Requests in, tokens out; the target of a request draws every token itself."""

    def __init__(
        self, config: UserProvidedDecodingConfig, vocab_size: int, max_input_len: int = 8192
    ) -> None:
        config = pickle.loads(pickle.dumps(config))  # noqa: S301
        if not isinstance(config.drafter, Drafter):
            raise TypeError("the drafter is no Drafter")
        if not isinstance(config.resource_manager, BaseResourceManager | None):
            raise TypeError("the resource manager is no BaseResourceManager")
        if config.drafter.max_draft_len != config.max_draft_len:
            raise ValueError("the drafter's max_draft_len is not the configuration's")
        self.drafter, self._resources = config.drafter, config.resource_manager
        self._most, self._vocab_size = config.max_total_draft_tokens, vocab_size
        self._max_input_len = max_input_len
        self._new: list[tuple[LlmRequest, Target]] = []
        self._running: list[tuple[LlmRequest, Target]] = []
        self.passes = self.drafted = self.accepted = 0

    def enqueue(self, request: LlmRequest, target: Target) -> None:
        self._new.append((request, target))

    def evict(self, request: LlmRequest) -> None:
        [one] = [one for one in self._running if one[0] is request]
        self._running.remove(one)
        request.pause(self._max_input_len)
        self._free(request)
        self._new.append(one)

    def step(self) -> bool:
        """One pass; False when nothing is left to do."""
        if not self._new and not self._running:
            return False
        batch = ScheduledRequests([one for one, _ in self._new], [one for one, _ in self._running])
        for request in batch.generation_requests:
            request.py_draft_tokens = (
                [] if request.py_disable_speculative_decoding else [0] * self._most
            )
        if self._resources is not None:
            self._resources.prepare_resources(batch)
        self._draft(batch)
        running, self._running, started, self._new = self._running, [], self._new, []
        for request, target in (*running, *started):
            if self._verify(request, target):
                self._free(request)
            else:
                self._running.append((request, target))
        if self._resources is not None:
            self._resources.update_resources(batch)
        self.passes += 1
        return True

    def _draft(self, batch: ScheduledRequests) -> None:
        reserved = {r.request_id: len(r.py_draft_tokens) for r in batch.generation_requests}
        self.drafter.prepare_draft_tokens(batch, None)
        for request in batch.generation_requests:
            draft = request.py_draft_tokens
            if len(draft) > reserved[request.request_id]:
                raise IndexError(f"{len(draft)} drafts where blocks are reserved for fewer")
            if any(not 0 <= token < self._vocab_size for token in draft):
                raise IndexError(f"the embedding has no row for one of {draft}")
            self.drafted += len(draft)
        padded = ScheduledRequests(
            [], [r for r in batch.generation_requests if not r.py_disable_speculative_decoding]
        )
        self.drafter.pad_draft_tokens_for_cuda_graph(padded)

    def _verify(self, request: LlmRequest, target: Target) -> bool:
        """Draw a token at each place as long as the drafts are right; True: the request is over."""
        for draft in (*request.py_draft_tokens, None):
            token = target(request.get_tokens(0))
            request.add_new_token(token, 0)
            tokens = request.get_tokens(0)
            if token == request.py_end_id:
                return True
            if len(tokens) >= request.py_orig_prompt_len + request.py_max_new_tokens:
                return True
            if token != draft:
                return False
            self.accepted += 1
        return False

    def _free(self, request: LlmRequest) -> None:
        request.py_draft_tokens = []
        if self._resources is not None:
            self._resources.free_resources(request)
