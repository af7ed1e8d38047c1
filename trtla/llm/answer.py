"""One prompt's answer: settings per prompt, chunks while it grows, a completion at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from os import PathLike
from typing import Any

from trtla.errors import TrtlaError, UsageError
from trtla.llm.prompt import ExpectedOutput, Prompt, as_prompts, prompt_text
from trtla.llm.text import Tokenizer
from trtla.llm.text_stream import StopStrings, TextStream
from trtla.runtime.request import FinishReason, Hypothesis, Output, Request
from trtla.runtime.stats import RequestStats
from trtla.settings.drafting import DrafterSettings
from trtla.settings.fields import is_whole, shown
from trtla.settings.lookahead import Lookahead, LookaheadConfig
from trtla.settings.sampling import BeamSettings, SamplingParams

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
    sources: tuple[str, ...] = ()
    """Of each piece what proposed its tokens, of `settings.drafting.PROPOSERS`: an accepted text of
    `auto` comes in a piece for each stretch of one source. Empty for the target's own tokens, and
    where other drafters draft."""

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
        pieces: tuple[Piece, ...] | None = None
        sources: tuple[str, ...] = ()
        if self._stream is not None:
            pieces, sources = self._read(self._stream, output)
        completion = self._complete(output) if output.finish_reason is not None else None
        return Chunk(self.index, pieces, output.new_tokens, accepted, completion, sources)

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
class Asked:
    """A prompt with its own settings."""

    prompt: Prompt
    sampling: SamplingParams
    lookahead: Lookahead | None
    drafter: DrafterSettings | None
    expected_output: ExpectedOutput | None
    name: str
    """What errors call it."""


_TRIPLES = "give a LookaheadConfig, such as LookaheadConfig(7, 7, 7), or 'auto'"


@dataclass(frozen=True, slots=True)
class _Setting:
    """What prompts share, or bring one each."""

    name: str
    plural: str
    kind: str
    fits: Callable[[object], bool]
    hint: str
    instead: Callable[[object], str | None] = lambda _: None
    """What to pass for a value of another type that is as clear."""

    def refusal(self, one: object, value: object) -> UsageError:
        """Of one value, which stands alone or in `value`."""
        whole = self.instead(value)
        if whole or one is value:
            message = f"{self.name} is {shown(value)}, not {self.kind}"
        else:
            message = f"{self.plural} hold {shown(one)} in {shown(value)}"
        found = whole or self.instead(one)
        return UsageError(message, f"give {found}" if found else self.hint)


def _is_lookahead(value: object) -> bool:
    return value is None or value == "auto" or isinstance(value, LookaheadConfig)


def _as_lookahead(value: object) -> str | None:
    if isinstance(value, (str, list, tuple)):
        with suppress(UsageError, ValueError):  # the latter of a number of thousands of digits
            triple = LookaheadConfig.parse(value).as_tuple()
            return f"LookaheadConfig{triple}"
    return None


def _as_sampling(value: object) -> str | None:
    if isinstance(value, dict):
        with suppress(UsageError, TypeError):
            SamplingParams(**value)
            return f"SamplingParams({', '.join(f'{k}={shown(v)}' for k, v in value.items())})"
    return None


_SAMPLING = _Setting(
    "sampling",
    "sampling settings",
    "SamplingParams",
    lambda value: isinstance(value, SamplingParams),
    "give SamplingParams, such as SamplingParams(max_output_len=32)",
    _as_sampling,
)
_LOOKAHEADS = _Setting(
    "lookahead", "lookahead triples", "a LookaheadConfig", _is_lookahead, _TRIPLES, _as_lookahead
)
_DRAFTERS = _Setting(
    "drafter",
    "drafters",
    "DrafterSettings",
    lambda value: value is None or isinstance(value, DrafterSettings),
    "give DrafterSettings, such as DrafterSettings(('ngram',))",
)
_EXPECTED = _Setting(
    "expected_output",
    "expected outputs",
    "a text or token ids",
    lambda value: value is None or isinstance(value, str) or _is_ids(value),
    "give a text or a list of token ids",
)
_NAMES = _Setting("names", "names", "texts", lambda value: isinstance(value, str), "give texts")


def _is_ids(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(map(is_whole, value))


def asked(
    prompts: object,
    sampling: object,
    lookahead: object,
    drafter: object,
    expected_output: object,
    names: object,
) -> list[Asked]:
    """Every prompt with its own settings; the arguments are those of `LLM.generate`.

    Raises:
        UsageError: there is no prompt, a setting is of another kind, or there are more or fewer of
            them than prompts.
    """
    many = as_prompts(prompts)
    number = len(many)
    expected = expected_output
    labels = [f"prompt {index}" for index in range(number)] if names is None else names
    each = zip(
        many,
        _one_each(SamplingParams() if sampling is None else sampling, number, _SAMPLING),
        _one_each(lookahead, number, _LOOKAHEADS),
        _one_each(drafter, number, _DRAFTERS),
        _one_each([expected] * number if _is_ids(expected) else expected, number, _EXPECTED),
        _one_each(labels, number, _NAMES),
        strict=True,
    )
    return [Asked(*one) for one in each]


def check_opened_with(model: object, lookahead: object, drafter: object) -> None:
    """Refuse arguments of `LLM` that are of another type.

    Raises:
        UsageError: the first of them is named.
    """
    if not isinstance(model, (str, PathLike)):
        raise UsageError(
            f"model is {shown(model)}, not the path of a folder",
            "give an engine directory or a Hugging Face folder, such as LLM('engine')",
        )
    for value, setting in ((lookahead, _LOOKAHEADS), (drafter, _DRAFTERS)):
        if not setting.fits(value):
            raise setting.refusal(value, value)


def _one_each(value: object, number: int, setting: _Setting) -> list[Any]:
    each = list(value) if isinstance(value, (list, tuple)) else [value] * number
    for one in each:
        if not setting.fits(one):
            raise setting.refusal(one, value)
    if len(each) != number:
        raise UsageError(
            f"{len(each)} {setting.plural} for {number} prompts",
            "give one for all prompts, or one for each",
        )
    return each


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
