"""One prompt's answer: chunks while it grows, a completion at the end, beams as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from trtla.console import counted
from trtla.errors import TrtlaError, UsageError
from trtla.llm.prompt import Prompt, prompt_text
from trtla.llm.text import Tokenizer
from trtla.llm.text_stream import StopStrings, TextStream
from trtla.runtime.request import FinishReason, Hypothesis, Output, Request, TokenLogProb
from trtla.runtime.stats import RequestStats
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import BeamSettings

Piece = tuple[str, bool]
"""A stretch of output text, and whether it came from accepted drafts."""


@dataclass(frozen=True, slots=True, repr=False)
class Completion:
    """The finished answer to one prompt.

    `token_ids` hold the end token or the tokens of a stop string when one ended the text; `text`
    does not. For a model without tokenizer files `text` is empty and `input_text` None.
    """

    index: int
    """Of the prompt."""
    input_text: str | None
    input_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    lookahead: LookaheadConfig
    stats: RequestStats
    margins: tuple[float, ...] = ()
    """The target's top-2 logit margin at each output token, when asked for."""
    pieces: tuple[Piece, ...] = ()
    """The text in pieces; empty without a tokenizer."""
    logprobs: tuple[TokenLogProb, ...] = ()
    """How probable each output token was, when asked for."""
    choice: int = 0
    """Which of the prompt's `n` texts."""

    @property
    def output_ids(self) -> tuple[int, ...]:
        """Another name of `token_ids`."""
        return self.token_ids

    def __repr__(self) -> str:
        return _shown(self, f"finish_reason={self.finish_reason!r}")


@dataclass(frozen=True, slots=True, repr=False)
class Chunk:
    """What one step added to an answer. Texts of an index and choice join to its whole text."""

    index: int
    """Of the prompt."""
    pieces: tuple[Piece, ...] | None
    """None for a model without tokenizer files."""
    token_ids: tuple[int, ...]
    accepted: int
    """How many of token_ids, counted from the first, were accepted drafts."""
    completion: Completion | None
    """Set on the last chunk of an answer."""
    sources: tuple[str, ...] = ()
    """Of each piece what proposed its tokens, of `settings.drafting.PROPOSERS`: an accepted text of
    `auto` comes in a piece for each stretch of one source. Empty for the target's own tokens, and
    where other drafters draft."""
    logprobs: tuple[TokenLogProb, ...] = ()
    """Of each of token_ids, when asked for."""
    choice: int = 0
    """Which of the prompt's `n` texts."""

    @property
    def text(self) -> str:
        """The text that this step made certain; empty for a model without tokenizer files."""
        return _join(self.pieces or ())

    @property
    def output_ids(self) -> tuple[int, ...]:
        """Another name of `token_ids`."""
        return self.token_ids

    def __repr__(self) -> str:
        return _shown(self, f"last={self.completion is not None}")


_SHOWN_TEXT = 60  # characters of a text in a record's repr


def _shown(record: Completion | Chunk, end: str) -> str:
    """A record in a line: what identifies it, the beginning of its text, and how many tokens."""
    text = repr(record.text[:_SHOWN_TEXT]) + ("..." if len(record.text) > _SHOWN_TEXT else "")
    choice = f", choice={record.choice}" if record.choice else ""
    name, tokens = type(record).__name__, counted(len(record.token_ids), "token")
    return f"{name}(index={record.index}{choice}, text={text}, {tokens}, {end})"


class Answer:
    """One prompt's answer while it grows."""

    def __init__(
        self,
        index: int,
        request: Request,
        text: str | None,
        stream: TextStream | None,
        choice: int = 0,
    ) -> None:
        self.index, self.request, self._input_text, self._stream = index, request, text, stream
        self.choice = choice
        self._ids: list[int] = []
        self._pieces: list[Piece] = []
        self._margins: list[float] = []
        self._logprobs: list[TokenLogProb] = []

    @property
    def length(self) -> int:
        """Output tokens so far."""
        return len(self._ids)

    def add(self, output: Output) -> Chunk:
        """Take the next output of the executor."""
        self._ids += output.new_tokens
        self._margins += output.margins
        self._logprobs += output.logprobs
        pieces: tuple[Piece, ...] | None = None
        sources: tuple[str, ...] = ()
        if self._stream is not None:
            pieces, sources = self._read(self._stream, output)
        completion = self._complete(output) if output.finish_reason is not None else None
        return Chunk(
            self.index,
            pieces,
            output.new_tokens,
            output.accepted,
            completion,
            sources,
            output.logprobs,
            self.choice,
        )

    def _read(
        self, stream: TextStream, output: Output
    ) -> tuple[tuple[Piece, ...], tuple[str, ...]]:
        last = output.finish_reason is not None
        end = len(output.new_tokens) - (output.finish_reason == "end_id")
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

    def _complete(self, output: Output) -> Completion:
        if output.finish_reason is None:
            raise TrtlaError(f"{self.request.label} is not finished")
        return Completion(
            self.index,
            self._input_text,
            self.request.given_ids,
            tuple(self._ids),
            _join(self._pieces),
            output.finish_reason,
            output.stats.lookahead,
            output.stats,
            tuple(self._margins),
            tuple(self._pieces),
            tuple(self._logprobs),
            self.choice,
        )


def new_answer(
    index: int, request: Request, prompt: Prompt, tokenizer: Tokenizer | None, choice: int = 0
) -> Answer:
    """The answer to a prompt at its beginning; its request knows the stop strings.

    Raises:
        UsageError: there is a stop string, and no tokenizer.
    """
    stop = request.sampling.stop
    if tokenizer is None:
        if stop:
            raise UsageError(
                f"{request.name} has a stop string, but the model has no tokenizer",
                "omit stop, or give --tokenizer-dir",
            )
        return Answer(index, request, None, None, choice)
    new_stream = partial(tokenizer.stream, request.input_ids, stop)
    if stop:
        request = replace(request, stop_check=StopStrings(new_stream))
    text = prompt_text(prompt, request.given_ids, tokenizer)
    return Answer(index, request, text, new_stream(), choice)


def _join(pieces: Sequence[Piece]) -> str:
    return "".join(text for text, _ in pieces)


@dataclass(frozen=True, slots=True)
class BeamText:
    """A hypothesis in words; `token_ids` hold the end token, the text does not."""

    token_ids: tuple[int, ...]
    text: str
    """Empty for a model without tokenizer files."""
    log_prob: float
    """Sum over the new tokens, natural logarithm."""
    score: float
    """What hypotheses are ordered by: `log_prob` over the penalty of their length."""
    finished: bool
    """It ends with an end token."""

    @property
    def output_ids(self) -> tuple[int, ...]:
        """Another name of `token_ids`."""
        return self.token_ids


def beam_text(
    beam: Hypothesis, settings: BeamSettings, prompt: Sequence[int], tokenizer: Tokenizer | None
) -> BeamText:
    """A hypothesis that continues a prompt, as text where there is a tokenizer."""
    shown = beam.tokens[:-1] if beam.finished else beam.tokens
    text = "" if tokenizer is None else tokenizer.stream(prompt).push(shown, last=True)
    return BeamText(
        beam.tokens,
        text,
        beam.log_prob,
        settings.score(beam),
        beam.finished,
    )
