"""A drafter for the PyTorch backend of TensorRT-LLM: one chain a request, from its candidate tree.

    from tensorrt_llm import LLM
    from trtla.extras.hosts.tensorrt_llm import speculative_config

    llm = LLM("Llama-3.1-8B", speculative_config=speculative_config(8, vocab_size=128256))

That backend verifies chains, and shows a drafter the accepted tokens but no logits.
"""

from __future__ import annotations

import inspect
from typing import Any

from trtla.errors import TrtlaError, sentence
from trtla.extras.hosts.chains import ChainRequest, Chains, ChainSettings
from trtla.settings.sampling import DRAWN
from trtla.trtllm.library import HOW_TO_INSTALL, installed_version, load

_UNLIMITED = 2**31 - 1


def speculative_config(max_draft_len: int, vocab_size: int, **settings: Any) -> Any:
    """Return a `speculative_config` for TensorRT-LLM's `LLM` that drafts with candidate trees.

    It is a `UserProvidedDecodingConfig`; `settings` are further fields of `ChainSettings`.
    """
    drafter = open_drafter(ChainSettings(max_draft_len, vocab_size, **settings))
    config = _part("llmapi", "UserProvidedDecodingConfig")
    return config(max_draft_len=max_draft_len, drafter=drafter, resource_manager=drafter.requests)


def open_drafter(settings: ChainSettings) -> Any:
    """Return a `Drafter` of TensorRT-LLM; its `requests` is the matching resource manager."""
    drafter = _part("_torch.speculative.drafter", "Drafter")
    if "max_total_draft_tokens" not in inspect.signature(drafter.__init__).parameters:
        raise TrtlaError(
            f"the Drafter of TensorRT-LLM {installed_version()} takes other arguments",
            "use a release from 1.2 on",
        )
    manager = _part("_torch.pyexecutor.resource_manager", "BaseResourceManager")
    requests = type("ChainRequests", (_Requests, manager), {})()
    return type("ChainDrafter", (_Drafter, drafter), {})(settings, requests)


def _part(module: str, name: str) -> Any:
    try:
        return getattr(load(module), name)
    except (ImportError, AttributeError) as error:
        version = installed_version()
        if version is None:
            raise TrtlaError("TensorRT-LLM is not installed", HOW_TO_INSTALL) from None
        raise TrtlaError(
            f"TensorRT-LLM {version} takes no drafter: {sentence(error)}",
            "use a release from 1.2 on, whose PyTorch backend has UserProvidedDecodingConfig",
        ) from None


class _Drafter:
    """The methods that TensorRT-LLM calls before each pass; `open_drafter` adds its base class.

    A pickle holds the settings alone: a worker process begins with empty trees.
    """

    _needs_padding_kv_extension = True
    """Late releases pad chains to max_draft_len, and then reserve K/V blocks for the padding."""
    max_draft_len: int
    """The longest draft; the base class may lower it while it runs."""

    def __init__(self, settings: ChainSettings, requests: _Requests) -> None:
        most = settings.max_draft_len
        super().__init__(max_draft_len=most, max_total_draft_tokens=most)  # type: ignore[call-arg]
        self.settings, self.requests = settings, requests
        self.chains = Chains(settings)
        requests.drafter = self

    def __reduce__(self) -> tuple[Any, ...]:
        return open_drafter, (self.settings,)

    def prepare_draft_tokens(self, scheduled_requests: Any, resource_manager: Any = None) -> None:
        """Write the chain of every generating request to its `py_draft_tokens`."""
        requests = list(scheduled_requests.generation_requests)
        drafted = [request for request in requests if self._drafts_for(request)]
        chains = self.chains.draft([self._chain_request(request) for request in drafted])
        for request in requests:
            request.py_draft_tokens = []
        for request, chain in zip(drafted, chains, strict=True):
            request.py_draft_tokens = chain

    def _chain_request(self, request: Any) -> ChainRequest:
        tokens = list(request.get_tokens(0))
        prompt_len = request.py_orig_prompt_len
        left = prompt_len + request.py_max_new_tokens - len(tokens)
        room = min(self.max_draft_len, left - 1)  # a pass adds a token of its own
        return ChainRequest(request.request_id, tokens, prompt_len, room)

    def _drafts_for(self, request: Any) -> bool:
        if getattr(request, "py_disable_speculative_decoding", False):
            return False
        return self.settings.sampled or _is_greedy(request.sampling_config)


class _Requests:
    """The methods that TensorRT-LLM calls when a request ends or leaves the K/V cache."""

    drafter: _Drafter

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.drafter, "requests")

    def get_max_resource_count(self) -> int:
        return _UNLIMITED

    def get_needed_resource_to_completion(self, request: Any) -> int:
        return 0

    def free_resources(self, request: Any) -> None:
        """Free the request's tree, and draft from its output for other requests."""
        self.drafter.chains.end(request.request_id, list(request.get_tokens(0)))


def _is_greedy(config: Any) -> bool:
    """Return True if the target takes the argmax; values are None, numbers, or lists as in C++."""
    values = {name: getattr(config, name, None) for name in DRAWN}
    single = {n: v[0] if isinstance(v, (list, tuple)) and v else v for n, v in values.items()}
    chosen = single["temperature"] == 0 or single["top_k"] == 1 or single["top_p"] == 0
    return chosen or all(value is None for value in single.values())
