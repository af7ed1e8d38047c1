"""All settings of a chat in one frozen value: how answers are decoded and what is shown beside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from trtla.settings.drafting import LOOKAHEAD, NO_DRAFTER, DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead
from trtla.settings.sampling import SamplingParams

_SAMPLING = SamplingParams()


@dataclass(frozen=True, slots=True)
class Decoding:
    """How one text is decoded, as `LLM.stream` takes it."""

    sampling: SamplingParams
    lookahead: Lookahead | None
    drafter: DrafterSettings


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What the slash commands change."""

    sampling: SamplingParams = _SAMPLING
    drafter: DrafterSettings = LOOKAHEAD
    lookahead: Lookahead | None = None
    """None: the server's."""
    speculative: bool = True
    """False answers plainly, whatever drafts otherwise."""
    target: bool = False
    """Decode each answer once more without drafts, and tell the figures."""
    ngram: bool = False
    """Likewise with n-grams."""
    chat: bool = True
    """Use the chat template, where there is one."""
    debug: bool = False

    @property
    def plain(self) -> Decoding:
        """Decoding without drafts."""
        return Decoding(self.sampling, AUTOREGRESSIVE, NO_DRAFTER)

    @property
    def by_ngrams(self) -> Decoding:
        """Decoding with n-gram drafts."""
        drafter = replace(self.drafter, drafter=("ngram",), egag=False, rejection=False)
        return Decoding(self.sampling, None, drafter)

    @property
    def decoding(self) -> Decoding:
        """How answers are decoded."""
        if not self.speculative:
            return self.plain
        return Decoding(self.sampling, self.lookahead, self.drafter)


def read(settings: ChatSettings, path: str) -> Any:
    """The value at `seed`-like or `sampling.seed`-like paths."""
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def changed(settings: ChatSettings, values: dict[str, Any]) -> ChatSettings:
    """The settings with other values at some paths, all at once.

    Raises:
        UsageError: a value is out of its range, or values do not go together.
    """
    own = {path: value for path, value in values.items() if "." not in path}
    for part in ("sampling", "drafter"):
        inner = {
            path.removeprefix(f"{part}."): value
            for path, value in values.items()
            if path.startswith(f"{part}.")
        }
        if inner:
            own[part] = replace(getattr(settings, part), **inner)
    return replace(settings, **own)
