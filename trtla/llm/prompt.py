"""What a prompt may be, text, token ids or messages, with its own settings; its token ids."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtla.console import counted
from trtla.errors import TrtlaWarning, UsageError
from trtla.settings.drafting import DrafterSettings
from trtla.settings.fields import check_text, is_whole, shown
from trtla.settings.lookahead import TRIPLES, Lookahead, as_lookahead, is_lookahead
from trtla.settings.messages import Messages, check_messages, is_conversation
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    from trtla.llm.text import Tokenizer

ExpectedOutput = str | Sequence[int]
"""A text, or token ids."""
Prompt = str | Sequence[int] | Messages
"""A text; token ids; or a conversation, a list of messages, for models with a chat template."""

_EXPECTED_HINT = "give a text or a list of token ids, or a list of one for each prompt"
_PROMPTS = "give a text, a list of token ids or of messages, or a list of several of these"


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """A prompt with its own settings; `name` is what errors call it."""

    name: str
    prompt: Prompt
    sampling: SamplingParams
    lookahead: Lookahead | None = None
    """None: what the model was opened with, and so the drafter."""
    drafter: DrafterSettings | None = None
    expected_output: ExpectedOutput | None = None
    """What its output is expected to be like: drafts are taken from it."""
    logprobs: int | None = None
    private: bool = False
    space: int = 0
    """Whose K/V blocks and drafts it shares."""
    turn: int = 0
    """Its place in a conversation; a later turn continues the request before, with its answer."""
    is_chat: bool = False
    """A text that is asked as a chat where the model has a template."""


def as_prompts(prompts: object) -> list[Any]:
    """The prompts of an argument that may be one of them: a list of messages is one."""
    if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Sequence):
        return [prompts]
    if not prompts:
        raise UsageError("there is no prompt", "give at least one")
    alone = all(map(is_whole, prompts)) or all(isinstance(one, Mapping) for one in prompts)
    return [prompts] if alone else list(prompts)


def conversations(messages: object) -> list[Any]:
    """The conversations of an argument that may be one of them.

    Raises:
        UsageError: one of them is no list of messages.
    """
    many = as_prompts(messages)
    for one in many:
        if not is_conversation(one):
            raise UsageError(
                f"chat is asked {shown(one)}, which is no list of messages",
                'give messages such as [{"role": "user", "content": "..."}], or use generate',
            )
    return many


def prompt_ids(
    prompt: Prompt, name: str, tokenizer: Tokenizer | None, model: str, most: int | None = None
) -> tuple[int, ...]:
    """A prompt's token ids.

    Args:
        name: what errors call the prompt; `model` is what they call the model.
        most: a text that cannot be so few tokens is not encoded.

    Raises:
        UsageError: it is no prompt or empty, there is no tokenizer for it, or no chat template, or
            the template fails.
        PromptTooLong: it has more than `most` tokens for certain.
    """
    if isinstance(prompt, str):
        check_text(prompt, name)
        if not prompt:
            raise UsageError(f"{name} has an empty prompt", "give at least one character")
    elif is_conversation(prompt):
        prompt = check_messages(prompt, name)
    else:
        return _checked_ids(prompt, name, "a text, token ids nor messages", _PROMPTS)
    if tokenizer is None:
        kind = "a text" if isinstance(prompt, str) else "a conversation"
        raise UsageError(
            f"{name} is {kind}, but {model} has no tokenizer files",
            "give token ids (input_ids in JSONL), or the tokenizer with --tokenizer-dir",
        )
    try:
        return tokenizer.prompt_ids(prompt, most)
    except UsageError as error:
        raise type(error)(f"{name}: {error.message}", error.hint) from None


def expected_ids(
    expected: ExpectedOutput | None, name: str, tokenizer: Tokenizer | None, model: str
) -> tuple[int, ...]:
    """Ids of the output that a prompt is expected to have; none where nothing is expected.

    Args:
        name: what errors call the prompt; `model` is what they call the model.

    Raises:
        UsageError: it is neither text nor token ids, or there is no tokenizer for it.
    """
    own = f"the expected output of {name}"
    if expected is None:
        return ()
    if not isinstance(expected, str):
        return _checked_ids(expected, own, "a text nor token ids", _EXPECTED_HINT)
    check_text(expected, own)
    if tokenizer is None:
        raise UsageError(
            f"{own} is a text, but {model} has no tokenizer files",
            "give token ids, or the tokenizer with --tokenizer-dir",
        )
    return tokenizer.encode(expected, special=False)  # it continues the prompt


def prompt_text(prompt: Prompt, ids: Sequence[int], tokenizer: Tokenizer | None) -> str | None:
    """A prompt and its ids as text, a conversation as rendered; None without a tokenizer."""
    if isinstance(prompt, str):
        return prompt
    if tokenizer is None:
        return None
    if is_conversation(prompt):
        return tokenizer.chat_text(check_messages(prompt, "the prompt"))
    return tokenizer.decode(ids)


def _checked_ids(ids: object, name: str, kinds: str, hint: str) -> tuple[int, ...]:
    if isinstance(ids, bytes) or not isinstance(ids, Sequence):
        raise UsageError(f"{name} is {shown(ids)}, neither {kinds}", hint)
    for item in ids:
        if not is_whole(item):
            raise UsageError(f"{name} holds {shown(item)}, which is no token id", hint)
    return tuple(map(int, ids))


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    plural: str
    kind: str
    fits: Callable[[object], bool]
    hint: str
    instead: Callable[[object], str | None] = lambda _: None
    """What to pass for a value of another type that is as clear."""

    def refusal(self, one: object, value: object) -> UsageError:
        whole = self.instead(value)
        if whole or one is value:
            message = f"{self.name} is {shown(value)}, not {self.kind}"
        else:
            message = f"{self.plural} hold {shown(one)} in {shown(value)}"
        found = whole or self.instead(one)
        return UsageError(message, f"give {found}" if found else self.hint)


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
    "give SamplingParams, such as SamplingParams(max_tokens=32)",
    _as_sampling,
)
_LOOKAHEADS = _Setting(
    "lookahead", "lookahead triples", "a LookaheadConfig", is_lookahead, TRIPLES, as_lookahead
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
_LOGPROBS = _Setting(
    "logprobs",
    "logprobs",
    "a whole number",
    lambda value: value is None or is_whole(value),
    "give how many most probable tokens to list beside each output token, such as 5; or None",
)
_PRIVATE = _Setting(
    "private",
    "private settings",
    "True or False",
    lambda value: isinstance(value, bool),
    "give True for prompts of which nothing may be kept for others, else False",
)
_NAMES = _Setting("names", "names", "texts", lambda value: isinstance(value, str), "give texts")


def _is_ids(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(map(is_whole, value))


def prompt_requests(
    prompts: object,
    sampling: object = None,
    lookahead: object = None,
    drafter: object = None,
    expected_output: object = None,
    names: object = None,
    logprobs: object = None,
    private: object = False,
) -> list[PromptRequest]:
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
        _one_each(labels, number, _NAMES),
        many,
        _one_each(SamplingParams() if sampling is None else sampling, number, _SAMPLING),
        _one_each(lookahead, number, _LOOKAHEADS),
        _one_each(drafter, number, _DRAFTERS),
        _one_each([expected] * number if _is_ids(expected) else expected, number, _EXPECTED),
        _one_each(logprobs, number, _LOGPROBS),
        _one_each(private, number, _PRIVATE),
        strict=True,
    )
    return [PromptRequest(*one) for one in each]


def _one_each(value: object, number: int, setting: _Setting) -> list[Any]:
    each = list(value) if isinstance(value, (list, tuple)) else [value] * number
    for one in each:
        if not setting.fits(one):
            raise setting.refusal(one, value)
    if len(each) != number:
        raise UsageError(
            f"{len(each)} {setting.plural} for {counted(number, 'prompt')}",
            "give one for all prompts, or one for each",
        )
    return each


def warn_unread(ids: Iterable[str]) -> None:
    """Warn of settings that only the candidate tree reads, where it does not draft."""
    for name in ids:
        warnings.warn(
            f"{name} changes nothing here: only lookahead auto drafts from the candidate tree",
            TrtlaWarning,
            stacklevel=_level(),
        )


def _level() -> int:
    """How far from who calls this the first caller outside of trtla is, as warnings count."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("trtla."):
        level, frame = level + 1, frame.f_back
    return level
