"""One prompt's answer: chunks as it grows, a completion at the end, beams as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from trtla.console import counted
from trtla.runtime.request import (
    FinishReason,
    Hypothesis,
    Output,
    Request,
    TokenLogProb,
    is_text,
)
from trtla.runtime.stats import RequestStats
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import BeamSettings

if TYPE_CHECKING:
    from trtla.llm.text import Tokenizer
    from trtla.llm.text_stream import TextStream

Piece = tuple[str, bool]
"""A stretch of output text, and whether it came from accepted drafts."""


class _Ids:
    __slots__ = ()
    token_ids: tuple[int, ...]

    @property
    def output_ids(self) -> tuple[int, ...]:
        """Alias of `token_ids`."""
        return self.token_ids


@dataclass(frozen=True, slots=True, repr=False)
class Completion(_Ids):
    """The finished answer to one prompt.

    `token_ids` hold the end token, the stop token or the tokens of a stop string that ended the
    text; `text` does not. For a model without tokenizer files `text` is empty, `input_text` None.
    """

    index: int
    """The prompt's index in the call."""
    input_text: str | None
    input_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    lookahead: LookaheadConfig
    stats: RequestStats
    margins: tuple[float, ...] = ()
    """The target's top-2 logit margin at each output token, if requested."""
    pieces: tuple[Piece, ...] = ()
    """The text in pieces; empty without a tokenizer."""
    logprobs: tuple[TokenLogProb, ...] = ()
    """The log probability of each output token, if requested."""
    choice: int = 0
    """The index among the prompt's `n` texts."""

    def __repr__(self) -> str:
        return _shown(self, f"finish_reason={self.finish_reason!r}")


@dataclass(frozen=True, slots=True, repr=False)
class Chunk(_Ids):
    """One step's addition to an answer. The chunks of an index and choice join to its whole
    text."""

    index: int
    """The prompt's index in the call."""
    pieces: tuple[Piece, ...] | None
    """None for a model without tokenizer files."""
    token_ids: tuple[int, ...]
    accepted: int
    """Number of first tokens in token_ids that were accepted drafts."""
    completion: Completion | None
    """Set on the last chunk of an answer."""
    sources: tuple[str, ...] = ()
    """The proposer of each piece's tokens, from `settings.drafting.PROPOSERS`: accepted text of
    `auto` is divided into pieces by source. Empty for the target's own tokens, and with other
    drafters."""
    logprobs: tuple[TokenLogProb, ...] = ()
    """The log probability of each of token_ids, if requested."""
    choice: int = 0
    """The index among the prompt's `n` texts."""
    at: float = field(default=0.0, compare=False)
    """The time when its step ended, by time.perf_counter."""

    @property
    def text(self) -> str:
        """The text that is final with this step; empty for a model without tokenizer files."""
        return _join(self.pieces or ())

    def __repr__(self) -> str:
        return _shown(self, f"last={self.completion is not None}")


_SHOWN_TEXT = 60  # characters of a text in a record's repr


def _shown(record: Completion | Chunk, end: str) -> str:
    text = repr(record.text[:_SHOWN_TEXT]) + ("..." if len(record.text) > _SHOWN_TEXT else "")
    choice = f", choice={record.choice}" if record.choice else ""
    name, tokens = type(record).__name__, counted(len(record.token_ids), "token")
    return f"{name}(index={record.index}{choice}, text={text}, {tokens}, {end})"


class Answer:
    """One prompt's answer as it grows."""

    def __init__(
        self,
        index: int,
        request: Request,
        text: str | None,
        stream: TextStream | None,
        choice: int = 0,
    ) -> None:
        self.index, self.request, self._stream = index, request, stream
        self.input_text = text
        self.choice = choice
        self._ids: list[int] = []
        self._pieces: list[Piece] = []
        self._margins: list[float] = []
        self._logprobs: list[TokenLogProb] = []

    @property
    def length(self) -> int:
        return len(self._ids)

    def add(self, output: Output) -> Chunk:
        self._ids += output.new_tokens
        self._margins += output.margins
        self._logprobs += output.logprobs
        pieces: tuple[Piece, ...] | None = None
        sources: tuple[str, ...] = ()
        if self._stream is not None:
            pieces, sources = self._read(self._stream, output)
        reason = output.finish_reason
        completion = None if reason is None else self._complete(output.stats, reason)
        return Chunk(
            self.index,
            pieces,
            output.new_tokens,
            output.accepted,
            completion,
            sources,
            output.logprobs,
            self.choice,
            output.at,
        )

    def _read(
        self, stream: TextStream, output: Output
    ) -> tuple[tuple[Piece, ...], tuple[str, ...]]:
        last = output.finish_reason is not None
        ids = output.new_tokens
        end = len(ids) if is_text(self.request, ids, output.finish_reason) else len(ids) - 1
        drafted = output.new_tokens[: output.accepted][:end]
        names = output.sources or ("",) * output.accepted
        pairs = zip(drafted, names, strict=False)
        new = [
            (stream.push([token for token, _ in group]), True, source)
            for source, group in groupby(pairs, lambda pair: pair[1])
        ]
        drawn = output.new_tokens[output.accepted : end]
        new.append((stream.push(drawn, last=last), False, ""))
        pieces = tuple((text, accepted) for text, accepted, _ in new if text)
        self._pieces += pieces
        return pieces, tuple(source for text, _, source in new if text)

    def _complete(self, stats: RequestStats, reason: FinishReason) -> Completion:
        return Completion(
            self.index,
            self.input_text,
            self.request.given_ids,
            tuple(self._ids),
            _join(self._pieces),
            reason,
            stats.lookahead,
            stats,
            tuple(self._margins),
            tuple(self._pieces),
            tuple(self._logprobs),
            self.choice,
        )


def chunk_of(answers: dict[int, Answer], request_id: int, event: Output | BaseException) -> Chunk:
    """Return an event's addition to its answer, which is removed at its end."""
    if isinstance(event, BaseException):
        raise event
    answer = answers[request_id]
    if event.finish_reason is not None:
        del answers[request_id]
    if event.error is not None:
        raise event.error
    return answer.add(event)


def _join(pieces: Sequence[Piece]) -> str:
    return "".join(text for text, _ in pieces)


@dataclass(frozen=True, slots=True)
class BeamText(_Ids):
    """A hypothesis as text; `token_ids` include the end token, the text does not."""

    token_ids: tuple[int, ...]
    text: str
    """Empty for a model without tokenizer files."""
    log_prob: float
    """Sum over the new tokens, natural logarithm."""
    score: float
    """The order of hypotheses: `log_prob` divided by the length penalty."""
    finished: bool
    """It ends with an end token."""


def beam_text(
    beam: Hypothesis, settings: BeamSettings, prompt: Sequence[int], tokenizer: Tokenizer | None
) -> BeamText:
    """Convert a hypothesis that continues a prompt, with its text if there is a tokenizer."""
    shown = beam.tokens[:-1] if beam.finished else beam.tokens
    text = "" if tokenizer is None else tokenizer.stream(prompt).push(shown, last=True)
    score = settings.score(beam.log_prob, len(beam.tokens))
    return BeamText(beam.tokens, text, beam.log_prob, score, beam.finished)
