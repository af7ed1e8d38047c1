"""One prompt's answer while it grows: chunks on the way, a completion at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtla.errors import TrtlaError
from trtla.lookahead import LookaheadConfig
from trtla.runtime.executor import FinishReason, Output, Request, RequestStats
from trtla.runtime.text_stream import TextStream

Piece = tuple[str, bool]
"""A stretch of output text, and whether it came from accepted drafts."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The finished answer to one prompt.

    `output_ids` hold the end token or the tokens of a stop string when one ended the text; `text`
    does not. `text` and `input_text` are None for a model without tokenizer files.
    """

    index: int
    input_text: str | None
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    text: str | None
    finish_reason: FinishReason
    lookahead: LookaheadConfig
    stats: RequestStats
    margins: tuple[float, ...] = ()
    """The target's top-2 logit margin at each output token, when asked for."""
    pieces: tuple[Piece, ...] = ()
    """The text in pieces; empty without a tokenizer."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one step added to an answer. Texts of an index concatenate to its whole text."""

    index: int
    pieces: tuple[Piece, ...] | None
    """None for a model without tokenizer files."""
    token_ids: tuple[int, ...]
    accepted: int
    """How many of token_ids, counted from the first, were accepted drafts."""
    completion: Completion | None
    """Set on the last chunk of an index."""

    @property
    def text(self) -> str | None:
        """The text that this step made certain."""
        return None if self.pieces is None else _join(self.pieces)


class Answer:
    """One prompt's answer while it grows."""

    def __init__(
        self, index: int, request: Request, text: str | None, stream: TextStream | None
    ) -> None:
        self.index, self.request, self._input_text, self._stream = index, request, text, stream
        self._ids: list[int] = []
        self._pieces: list[Piece] = []
        self._margins: list[float] = []

    @property
    def length(self) -> int:
        """Output tokens so far."""
        return len(self._ids)

    def add(self, output: Output) -> Chunk:
        """Take an output of the executor.

        Raises:
            TrtlaError: output tokens before these are missing.
        """
        if output.start > self.length:
            raise TrtlaError(
                f"{self.request.label} has lost its output tokens {self.length} to "
                f"{output.start - 1} in an interrupted step",
                "ask again",
            )
        accepted = output.accepted
        self._ids += output.new_tokens
        self._margins += output.margins
        pieces = None if self._stream is None else self._read(self._stream, output, accepted)
        completion = self._complete(output) if output.finish_reason is not None else None
        return Chunk(self.index, pieces, output.new_tokens, accepted, completion)

    def _read(self, stream: TextStream, output: Output, accepted: int) -> tuple[Piece, ...]:
        last = output.finish_reason is not None
        end = len(output.new_tokens) - (output.finish_reason == "end_id")
        drafted, drawn = output.new_tokens[:accepted][:end], output.new_tokens[accepted:end]
        pieces = ((stream.push(drafted), True), (stream.push(drawn, last=last), False))
        new = tuple(piece for piece in pieces if piece[0])
        self._pieces += new
        return new

    def _complete(self, output: Output) -> Completion:
        if output.finish_reason is None:
            raise TrtlaError(f"{self.request.label} is not finished")
        return Completion(
            self.index,
            self._input_text,
            self.request.given_ids,
            tuple(self._ids),
            None if self._stream is None else _join(self._pieces),
            output.finish_reason,
            output.stats.lookahead,
            output.stats,
            tuple(self._margins),
            tuple(self._pieces),
        )


def _join(pieces: Sequence[Piece]) -> str:
    return "".join(text for text, _ in pieces)
