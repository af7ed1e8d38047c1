"""All settings of a chat in one frozen value: how answers are decoded and what is shown beside.

A setting is named by its path, `chat` or `sampling.seed`: commands and saved files use these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from trtla.settings.drafting import LOOKAHEAD, NO_DRAFTER, DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead
from trtla.settings.sampling import SamplingParams

_SAMPLING = SamplingParams()


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What the slash commands change."""

    sampling: SamplingParams = _SAMPLING
    drafter: DrafterSettings = LOOKAHEAD
    lookahead: Lookahead | None = None
    """None: the default triple."""
    speculative: bool = True
    """False answers plainly, whatever drafts otherwise."""
    target: bool = False
    """Decode each answer once more without drafts, and compare the speed."""
    ngram: bool = False
    """Likewise with n-grams."""
    chat: bool = True
    """Use the chat template, where there is one."""
    debug: bool = False
    colors: Literal["accepted", "source"] = "accepted"
    """What accepted tokens are tinted by."""
    system: str = ""
    """What the chat template has before the first message; empty: nothing, or its own."""

    @property
    def plain(self) -> ChatSettings:
        return replace(self, drafter=NO_DRAFTER, lookahead=AUTOREGRESSIVE)

    @property
    def by_ngrams(self) -> ChatSettings:
        """With n-gram drafts."""
        drafter = replace(self.drafter, drafter=("ngram",), egag=False, rejection=False)
        return replace(self, drafter=drafter)

    @property
    def for_answers(self) -> ChatSettings:
        return self if self.speculative else self.plain


PARTS: dict[str, Any] = {"sampling": SamplingParams, "drafter": DrafterSettings}
"""The classes of settings in `ChatSettings`, by their fields."""


def read(settings: ChatSettings, path: str) -> Any:
    """The value of one setting."""
    part, _, name = path.rpartition(".")
    return getattr(getattr(settings, part) if part else settings, name)


def changed(settings: ChatSettings, values: Mapping[str, Any]) -> ChatSettings:
    """The settings with other values at some paths, all at once."""
    by_part: dict[str, dict[str, Any]] = {part: {} for part in ("", *PARTS)}
    for path, value in values.items():
        part, _, name = path.rpartition(".")
        by_part[part][name] = value
    own = by_part.pop("")
    inner = {part: replace(getattr(settings, part), **new) for part, new in by_part.items() if new}
    return replace(settings, **inner, **own)
