"""Candidate trees in SGLang, as a plugin that takes the place of its n-gram corpus:

    SGLANG_PLUGINS=trtla python -m sglang.launch_server --model-path MODEL \\
        --speculative-algorithm NGRAM --speculative-ngram-max-trie-depth 32768

SGLang's worker verifies a tree of a fixed size for each row, and asks its corpus for it by the
request's name, its length and the end of its text, as long as the option says.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from trtla.errors import UsageError
from trtla.extras.hosts.chains import ChainRequest, Chains, ChainSettings, log_fault
from trtla.runtime.draft import Draft

_CORPUS = "sglang.srt.speculative.cpp_ngram.ngram_corpus.NgramCorpus"
_KNOWN_VERSION = "0.5.23"
_OWN_DEPTH = 18  # SGLang's default: what its own trie learns grows with the square of it
_COMPARED = 64  # tokens compared to see that a text is the known one
_ANY_TOKEN = 2**31 - 1  # the vocabulary is not known here, so any token may be drafted
_log = logging.getLogger("sglang.trtla")  # below SGLang's own, which has handlers


def register() -> None:
    """Take the place of SGLang's n-gram corpus, if `SGLANG_PLUGINS` names this plugin.

    SGLang loads every plugin that is installed if the variable is empty; an environment may have
    trtla for other things.
    """
    if "trtla" not in os.environ.get("SGLANG_PLUGINS", "").replace(" ", "").split(","):
        return
    if _version() != _KNOWN_VERSION:
        _log.error("SGLang is %s; trtla drafts in %s alone", _version(), _KNOWN_VERSION)
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus

    corpus = type("TreeCorpus", (TreeCorpus, NgramCorpus), {})
    HookRegistry.register(_CORPUS, corpus, HookType.REPLACE)


class _Text:
    """The text of a request as far as it was seen."""

    def __init__(self, number: int, tail: Sequence[int]) -> None:
        self.number, self.tokens = number, array("q", tail)
        self.prompt_len = len(tail)
        self.unseen = 0
        """Tokens before the first one that was seen."""

    def goes_on(self, tail: Sequence[int], size: int) -> bool:
        """Append what is new; False if the end of the text is another one's, or leaves a gap."""
        new = size - self.unseen - len(self.tokens)
        if not 0 <= new <= len(tail):
            return False
        old = len(tail) - new
        same = min(old, len(self.tokens), _COMPARED)
        if list(self.tokens[len(self.tokens) - same :]) != list(tail[old - same : old]):
            return False
        self.tokens.extend(tail[old:])
        return True


class TreeCorpus:
    """The methods of SGLang's corpus that draft, in front of its class: one corpus for a model.

    It raises nothing of its own: a fault is logged once, and ends its trees; SGLang's own corpus,
    which learns all the time, goes on.
    """

    draft_token_num: int

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "max_trie_depth": _OWN_DEPTH})
        self._chains: Chains | None = None
        self._texts: dict[str, _Text] = {}
        self._numbers = 0
        # With breadth 1 SGLang allows pages that take no branches.
        self._branches = settings.get("max_bfs_breadth") != 1
        try:
            if settings.get("external_sam_budget"):
                raise UsageError(
                    "external corpora are drafted from by SGLang's own corpus alone",
                    "leave out --speculative-ngram-external-sam-budget",
                )
            self._chains = self._new_chains()
        except Exception as error:
            self._stop(error)

    def _new_chains(self) -> Chains:
        return Chains(ChainSettings(max(1, self.draft_token_num - 1), _ANY_TOKEN))

    def batch_get(
        self, req_ids: list[str], batch_tokens: list[list[int]], total_lens: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the nodes of all rows, the last token of the text first, and their masks."""
        if self._chains is not None:
            try:
                rows = zip(req_ids, batch_tokens, total_lens, strict=True)
                drafts = self._drafts(self._chains, [self._request(*row) for row in rows])
                return self._arrays([tail[-1] for tail in batch_tokens], drafts)
            except Exception as error:
                self._stop(error)
        own: Any = super()
        answer: tuple[np.ndarray, np.ndarray] = own.batch_get(
            req_ids, [tail[-_OWN_DEPTH:] for tail in batch_tokens], total_lens
        )
        return answer

    def batch_put(self, batch_tokens: list[list[int]]) -> None:
        own: Any = super()
        own.batch_put([tail[-_OWN_DEPTH:] for tail in batch_tokens])

    def erase_match_state(self, req_ids: list[str]) -> None:
        """End requests that left the batch; those that come back begin anew."""
        own: Any = super()
        own.erase_match_state(req_ids)
        texts = [self._texts.pop(name, None) for name in req_ids]
        if self._chains is not None:
            try:
                for text in filter(None, texts):
                    self._chains.end(text.number, text.tokens)
            except Exception as error:
                self._stop(error)

    def reset(self) -> None:
        """Forget all texts, as when SGLang flushes its cache."""
        own: Any = super()
        own.reset()
        self._texts.clear()
        if self._chains is not None:
            self._chains = self._new_chains()

    def _request(self, name: str, tail: list[int], size: int) -> ChainRequest:
        text = self._texts.get(name)
        if text is None or not text.goes_on(tail, size):
            if text is not None and self._chains is not None:
                self._chains.end(text.number, text.tokens)
            text = self._texts[name] = _Text(self._numbers, tail)
            text.unseen = size - len(tail)
            self._numbers += 1
        return ChainRequest(text.number, text.tokens, text.prompt_len, self.draft_token_num - 1)

    def _drafts(self, chains: Chains, requests: list[ChainRequest]) -> list[Draft]:
        if self._branches:
            return chains.trees(requests)
        return [Draft.chain(chain) for chain in chains.draft(requests)]

    def _arrays(self, roots: list[int], drafts: list[Draft]) -> tuple[np.ndarray, np.ndarray]:
        count = self.draft_token_num
        tokens = np.zeros((len(roots), count), np.int64)
        masks = np.tile(np.eye(count, dtype=np.int64), (len(roots), 1, 1))
        for row, (root, draft) in enumerate(zip(roots, drafts, strict=True)):
            tokens[row, : draft.size] = root, *draft.tokens
            masks[row, draft.size :, 0] = 1  # SGLang's padding: zeros below the root
            for node, parent in enumerate(draft.parents, 1):
                masks[row, node] |= masks[row, parent]
        return tokens.ravel(), masks.ravel()

    def _stop(self, error: Exception) -> None:
        self._chains = None
        self._texts.clear()
        host = f"SGLang {_version()}; known to work: {_KNOWN_VERSION}"
        log_fault(_log, "SGLang's own corpus does", host, error)


def _version() -> str:
    try:
        return version("sglang")
    except PackageNotFoundError:
        return "of an unknown version"
