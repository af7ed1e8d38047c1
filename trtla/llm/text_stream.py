"""Incremental detokenization: the text of growing token ids, final piece by final piece, and stops.

The text of an output depends on the ids alone: it is the decoded prompt and output without the
prompt's own text, up to the first stop string. Ids are taken one by one, so the number of ids in a
step does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from trtla.llm.stops import Beginning, Place, StopText

Decode = Callable[[Sequence[int]], str]
"""Decodes ids without special tokens and without tidying spaces."""

_BROKEN = "\N{REPLACEMENT CHARACTER}"  # decoders' output for an unfinished UTF-8 sequence
_CONTEXT = 6  # prompt tokens decoded along, so that the first piece keeps its leading space
_LONGEST_CHARACTER = 4  # tokens: one byte each
_OTHERS = -1  # no token: stands for omitted control tokens
_WINDOW = 12  # final tokens decoded along with new ones, at least; at most twice as many


def showing(decode: Decode, shown: Mapping[int, str]) -> Decode:
    """Decode with these special tokens shown, each by its text."""

    def decode_with(ids: Sequence[int]) -> str:
        places = [at for at, token in enumerate(ids) if token in shown]
        texts = [shown[ids[at]] for at in places]
        between = [decode(ids[a + 1 : b]) for a, b in pairwise([-1, *places, len(ids)])]
        return "".join(text for pair in zip(between, [*texts, ""], strict=True) for text in pair)

    return decode_with


class TextStream:
    """The growing text of one output.

    `push` returns final text. An unfinished UTF-8 sequence is held back, and a run of byte-fallback
    tokens (decoders show all of it as U+FFFD when one byte turns out wrong), and the end of the
    text if it may still become a stop string.

    Args:
        decode: ids to text.
        prompt: ids that the output continues.
        stop: the first of them ends the text.
        byte_tokens: ids of byte-fallback tokens, and the byte of each.
    """

    def __init__(
        self,
        decode: Decode,
        prompt: Sequence[int],
        stop: Sequence[StopText],
        byte_tokens: Mapping[int, int] | None = None,
    ) -> None:
        self._decode, self._stop, self._bytes = decode, tuple(stop), byte_tokens or {}
        self._window = self._context(prompt)  # the text before it is final
        self._cut = 0  # a possible later beginning of the window
        self._shown = self._known = decode(self._window)  # the window's text, and its final part
        self._run: bytearray | None = None  # an open run of byte tokens behind final text
        self._in_run = bool(self._window) and self._window[-1] in self._bytes
        self._final = ""
        self._pending = ""  # follows the final text as long as no further token changes it
        self._sent = 0
        self._beginnings = [Beginning(stop_text.texts[0]) for stop_text in self._stop]
        self._compared = 0  # characters of the final text that they have read
        self._named = {token for stop_text in self._stop for token in stop_text.tokens}
        self._most = max((len(stop_text.tokens) for stop_text in self._stop), default=0)
        self._places: list[Place] = []
        """The places of control tokens of stop texts that may still begin there."""

    def _context(self, prompt: Sequence[int]) -> list[int]:
        """Return the end of the prompt, from a token on that decodes to whole characters."""
        start = max(0, len(prompt) - _CONTEXT)
        while start and not self._stands_alone(prompt[start]):
            start -= 1
        window = list(prompt[start:])
        while len(window) > 1 and self._is_silent(window[-1]):
            window.pop()
        return window

    def _stands_alone(self, token: int) -> bool:
        text = self._decode([token])
        return bool(text) and _BROKEN not in text and token not in self._bytes

    def _is_silent(self, token: int) -> bool:
        """Return True if decoding omits it; doubled, since a text's first space may be dropped."""
        return not self._decode([token, token])

    @property
    def stopped(self) -> bool:
        """True if the ids so far hold a stop string, unfinished characters included."""
        return self._stop_at(self._final + self._pending) is not None

    def push(self, ids: Sequence[int], *, last: bool = False) -> str:
        """Add tokens; return the text that is now final, with `last` all of it."""
        for token in ids:
            self._add(token)
        text = self._final + self._pending if last else self._final
        end = self._stop_at(text)
        if end is None:
            end = len(text) - (0 if last else self._held_back())
        piece = text[self._sent : end]
        self._sent = max(self._sent, end)
        self._places = [place for place in self._places if place[0] >= self._sent]
        return piece

    def _add(self, token: int) -> None:
        if token in self._named:
            self._add_place(token)
        self._window.append(token)
        if token in self._bytes and self._extends_run(token):
            return
        after = self._decode(self._window)
        if after == self._shown and self._is_silent(token):
            self._window.pop()
            return
        self._run, self._in_run, self._shown = None, token in self._bytes, after
        # The common prefix, not the length: a character that the prompt began is the output's.
        self._pending = after[_shared(self._known, after) :]
        if self._in_run or not self._pending:
            return
        # At an undecodable end only the last sign may still become a character.
        self._pending = after[len(after.rstrip(_BROKEN)) :][-1:]
        final = after[: len(after) - len(self._pending)]
        self._final += final[_shared(self._known, final) :]
        self._known = final
        self._shorten()

    def _add_place(self, token: int) -> None:
        """Note a control token's place; of many at one place, the last ones.

        No stop text spans the placeholder of the others, and those that end there were found.
        """
        at, most = len(self._final) + len(self._pending), self._most + 2
        if [place[0] for place in self._places[-most:]] == [at] * most:
            self._places[-most:] = [(at, _OTHERS), *self._places[2 - most :]]
        self._places.append((at, token))

    def _extends_run(self, token: int) -> bool:
        """Add a byte to a run; decoders show each of its bytes as U+FFFD if it is no UTF-8.

        False if the decoder must decide: at the beginning of a text, behind a prompt's own run.
        """
        if self._run is None:
            if self._in_run or self._pending or not self._known:
                return False
            self._run = bytearray()
        self._run.append(self._bytes[token])
        self._in_run = True
        try:
            self._pending = self._run.decode()
        except UnicodeDecodeError:
            self._pending = _BROKEN * len(self._run)
        self._shown = self._known + self._pending
        return True

    def _shorten(self) -> None:
        """Drop old tokens of a long window; the remaining ones show text, so it keeps its
        spaces."""
        if len(self._window) - self._cut < _WINDOW:
            return
        window, self._cut = self._window[self._cut :], len(self._window) - _LONGEST_CHARACTER
        shown = self._decode(window)
        if len(shown) > len(self._pending):
            self._window, self._cut = window, len(window) - _LONGEST_CHARACTER
            self._shown, self._known = shown, shown[: len(shown) - len(self._pending)]

    def _stop_at(self, text: str) -> int | None:
        """Return where the first stop string begins, which is behind all sent text."""
        begins = (stop_text.find(text, self._places, self._sent) for stop_text in self._stop)
        return min((at for at in begins if at is not None), default=None)

    def _held_back(self) -> int:
        """Return the length of the longest end that is the beginning of a stop string."""
        text, begins = self._final, [len(self._final)]
        for stop, beginning in zip(self._stop, self._beginnings, strict=True):
            beginning.read(text[self._compared :])
            begins.append(stop.opens(text, self._places, beginning.length))
        self._compared = len(text)
        return len(text) - min(begins)


def _shared(first: str, second: str) -> int:
    if second.startswith(first):
        return len(first)
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))


class StopStrings:
    """A check whether the text of an output holds a stop string.

    The result depends on the ids alone. Consecutive calls are cheap if each one's ids continue
    those of the call before.

    Args:
        new_stream: makes a stream of the output.
        shown: the control tokens that it shows, by which another process makes the same one.
    """

    def __init__(
        self, new_stream: Callable[[], TextStream], shown: Mapping[str, str] | None = None
    ) -> None:
        self._new_stream, self.shown = new_stream, shown
        self._read: tuple[TextStream, list[int]] | None = None
        """A stream and the ids it has read; None while it reads, so that interrupts restart it."""

    def __call__(self, ids: list[int]) -> bool:
        read, self._read = self._read, None
        if read is None or ids[: len(read[1])] != read[1]:
            read = self._new_stream(), []
        stream, known = read
        new = ids[len(known) :]
        stream.push(new)
        known += new
        self._read = read
        return stream.stopped
