"""A drafter for the PyTorch backend of TensorRT-LLM: one chain a request, from its candidate tree.

    from tensorrt_llm import LLM
    from trtla.trtllm.drafter import speculative_config

    llm = LLM("Llama-3.1-8B", speculative_config=speculative_config(8, vocab_size=128256))

That backend verifies chains, and shows a drafter the accepted tokens but no logits. So the sources
are texts: the request's own and those of requests that have ended. A chain takes the likeliest
child of each node in their tree.
"""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtla.errors import TrtlaError, UsageError, sentence
from trtla.runtime.costs import NodePrices
from trtla.runtime.draft import Draft, alike
from trtla.runtime.models.cpu.native_code import NotCompiled
from trtla.runtime.tree.library import Planner, SharedTrees, Tree
from trtla.settings.sampling import DRAWN, SamplingParams
from trtla.trtllm.library import HOW_TO_INSTALL, installed_version, load

_SOURCES = ("context", "requests")
_GREEDY = SamplingParams()  # tokens are ranked by their chances, also for requests that sample
_NO_TOKEN = -1  # separates texts in trees: never matched, never drafted
_MOST_NODES = 512  # of a tree that a chain is taken from
_COMPARED = 64  # tokens compared to recognise a request's text
_IDLE = 1000  # passes without a request after which it counts as ended
_UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """The settings of drafting.

    Args:
        max_draft_len: most tokens of a chain.
        vocab_size: of the target; ids outside it (images in a prompt) are not drafted.
        least_chance: a chain ends before a token that is accepted less often than this.
        other_tokens: of ended requests to draft from; 0: each request's own text alone.
        sampled: also draft for requests that sample.
    """

    max_draft_len: int
    vocab_size: int
    least_chance: float = 0.05
    other_tokens: int = 200_000
    sampled: bool = False

    def __post_init__(self) -> None:
        for name, least in (("max_draft_len", 1), ("vocab_size", 1), ("other_tokens", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"{name} is {value!r}", f"use a whole number from {least} on")
        if not 0.0 < self.least_chance < 1.0:
            raise UsageError(
                f"least_chance is {self.least_chance!r}",
                "use a number between 0 and 1, such as 0.05",
            )


@dataclass(slots=True)
class ChainRequest:
    """A request for a chain: its tokens so far, and how many more it may have."""

    request: int
    tokens: Sequence[int]
    prompt_len: int
    room: int


@dataclass(slots=True)
class _Known:
    tree: Tree
    tokens: Sequence[int]
    prompt_len: int
    chain: list[int] = field(default_factory=list)
    seen: int = 0

    def goes_on_as(self, tokens: Sequence[int]) -> bool:
        """Return True if a text continues the known one; an evicted request may come back
        shorter."""
        size = len(self.tokens)
        first = max(0, size - _COMPARED)
        return len(tokens) >= size and tokens[first:size] == self.tokens[first:]

    def commit(self, tokens: Sequence[int]) -> None:
        """Append to the text, and learn from every token."""
        accepted = alike(self.chain, tokens)
        if tokens:
            self.tree.commit(tokens[: accepted + 1], accepted)
        for token in tokens[accepted + 1 :]:
            self.tree.commit((token,))


class Chains:
    """The candidate trees of all requests. Calls may come from several threads.

    The same calls in the same order give the same chains, so that the ranks of a tensor-parallel
    model agree.
    """

    def __init__(self, settings: ChainSettings) -> None:
        self._settings = settings
        try:  # no rows of logits are kept, so the vocabulary size does not matter
            self._shared = SharedTrees(1, max(1, settings.other_tokens))
            self._planner = Planner()
        except NotCompiled as error:
            message = f"there are no compiled candidate trees: {error}"
            raise TrtlaError(message, error.hint) from None
        self._requests: OrderedDict[int, _Known] = OrderedDict()
        self._now = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._requests)

    def draft(self, requests: Sequence[ChainRequest]) -> list[list[int]]:
        with self._lock:
            self._now += 1
            known = [self._follow(request) for request in requests]
            self._forget_idle()
            if known:
                self._plan(known, [max(0, request.room) for request in requests])
            return [list(request.chain) for request in known]

    def end(self, request: int, tokens: Sequence[int]) -> None:
        """End a request, or its stay in the cache: free its tree, and draft from its output."""
        with self._lock:
            known = self._requests.pop(request, None)
            if known is not None:
                self._add_output(known, tokens)

    def _follow(self, request: ChainRequest) -> _Known:
        known = self._requests.get(request.request)
        if known is not None and known.goes_on_as(request.tokens):
            known.commit(self._inside(request.tokens[len(known.tokens) :]))
            known.tokens = request.tokens
        else:
            text = self._inside(request.tokens)
            tree = self._shared.tree(text, _GREEDY, _SOURCES, False)
            known = self._requests[request.request] = _Known(
                tree, request.tokens, request.prompt_len
            )
        known.seen = self._now
        self._requests.move_to_end(request.request)
        return known

    def _plan(self, known: list[_Known], rooms: list[int]) -> None:
        # At most 1 / least_chance nodes of a depth are that likely, so the chain is among them.
        share = int(1.0 / self._settings.least_chance) + 1
        nodes = [min(_MOST_NODES, room * share) for room in rooms]
        trees = [known_request.tree for known_request in known]
        prices = NodePrices(least=self._settings.least_chance)
        drafts = self._planner.plan(trees, nodes, rooms, sum(nodes), prices)
        for known_request, draft in zip(known, drafts, strict=True):
            known_request.chain = _likeliest(draft)

    def _forget_idle(self) -> None:
        while self._requests:
            request, known = next(iter(self._requests.items()))
            if self._now - known.seen < _IDLE:
                return
            del self._requests[request]
            self._add_output(known, known.tokens)

    def _add_output(self, known: _Known, tokens: Sequence[int]) -> None:
        if self._settings.other_tokens:
            self._shared.add_text(self._inside(tokens[known.prompt_len :]))

    def _inside(self, tokens: Iterable[int]) -> list[int]:
        size = self._settings.vocab_size
        return [token if 0 <= token < size else _NO_TOKEN for token in tokens]


def _likeliest(draft: Draft) -> list[int]:
    """Return the path of best nodes: a draft lists its nodes best first."""
    chain, last = list[int](), 0
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True), 1):
        if parent == last:
            chain.append(token)
            last = node
    return chain


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
