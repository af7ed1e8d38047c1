"""One prompt or several, and settings that are given once for all of them or once for each.

What they are is checked here, whether they fit the model is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from typing import Any

from trtla.arguments import is_whole, shown
from trtla.drafting import DrafterSettings
from trtla.errors import UsageError
from trtla.lookahead import Lookahead, LookaheadConfig
from trtla.runtime.executor import SamplingParams

Prompt = str | Sequence[int]
"""A text, or token ids for models without a tokenizer."""

Asked = tuple[Prompt, SamplingParams, Lookahead | None, DrafterSettings | None, str]
"""A prompt with its own settings, and what errors call it."""

_PROMPTS = "give a text or a list of token ids, or a list of several of them"
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
_NAMES = _Setting("names", "names", "texts", lambda value: isinstance(value, str), "give texts")


def asked(
    prompts: object, sampling: object, lookahead: object, drafter: object, names: object
) -> list[Asked]:
    """Every prompt with its own settings; the arguments are those of `LLM.generate`.

    Raises:
        UsageError: there is no prompt, a setting is of another kind, or there are more or fewer of
            them than prompts.
    """
    many = _as_prompts(prompts)
    number = len(many)
    labels = [f"prompt {index}" for index in range(number)] if names is None else names
    each = zip(
        many,
        _one_each(SamplingParams() if sampling is None else sampling, number, _SAMPLING),
        _one_each(lookahead, number, _LOOKAHEADS),
        _one_each(drafter, number, _DRAFTERS),
        _one_each(labels, number, _NAMES),
        strict=True,
    )
    return list(each)


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


def prompt_ids(prompt: object, name: str) -> tuple[int, ...]:
    """The ids of a prompt that is no text; `name` is what errors call it.

    Raises:
        UsageError: it is no sequence of whole numbers.
    """
    if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
        raise UsageError(f"{name} is {shown(prompt)}, neither a text nor token ids", _PROMPTS)
    for item in prompt:
        if not is_whole(item):
            raise UsageError(f"{name} holds {shown(item)}, which is no token id", _PROMPTS)
    return tuple(map(int, prompt))


def _as_prompts(prompts: object) -> list[Any]:
    if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Sequence):
        return [prompts]
    if not prompts:
        raise UsageError("there is no prompt", "give at least one")
    return [prompts] if all(map(is_whole, prompts)) else list(prompts)


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
