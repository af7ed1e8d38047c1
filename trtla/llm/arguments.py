"""The arguments of `LLM.generate`, one for all prompts or one each: checks, and requests."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trtla.console import counted
from trtla.errors import TrtlaWarning, UsageError
from trtla.llm.prompt import PromptRequest
from trtla.settings.drafting import DrafterSettings, drafter_of
from trtla.settings.fields import is_whole, shown
from trtla.settings.lookahead import TRIPLES, as_lookahead, is_lookahead
from trtla.settings.messages import Rendering, is_conversation
from trtla.settings.sampling import SamplingParams


def as_prompts(prompts: object) -> list[Any]:
    """Return an argument's prompts; a list of messages is a single one."""
    if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Sequence):
        return [prompts]
    if not prompts:
        raise UsageError("there is no prompt", "give at least one")
    single = all(map(is_whole, prompts)) or all(isinstance(item, Mapping) for item in prompts)
    return [prompts] if single else list(prompts)


def conversations(messages: object) -> list[Any]:
    """Return an argument's conversations, one or several."""
    many = as_prompts(messages)
    for conversation in many:
        if not is_conversation(conversation):
            raise UsageError(
                f"chat is asked {shown(conversation)}, which is no list of messages",
                'give messages such as [{"role": "user", "content": "..."}], or use generate',
            )
    return many


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    plural: str
    kind: str
    fits: Callable[[object], bool]
    hint: str
    instead: Callable[[object], str | None] = lambda _: None
    """Returns the right argument for an equivalent value of another type."""

    def refusal(self, item: object, value: object) -> UsageError:
        whole = self.instead(value)
        if whole or item is value:
            message = f"{self.name} is {shown(value)}, not {self.kind}"
        else:
            message = f"{self.plural} hold {shown(item)} in {shown(value)}"
        suggestion = whole or self.instead(item)
        return UsageError(message, f"give {suggestion}" if suggestion else self.hint)


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
    "give names, such as 'prompt-lookup', or DrafterSettings; drafters of your own are for "
    "LLM(..., drafter=...)",
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
    continue_final_message: object = False,
    chat_template_kwargs: Any = None,
    **shared: Any,
) -> list[PromptRequest]:
    """Pair every prompt with its own settings; arguments as in `LLM.generate`, `shared` for those
    with one value for all prompts.
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
        _one_each(_drafters(drafter), number, _DRAFTERS),
        _one_each([expected] * number if _is_ids(expected) else expected, number, _EXPECTED),
        _one_each(logprobs, number, _LOGPROBS),
        _one_each(private, number, _PRIVATE),
        strict=True,
    )
    shared["rendering"] = Rendering.of(
        continue_final_message, chat_template_kwargs=chat_template_kwargs
    )
    return [PromptRequest(*arguments, **shared) for arguments in each]


def _drafters(given: object) -> object:
    """The drafters in place of their names, for all prompts or for one each."""
    return list(map(drafter_of, given)) if isinstance(given, (list, tuple)) else drafter_of(given)


def _one_each(value: object, number: int, setting: _Setting) -> list[Any]:
    each = list(value) if isinstance(value, (list, tuple)) else [value] * number
    for item in each:
        if not setting.fits(item):
            raise setting.refusal(item, value)
    if len(each) != number:
        raise UsageError(
            f"{len(each)} {setting.plural} for {counted(number, 'prompt')}",
            "give one for all prompts, or one for each",
        )
    return each


def warn_unread(ids: Iterable[str]) -> None:
    """Warn of settings that only the candidate tree reads if it does not draft."""
    for name in ids:
        warnings.warn(
            f"{name} changes nothing here: only lookahead auto drafts from the candidate tree",
            TrtlaWarning,
            stacklevel=_level(),
        )


def _level() -> int:
    """Count the stack levels from the caller to the first code outside trtla, as warnings count."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("trtla."):
        level, frame = level + 1, frame.f_back
    return level
