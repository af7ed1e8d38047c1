"""/compare A | B: two settings from text, and what both made of one prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trtla.chat.commands import split
from trtla.chat.decode import Decoded
from trtla.chat.settings import ChatSettings, changed
from trtla.errors import UsageError
from trtla.results.metrics import first_difference
from trtla.settings.drafting import LOOKAHEAD


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: as it was typed, and what it means."""

    name: str
    settings: ChatSettings


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides and their texts, on the same prompt."""

    sides: tuple[Side, Side]
    texts: tuple[Decoded, Decoded]

    @property
    def verdict(self) -> str:
        """Whether the texts are equal, and which side was faster."""
        left, right = self.texts
        speed = _ratio(right.metrics.tokens_per_s, left.metrics.tokens_per_s)
        if left.ids == right.ids:
            return f"the texts are equal; B is {speed} as fast as A"
        same = first_difference(left.ids, right.ids)
        return f"the texts differ from token {same} on; B is {speed} as fast as A"

    def rows(self) -> list[tuple[str, str, str]]:
        """Metrics side by side: (name, A, B)."""
        left, right = (text.metrics for text in self.texts)
        return [
            ("tokens", str(left.tokens), str(right.tokens)),
            ("steps", str(left.steps), str(right.steps)),
            ("tokens per step", f"{left.tokens_per_step:.2f}", f"{right.tokens_per_step:.2f}"),
            ("tokens/s", f"{left.tokens_per_s:.0f}", f"{right.tokens_per_s:.0f}"),
        ]


def read_side(text: str, settings: ChatSettings) -> Side:
    """The settings after the commands of one side, `;` between several, slashes optional.

    Raises:
        UsageError: a command or value is wrong, or a command changes no setting.
    """
    given, settings = set(), replace(settings, speculative=True)
    for part in text.split(";"):
        command, argument = split(part)
        if not command.paths:
            raise UsageError(
                f"/{command.name} changes no setting", "compare settings, such as lookahead 7,7,7"
            )
        if not argument:
            raise UsageError(f"{command.name} has no value", f"write {command.usage[1:]}")
        settings = command.apply(argument, settings)
        given.add(command.name)
    return Side(text, _together(settings, given))


def _together(settings: ChatSettings, given: set[str]) -> ChatSettings:
    """What one side names drafts, whatever drafts otherwise: a triple, or a drafter."""
    if "lookahead" in given and "drafter" not in given and not settings.drafter.uses_lookahead:
        return changed(settings, {"drafter.drafter": LOOKAHEAD.drafter})
    alone = settings.drafter.drafter == LOOKAHEAD.drafter
    if "lookahead" not in given and settings.lookahead == "auto" and not alone:
        return replace(settings, lookahead=None)
    return settings


def _ratio(new: float, base: float) -> str:
    return f"{new / base:.2f}x" if base else "an unknown number of times"
