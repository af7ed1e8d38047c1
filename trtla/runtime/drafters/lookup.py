"""Drafts looked up in the text, without a model: prompt lookup, and counts of n-grams (NASD)."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator, Sequence

from trtla.runtime.draft import Draft, Drafter
from trtla.runtime.request import Request
from trtla.settings.drafting import DrafterSettings, NgramKind

_LONGEST_CONTEXT = 16  # tokens compared: among matches this long the latest is as good as any
_MOST_PLACES = 64  # of a pair of tokens that are examined: bounds the time of a look-up
_CAPACITY = 1 << 16  # about 20 MiB


class LookupDrafter(Drafter):
    """Proposes one chain a step, which leaves room for the target's own token: nothing is fed that
    could never be accepted, and a text never needs more cache than its own.

    Args:
        gamma: most tokens of a draft.
        max_output_len: of the request; None: unlimited.
    """

    def __init__(self, gamma: int, max_output_len: int | None) -> None:
        self._gamma, self._left = gamma, max_output_len

    def propose(self) -> Draft:
        most = self._gamma if self._left is None else min(self._gamma, self._left - 1)
        return Draft.chain(self._continuation(most) if most > 0 else ())

    @abstractmethod
    def _continuation(self, most: int) -> Sequence[int]: ...

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        if self._left is not None:
            self._left -= len(committed)


class PromptLookupDrafter(LookupDrafter):
    """Proposes the continuation of the longest match of the text's end in prompt and output, the
    latest of equally long ones; if the text ends too early, it is taken to repeat from there.

    A match has at least two tokens. Counts, other requests and models play no part.
    """

    def __init__(
        self, gamma: int, prompt: Sequence[int], max_output_len: int | None = None
    ) -> None:
        super().__init__(gamma, max_output_len)
        self._text = list(prompt)
        self._last: dict[tuple[int, int], int] = {}
        self._before = [0]
        """For each position the one before where the same two tokens ended; 0: none."""

    def _continuation(self, most: int) -> Sequence[int]:
        self._catch_up()
        position = self._longest_match()
        after = self._text[position + 1 : position + 1 + most] if position else []
        while after and len(after) < most:
            after += after[: most - len(after)]
        return after

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        super().observe(greedy, committed)
        self._text += committed

    def _catch_up(self) -> None:
        text, last, before = self._text, self._last, self._before
        for position in range(len(before), len(text)):
            pair = (text[position - 1], text[position])
            before.append(last.get(pair, 0))
            last[pair] = position

    def _longest_match(self) -> int:
        """Return the position of a match's last token; 0 if there is none."""
        best, longest, position = 0, 1, self._before[-1]
        for _ in range(_MOST_PLACES):  # later places first
            if not position or longest == _LONGEST_CONTEXT:
                break
            context = self._context(position)
            if context > longest:
                best, longest = position, context
            position = self._before[position]
        return best

    def _context(self, position: int) -> int:
        """Count the tokens up to a position that equal the text's last ones; at least two do."""
        text, back, count = self._text, len(self._text) - 1 - position, 2
        while count < _LONGEST_CONTEXT and count <= position:
            if text[position - count] != text[position + back - count]:
                break
            count += 1
        return count


class NgramDrafter(LookupDrafter):
    """Proposes the tokens that mostly followed the text's end so far (NASD).

    Besides the output, `top_k_filler` of the target's most probable tokens in its positions are
    counted; with 1 only the output counts (NAPD, Ou et al. 2024).

    Args:
        settings: gamma and the n-gram choices.
        vocab_size: range of random tokens, if unknown contexts do not end a draft.
        storage: counts shared with other requests; None: counts of its own.
    """

    def __init__(
        self,
        settings: DrafterSettings,
        request: Request,
        vocab_size: int,
        storage: NgramStorage | None = None,
    ) -> None:
        super().__init__(settings.gamma, request.sampling.max_output_len)
        if storage is None:
            storage = NgramStorage(settings.ngram_order, settings.ngram_kind)
        self.storage = storage
        self._stops = settings.stop_if_unknown
        self._vocab_size = vocab_size
        self._random = random.Random(request.sampling.seed)
        self.ranks = settings.top_k_filler if settings.top_k_filler > 1 else 0
        self._tops: Sequence[Sequence[int]] = ()
        self._recent = list(request.input_ids[-storage.longest :])
        """The text's end, as long as a context."""
        storage.initialize(request.known_ids)

    def _continuation(self, most: int) -> Sequence[int]:
        text = list(self._recent)
        for _ in range(most):
            token = self.storage.next_token(text)
            if token is None:
                if self._stops:
                    break
                token = self._random.randrange(self._vocab_size)
            text.append(token)
        return text[len(self._recent) :]

    def ranked(self, tops: Sequence[Sequence[int]]) -> None:
        self._tops = tops

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        """Count the committed tokens, and the most probable ones in their positions."""
        super().observe(greedy, committed)
        tops, self._tops = self._tops or [()] * len(committed), ()
        for token, top in zip(committed, tops, strict=True):
            self.storage.update(self._recent, (token, *top[: self.ranks]))
            self._recent.append(token)
            del self._recent[: -self.storage.longest]


class _Followers:
    __slots__ = ("best", "counts")

    def __init__(self, first: int) -> None:
        self.best = first
        self.counts = {first: 0}

    def add(self, token: int) -> bool:
        """Count a token; return True if it is new. A leader stays until another exceeds it."""
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
        capacity: most counts kept; the least recently used contexts are dropped whole.
    """

    def __init__(self, order: int, kind: NgramKind = "basic", capacity: int = _CAPACITY) -> None:
        self.longest = order - 1
        """Most tokens of a context."""
        self._shortest = 1 if kind == "basic" else self.longest
        self._capacity = capacity
        self._contexts: dict[tuple[int, ...], _Followers] = {}
        """In order of use, the most recent one last."""
        self._size = 0

    def initialize(self, prompt: Sequence[int]) -> None:
        """Add the counts of every n-gram of a text."""
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
        """Return the most frequent token after a sequence's longest known context; None: unknown.

        Among equally frequent tokens the first to reach the count wins.
        """
        for context in self._contexts_of(sequence):
            followers = self._contexts.pop(context, None)
            if followers is not None:
                self._contexts[context] = followers
                return followers.best
        return None

    def count(self, gram: Sequence[int]) -> int:
        """Return the count of an n-gram's last token after those before it."""
        followers = self._contexts.get(tuple(gram[:-1]))
        return followers.counts.get(gram[-1], 0) if followers else 0

    def __len__(self) -> int:
        return self._size

    def _contexts_of(self, sequence: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yield the ends of a sequence that are contexts, the longest first."""
        for length in range(min(self.longest, len(sequence)), self._shortest - 1, -1):
            yield tuple(sequence[-length:])
