"""The settings of a chat in one frozen value; a setting has the name of its flag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trtla.settings.drafting import LOOKAHEAD, NO_DRAFTER, DrafterSettings
from trtla.settings.fields import check, declared, option
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead
from trtla.settings.sampling import SamplingParams

_SAMPLING = SamplingParams()


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """The settings that slash commands change."""

    sampling: SamplingParams = _SAMPLING
    drafting: DrafterSettings = LOOKAHEAD
    lookahead: Lookahead | None = None
    """None: the default triple."""
    system: str = option("", "The system message; empty: none, or the template's own.")
    chat: bool = option(True, "Use the chat template, if the model has one.")
    speculative: bool = option(True, "Draft at all; off answers plainly.")
    target: bool = option(False, "Answer plainly too, and report the ratio.")
    ngram: bool = option(False, "Answer with n-grams too, and report the ratio.")
    debug: bool = option(False, "Show every step: accepted, rejected, the model's own tokens.")

    def __post_init__(self) -> None:
        check(self)

    @property
    def plain(self) -> ChatSettings:
        return replace(self, drafting=NO_DRAFTER, lookahead=AUTOREGRESSIVE)

    @property
    def by_ngrams(self) -> ChatSettings:
        drafting = replace(self.drafting, drafter=("ngram",), egag=False, rejection=False)
        return replace(self, drafting=drafting)


SWITCHES = ("speculative", "target", "ngram", "debug")
"""Settings without a flag, which Speculative-Decoding's chat has."""
_PARTS: dict[str, Any] = {"sampling": SamplingParams, "drafting": DrafterSettings}
_PART = {name: part for part, kind in _PARTS.items() for name in declared(kind)}
_PART["grammar"] = "sampling"
NAMES = tuple(name for name in (*_PART, "lookahead", *declared(ChatSettings)))
"""All settings, by their flags' names."""


def read(settings: ChatSettings, name: str) -> Any:
    """Return the value of one setting."""
    part = _PART.get(name)
    return getattr(getattr(settings, part) if part else settings, name)


def changed(settings: ChatSettings, values: Mapping[str, Any]) -> ChatSettings:
    """Return the settings with other values, all set at once; raises UsageError."""
    parts = {part: replace(getattr(settings, part), **_of(part, values)) for part in _PARTS}
    return replace(settings, **parts, **_of(None, values))


def _of(part: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if _PART.get(name) == part}
