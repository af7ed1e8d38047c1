"""N-gram assisted drafting (NASD): counts of the text so far say what comes next, without a model.

Besides what became output, the target's most probable tokens at those places are counted, which
is what `top_k_filler` is; with 1 only the output counts (NAPD, Ou et al. 2024).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from trtla.runtime.draft import Draft, Drafter
from trtla.runtime.drafters.shapes import ChainLength
from trtla.runtime.request import Request
from trtla.settings.drafting import DrafterSettings, NgramKind


class NgramDrafter(Drafter):
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

    def propose(self) -> Draft:
        """A chain of looked-up tokens, each known by those before it."""
        text = list(self._recent)
        for _ in range(self._length.now()):
            token = self.storage.next_token(text)
            if token is None:
                if self._stops:
                    break
                token = self._random.randrange(self._vocab_size)
            text.append(token)
        return Draft.chain(text[len(self._recent) :], self._top)

    def skip(self) -> Draft:
        """Look at the most probable tokens all the same."""
        return Draft(top=self._top)

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


_CAPACITY = 1 << 16  # about 20 MiB


class _Followers:
    """How often each token followed a context, and which one leads."""

    __slots__ = ("best", "counts")

    def __init__(self, first: int) -> None:
        self.best = first
        self.counts = {first: 0}

    def add(self, token: int) -> bool:
        """Count a token; True if it is new here. A leader stays until another beats it."""
        count = self.counts.get(token, 0) + 1
        self.counts[token] = count
        if count > self.counts[self.best]:
            self.best = token
        return count == 1


class NgramStorage:
    """Counts of n-grams: context -> next token -> how often.

    Args:
        order: n, tokens of the longest n-gram: those of its context and the one that follows.
        kind: `basic` keeps contexts of 1 to n-1 tokens and looks them up from long to short;
            `onelevel` keeps those of n-1 tokens alone.
        capacity: most counts kept; whole contexts go, those first that were used longest ago.
    """

    def __init__(self, order: int, kind: NgramKind = "basic", capacity: int = _CAPACITY) -> None:
        self.longest = order - 1
        """Most tokens of a context."""
        self._shortest = 1 if kind == "basic" else self.longest
        self._capacity = capacity
        self._contexts: dict[tuple[int, ...], _Followers] = {}
        """The one used last at the end."""
        self._size = 0

    def initialize(self, prompt: Sequence[int]) -> None:
        """Count every n-gram of a text, on top of what is here."""
        for end in range(1, len(prompt)):
            self.update(prompt[max(0, end - self.longest) : end], prompt[end : end + 1])

    def update(self, sequence: Sequence[int], next_tokens: Sequence[int]) -> None:
        """Count each of `next_tokens` once, in their order, behind the end of a sequence."""
        if not next_tokens:
            return
        for context in self._contexts_of(sequence):
            followers = self._contexts.pop(context, None) or _Followers(next_tokens[0])
            self._contexts[context] = followers
            for token in next_tokens:
                self._size += followers.add(token)
        while self._size > self._capacity:
            oldest = next(iter(self._contexts))
            self._size -= len(self._contexts.pop(oldest).counts)

    def next_token(self, sequence: Sequence[int]) -> int | None:
        """What mostly followed the end of a sequence, by its longest known context; None: unknown.

        Of equally frequent tokens it is the one that had that count first.
        """
        for context in self._contexts_of(sequence):
            followers = self._contexts.pop(context, None)
            if followers is not None:
                self._contexts[context] = followers
                return followers.best
        return None

    def count(self, gram: Sequence[int]) -> int:
        """How often the last token of an n-gram was counted behind those before it."""
        followers = self._contexts.get(tuple(gram[:-1]))
        return followers.counts.get(gram[-1], 0) if followers else 0

    def has_gram(self, gram: Sequence[int]) -> bool:
        """Whether an n-gram was counted, and is still kept."""
        return self.count(gram) > 0

    def reset(self) -> None:
        """Forget everything."""
        self._contexts.clear()
        self._size = 0

    def __len__(self) -> int:
        """Number of counts."""
        return self._size

    def _contexts_of(self, sequence: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Ends of a sequence that are kept as contexts, the longest first."""
        for length in range(min(self.longest, len(sequence)), self._shortest - 1, -1):
            yield tuple(sequence[-length:])
