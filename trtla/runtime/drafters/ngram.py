"""N-gram assisted drafting (NASD): counts of the text so far say what comes next, without a model.

Besides what became output, the target's most probable tokens at those places are counted, which
is what `top_k_filler` is; with 1 only the output counts (NAPD, Ou et al. 2024).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from trtla.drafting import DrafterSettings
from trtla.runtime.draft import Draft, StepLimit
from trtla.runtime.drafters.chain_length import ChainLength
from trtla.runtime.drafters.ngram_storage import NgramStorage
from trtla.runtime.executor import Request


class NgramDrafter:
    """The drafter of one request.

    Args:
        settings: gamma and the n-gram choices.
        vocab_size: what random tokens are drawn from where unknown contexts do not end a draft.
        storage: counts shared with other requests, which this one adds to; None: its own.
    """

    def __init__(
        self,
        settings: DrafterSettings,
        request: Request,
        vocab_size: int,
        storage: NgramStorage | None = None,
    ) -> None:
        if storage is None:
            storage = NgramStorage(settings.ngram_order, settings.ngram_kind)
        self.storage = storage
        self._length = ChainLength(settings.gamma, request.sampling.max_output_len)
        self._stops = settings.stop_if_unknown
        self._vocab_size = vocab_size
        self._random = random.Random(request.sampling.seed)
        self._top = settings.top_k_filler if settings.top_k_filler > 1 else 0
        self._tops: Sequence[Sequence[int]] = ()
        self._recent = list(request.input_ids[-storage.longest :])
        """As much of the text's end as a context holds."""
        storage.initialize(request.known_ids)

    def propose(self, limit: StepLimit | None = None) -> Draft:
        """A chain of looked-up tokens, each known by those before it."""
        text = list(self._recent)
        for _ in range(self._length.now(limit)):
            token = self.storage.next_token(text)
            if token is None:
                if self._stops:
                    break
                token = self._random.randrange(self._vocab_size)
            text.append(token)
        return Draft.chain(text[len(self._recent) :], self._top)

    def ranked(self, tops: Sequence[Sequence[int]]) -> None:
        """What the target held for most probable where it is about to commit tokens."""
        self._tops = tops

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        """Count the committed tokens, and the most probable ones beside them."""
        tops, self._tops = self._tops or [()] * len(committed), ()
        for token, top in zip(committed, tops, strict=True):
            self.storage.update(self._recent, (token, *top[: self._top]))
            self._recent.append(token)
            del self._recent[: -self.storage.longest]
        self._length.commit(len(committed))
