"""One prompt's answer: chunks while it grows, a completion at the end, beams as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

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
    logprobs: tuple[TokenLogProb, ...] = ()
    """How probable each output token was, when asked for."""


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
    sources: tuple[str, ...] = ()
    """Of each piece what proposed its tokens, of `settings.drafting.PROPOSERS`: an accepted text of
    `auto` comes in a piece for each stretch of one source. Empty for the target's own tokens, and
    where other drafters draft."""
    logprobs: tuple[TokenLogProb, ...] = ()
    """Of each of token_ids, when asked for."""

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
        self._logprobs: list[TokenLogProb] = []

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
        )

    def _read(
        self, stream: TextStream, output: Output
    ) -> tuple[tuple[Piece, ...], tuple[str, ...]]:
        """The new pieces, and their sources."""
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
            None if self._stream is None else _join(self._pieces),
            output.finish_reason,
            output.stats.lookahead,
            output.stats,
            tuple(self._margins),
            tuple(self._pieces),
            tuple(self._logprobs),
        )


def new_answer(index: int, request: Request, prompt: Prompt, tokenizer: Tokenizer | None) -> Answer:
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
        return Answer(index, request, None, None)
    new_stream = partial(tokenizer.stream, request.input_ids, stop)
    if stop:
        request = replace(request, stop_check=StopStrings(new_stream))
    text = prompt_text(prompt, request.given_ids, tokenizer)
    return Answer(index, request, text, new_stream())


def _join(pieces: Sequence[Piece]) -> str:
    return "".join(text for text, _ in pieces)


@dataclass(frozen=True, slots=True)
class BeamText:
    """A hypothesis in words; `output_ids` hold the end token, the text does not."""

    output_ids: tuple[int, ...]
    text: str | None
    """None for a model without tokenizer files."""
    log_prob: float
    """Sum over the new tokens, natural logarithm."""
    score: float
    """What hypotheses are ordered by: `log_prob` over the penalty of their length."""
    finished: bool
    """It ends with an end token."""


def beam_text(
    beam: Hypothesis, settings: BeamSettings, prompt: Sequence[int], tokenizer: Tokenizer | None
) -> BeamText:
    """A hypothesis that continues a prompt, as text where there is a tokenizer."""
    shown = beam.tokens[:-1] if beam.finished else beam.tokens
    text = None
    if tokenizer is not None:
        text = tokenizer.stream(prompt).push(shown, last=True)
    return BeamText(
        beam.tokens,
        text,
        beam.log_prob,
        settings.score(beam),
        beam.finished,
    )
