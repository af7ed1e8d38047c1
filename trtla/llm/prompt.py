"""From prompts with their settings to requests: the part of `LLM` that needs no weights."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from os import PathLike
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from trtla.errors import UsageError, named
from trtla.formats.folder import unapplied
from trtla.formats.model import Model
from trtla.llm.answer import Answer
from trtla.llm.decoder import Decoder
from trtla.llm.text_stream import StopStrings
from trtla.machine import process_rank
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.request import DrafterWatch, Request
from trtla.settings.drafting import DrafterSettings
from trtla.settings.executor import ExecutorOptions
from trtla.settings.fields import check_text, is_whole, shown
from trtla.settings.grammar import Grammar
from trtla.settings.lookahead import Lookahead
from trtla.settings.messages import ANSWER, Messages, Rendering, check_messages, is_conversation
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    from trtla.llm.grammars import GrammarCompiler
    from trtla.runtime.grammar import GrammarStart

_log = logging.getLogger(__name__)
ExpectedOutput = str | Sequence[int]
"""A text, or token ids."""
Prompt = str | Sequence[int] | Messages
"""A text; token ids; or a conversation, a list of messages, for models with a chat template."""

_EXPECTED_HINT = "give a text or a list of token ids, or a list of one for each prompt"
_PROMPTS = "give a text, a list of token ids or of messages, or a list of several of these"


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """A prompt with its own settings; `name` is for errors."""

    name: str
    prompt: Prompt
    sampling: SamplingParams
    lookahead: Lookahead | None = None
    """None: as the model was opened; the same for the drafter."""
    drafter: DrafterSettings | None = None
    expected_output: ExpectedOutput | None = None
    """A likely output, a source of drafts."""
    logprobs: int | None = None
    private: bool = False
    _: KW_ONLY
    space: int = 0
    """The space of shared K/V blocks and drafts."""
    margins: bool = False
    """Report the target's top-2 logit margins."""
    watch: DrafterWatch | None = None
    turn: int = 0
    """Its index in a conversation; a later turn continues the request before, with its answer."""
    rendering: Rendering = ANSWER
    """The text behind a conversation: the beginning of an answer, or none if one continues."""
    is_chat: bool = False
    """Treat a text as a chat message if the model has a template."""
    most: int | None = None
    """A limit of tokens: a text that must exceed it is refused before it is encoded."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """The names of control tokens that answers have in their texts, and how they have them."""
    padded: bool = False
    """Its ids are a row of an array, which padding fills up."""


class RequestMaker:
    """A model's tokenizer and configuration; subclasses with an executor add its limits."""

    executor: Decoder
    """Decodes the requests that it makes."""
    shown: Mapping[str, str] = MappingProxyType({})
    """The control tokens in the texts of requests that name none, as `PromptRequest` has them."""
    force_greedy = False
    """Answer requests of OpenAI's API greedily, whatever their temperature, top_k and top_p."""

    def __init__(self, model: str | Path | Model, options: ExecutorOptions) -> None:
        if not isinstance(model, (str, PathLike, Model)):
            raise UsageError(
                f"model is {shown(model)}, not the path of a model",
                "give a GGUF file, an engine or a Hugging Face folder, such as LLM('model.gguf')",
            )
        from trtla.llm.open import end_ids, is_adaptive, open_tokenizer

        self._drafter, self._auto = options.drafter, options.lookahead == "auto"
        self.engine = Model.at(model).open(options.triple, options.max_seq_len)
        self._adaptive = is_adaptive(self.engine, options.lookahead)
        self.tokenizer = open_tokenizer(self.engine, options)
        self.end_ids = end_ids(self.engine, self.tokenizer)  # empty: no token ends a text
        notes = () if process_rank() else self._notes()
        for note in notes:
            _log.warning("note: %s", note)
        self._ids = count()
        self._compiler: GrammarCompiler | None = None
        self._lock = Lock()

    def _notes(self) -> Iterator[str]:
        """Yield notes about the model's files."""
        if note := unapplied(self.engine.folder):
            yield note
        if self.tokenizer is not None:
            from trtla.llm.reading import reading_notes

            yield from reading_notes(self.tokenizer)

    @property
    def limits(self) -> ExecutorLimits:
        """The limits that prompts and settings must fit."""
        raise NotImplementedError

    @property
    def description(self) -> str:
        """The library, device and arithmetic that run the model."""
        raise NotImplementedError

    @property
    def lookahead(self) -> Lookahead:
        """The decoding of requests without a setting: `auto`, or a triple."""
        return "auto" if self._adaptive else self.limits.lookahead

    def _drafts_by_tree(self, drafter: DrafterSettings) -> bool:
        """Return True if the candidate tree drafts for requests without a setting."""
        return self._adaptive and (self._auto or drafter.uses_lookahead)

    def answers(self, index: int, prompt: PromptRequest) -> list[Answer]:
        """Create a prompt's empty answers, one for each of its `n` texts."""
        (request, text), stop = self.request_and_text(prompt), prompt.sampling.stop
        if stop and self.tokenizer is None:
            raise UsageError(
                f"{prompt.name} has a stop string, but the model has no tokenizer",
                f"omit stop, or give {named('tokenizer_dir')}",
            )
        start = self.grammar_start(prompt.sampling, prompt.name)
        answers = []
        for choice, sampling in enumerate(request.sampling.choices()):
            changes: dict[str, Any] = {} if sampling is request.sampling else {"sampling": sampling}
            if start is not None:
                changes["grammar"] = start
            if choice:
                changes["request_id"] = next(self._ids)
            stream = None
            if self.tokenizer is not None:
                marks = prompt.shown or self.shown
                new_stream = partial(self.tokenizer.stream, request.input_ids, stop, marks)
                stream = new_stream()
                changes |= {"stop_check": StopStrings(new_stream, marks)} if stop else {}
            chosen = replace(request, **changes) if changes else request
            answers.append(Answer(index, chosen, text, stream, choice))
        return answers

    def grammar_start(self, sampling: SamplingParams, name: str) -> GrammarStart | None:
        """Compile the grammar of a request's settings, if they have one; `name` is for errors.

        Raises:
            UsageError: it cannot be used.
        """
        if sampling.grammar is None:
            return None
        if self.tokenizer is None:
            raise UsageError(
                f"{name} has a grammar, but the model has no tokenizer",
                f"omit the grammar, or give {named('tokenizer_dir')}",
            )
        try:
            return self._grammars.start(Grammar.of(sampling.grammar))
        except UsageError as error:
            where = Grammar.of(sampling.grammar).given_as
            error.setting = where
            raise error.within(f"{name}: ") from None

    def check_grammar(self, grammar: Grammar) -> None:
        """Raise `UsageError` if a grammar cannot be used."""
        self._grammars.start(grammar)

    def prepare_grammars(self) -> None:
        """Compute what the first grammar needs, if there can be one: meanwhile others wait."""
        if self.tokenizer is not None and self.end_ids and find_spec("llguidance"):
            self._grammars.prepare()

    @property
    def _grammars(self) -> GrammarCompiler:
        from trtla.llm.grammars import GrammarCompiler

        assert self.tokenizer is not None
        with self._lock:
            if self._compiler is None:
                sizes = self.limits.vocab_size, tuple(self.end_ids)
                self._compiler = GrammarCompiler(self.tokenizer, *sizes)
            return self._compiler

    def spell(self, token: int) -> bytes:
        """Return the bytes of a token; none without a tokenizer."""
        return b"" if self.tokenizer is None else self.tokenizer.token_bytes(token)

    def request(self, prompt: PromptRequest) -> Request:
        """Make a prompt's checked request, without stop strings; it is not checked again later."""
        ids = self.encode(prompt.prompt, prompt.name, prompt.most, prompt.rendering)
        return self._request(prompt, ids)

    def request_and_text(self, prompt: PromptRequest) -> tuple[Request, str | None]:
        """Make the request, and return the prompt's text, as rendered; None without a tokenizer."""
        ids, text = self._read(prompt.prompt, prompt.name, prompt.most, prompt.rendering)
        request = self._request(prompt, ids)
        if text is None and self.tokenizer is not None:
            text = self.tokenizer.decode(ids)
        return request, text

    def _request(self, prompt: PromptRequest, ids: tuple[int, ...]) -> Request:
        start = self.engine.decoder_start
        input_ids, read = (ids, None) if start is None else ((start,), ids)
        drafting = self.limits.loaded(prompt.drafter or self._drafter)
        by_default = prompt.lookahead is None and self._drafts_by_tree(drafting)
        request = Request(
            next(self._ids),
            input_ids,
            self.limits.fitted(prompt.sampling, len(input_ids)),
            None if prompt.lookahead == "auto" else prompt.lookahead,
            self.end_ids,
            margins=prompt.margins,
            logprobs=prompt.logprobs,
            name=prompt.name,
            adaptive=prompt.lookahead == "auto" or by_default,
            drafter=drafting,
            watch=prompt.watch,
            encoder_ids=read,
            expected_ids=self._expected_ids(prompt),
            private=prompt.private,
            space=prompt.space,
        )
        self.limits.check(request)
        return request

    def encode(
        self,
        prompt: Prompt,
        name: str = "the prompt",
        most: int | None = None,
        rendering: Rendering = ANSWER,
    ) -> tuple[int, ...]:
        """Return a prompt's token ids; `name` is for errors.

        Args:
            most: a text that must have more tokens is refused before it is encoded.
            rendering: of a conversation.

        Raises:
            UsageError: it is no prompt or empty, it needs a tokenizer or chat template that is
                missing, or the template fails.
            PromptTooLong: it certainly has more than `most` tokens.
        """
        return self._read(prompt, name, most, rendering)[0]

    def _read(
        self, prompt: Prompt, name: str, most: int | None, rendering: Rendering
    ) -> tuple[tuple[int, ...], str | None]:
        """Return a prompt's ids and their text; None if the prompt is ids itself."""
        if rendering != ANSWER and not is_conversation(prompt):
            raise UsageError(
                f"{name} is no conversation, and {rendering.changed} is for conversations",
                "omit it, or give messages",
            )
        if isinstance(prompt, str):
            check_text(prompt, name)
            if not prompt:
                raise UsageError(f"{name} has an empty prompt", "give at least one character")
        elif is_conversation(prompt):
            prompt = check_messages(prompt, name)
        else:
            return _checked_ids(prompt, name, "a text, token ids nor messages", _PROMPTS), None
        if self.tokenizer is None:
            kind = "a text" if isinstance(prompt, str) else "a conversation"
            raise UsageError(
                f"{name} is {kind}, but {self.engine.name} has no tokenizer files",
                "give token ids (input_ids in JSONL), or the tokenizer with "
                f"{named('tokenizer_dir')}",
            )
        try:
            return self.tokenizer.read_prompt(prompt, most, rendering)
        except UsageError as error:
            raise error.within(f"{name}: ") from None

    def _expected_ids(self, prompt: PromptRequest) -> tuple[int, ...]:
        expected, name = prompt.expected_output, f"the expected output of {prompt.name}"
        if expected is None:
            return ()
        if not isinstance(expected, str):
            return _checked_ids(expected, name, "a text nor token ids", _EXPECTED_HINT)
        check_text(expected, name)
        if self.tokenizer is None:
            raise UsageError(
                f"{name} is a text, but {self.engine.name} has no tokenizer files",
                f"give token ids, or the tokenizer with {named('tokenizer_dir')}",
            )
        return self.tokenizer.encode(expected, special=False)  # it continues the prompt


def _checked_ids(ids: object, name: str, kinds: str, hint: str) -> tuple[int, ...]:
    if isinstance(ids, bytes) or not isinstance(ids, Sequence):
        raise UsageError(f"{name} is {shown(ids)}, neither {kinds}", hint)
    for item in ids:
        if not is_whole(item):
            raise UsageError(f"{name} holds {shown(item)}, which is no token id", hint)
    return tuple(map(int, ids))
