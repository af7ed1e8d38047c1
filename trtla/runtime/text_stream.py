"""Incremental detokenization: the text of growing token ids, final piece by final piece, and stops.

The text of an output depends on the ids alone: it is what decoding prompt and output at once gives
after the prompt's own text, up to the first stop string. Ids are taken one by one, so how many
came in a step makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
"""Ids to text without special tokens and without any tidying of spaces."""

_BROKEN = "\N{REPLACEMENT CHARACTER}"  # what decoders show for an unfinished UTF-8 sequence
_CONTEXT = 6  # prompt tokens decoded along, so that the first piece keeps its leading space
_WINDOW = 12  # final tokens decoded along with new ones: so many, and at most twice as many


class TextStream:
    """The text of one output, growing as tokens come.

    What `push` returns is final. Held back are an unfinished UTF-8 sequence, a run of byte-fallback
    tokens (decoders show all of it as U+FFFD when one byte turns out wrong), and the end of the
    text where it may still become a stop string.

    Args:
        decode: ids to text.
        prompt: ids that the output continues.
        stop: the text ends before the first of them.
        byte_tokens: ids of byte-fallback tokens.
    """

    def __init__(
        self,
        decode: Decode,
        prompt: Sequence[int],
        stop: Sequence[str],
        byte_tokens: frozenset[int] = frozenset(),
    ) -> None:
        self._decode, self._stop, self._bytes = decode, tuple(stop), byte_tokens
        self._window = self._context(prompt)  # begins where the text before it is final
        self._cut = 0  # the window may begin here: the text before it is final
        self._known = decode(self._window)  # of the window, up to the last final token
        self._in_run = False
        self._final = ""
        self._rest = ""  # what follows the final text as long as no further token changes it
        self._sent = 0

    def _context(self, prompt: Sequence[int]) -> list[int]:
        """The end of the prompt, from a token on that shows whole characters of its own."""
        start = max(0, len(prompt) - _CONTEXT)
        while start and not self._stands_alone(prompt[start]):
            start -= 1
        return list(prompt[start:])

    def _stands_alone(self, token: int) -> bool:
        text = self._decode([token])
        return bool(text) and _BROKEN not in text and token not in self._bytes

    @property
    def stopped(self) -> bool:
        """Whether the ids so far hold a stop string, unfinished characters included."""
        return self._stop_at(self._final + self._rest) is not None

    def push(self, ids: Sequence[int], *, last: bool = False) -> str:
        """Add tokens; returns the text that is now certain. With `last` all of it."""
        for token in ids:
            self._add(token)
        text = self._final + self._rest if last else self._final
        end = self._stop_at(text)
        if end is None:
            end = len(text) - (0 if last else self._held_back())
        piece = text[self._sent : end]
        self._sent = max(self._sent, end)
        return piece

    def _add(self, token: int) -> None:
        self._window.append(token)
        after = self._decode(self._window)
        # The common beginning, not the length: a character that the prompt began is the output's.
        self._rest = after[_shared(self._known, after) :]
        if self._runs_on(token) or not self._rest or after.endswith(_BROKEN):
            return
        self._final += self._rest
        self._rest, self._known = "", after
        self._shorten()

    def _shorten(self) -> None:
        """Forget old tokens of a long window; those that stay show text, so it keeps its spaces."""
        if len(self._window) - self._cut < _WINDOW:
            return
        window, self._cut = self._window[self._cut :], len(self._window)
        known = self._decode(window)
        if known.strip(" "):
            self._window, self._known, self._cut = window, known, len(window)

    def _runs_on(self, token: int) -> bool:
        """Whether a run of byte tokens may go on; tokens that show nothing do not end it."""
        if self._in_run and token not in self._bytes:
            self._in_run = not self._decode([token])
        else:
            self._in_run = token in self._bytes
        return self._in_run

    def _stop_at(self, text: str) -> int | None:
        """Where the first stop string begins; it is not in what was sent."""
        found = [at for stop in self._stop if (at := text.find(stop, self._sent)) >= 0]
        return min(found, default=None)

    def _held_back(self) -> int:
        """Length of the longest end of the text that is the beginning of a stop string."""
        text, longest = self._final, 0
        for stop in self._stop:
            for length in range(min(len(stop), len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest


def _shared(first: str, second: str) -> int:
    """How many characters two texts begin with alike."""
    if second.startswith(first):
        return len(first)
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))


class StopStrings:
    """Says whether the text of an output holds a stop string.

    The answer depends on the ids alone. Consecutive calls are cheap when each one's ids continue
    those of the call before.
    """

    def __init__(
        self,
        decode: Decode,
        prompt: Sequence[int],
        stop: Sequence[str],
        byte_tokens: frozenset[int] = frozenset(),
    ) -> None:
        self._given = (decode, prompt, stop, byte_tokens)
        self._stream, self._ids = TextStream(*self._given), list[int]()

    def __call__(self, ids: list[int]) -> bool:
        if ids[: len(self._ids)] != self._ids:
            self._stream, self._ids = TextStream(*self._given), []
        self._stream.push(ids[len(self._ids) :])
        self._ids = list(ids)
        return self._stream.stopped
