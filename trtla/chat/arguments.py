"""What may stand after a slash command: how it is read, shown and completed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtla.errors import UsageError
from trtla.settings.drafting import DRAFT_PREFIX, DRAFTERS, parse_drafter
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.settings.sampling import VALUES, processor

_STATES = {"on": True, "off": False}


@dataclass(frozen=True, slots=True)
class Known:
    """What completion can offer beside the fixed words."""

    triple: str = "7,7,7"
    draft_models: tuple[str, ...] = ()


class Argument:
    """No argument; the base of the others. Values may be tuples, for several settings at once."""

    metavar = ""

    def parse(self, text: str, current: Any) -> Any:
        """The value that a text means; `current` is the present one.

        Raises:
            UsageError: the text does not fit.
        """
        if text:
            raise UsageError(f"{text!r} follows what takes no value", "leave it away")
        return None

    def show(self, value: Any) -> str:
        """A value as it would be typed."""
        return str(value)

    def choices(self, text: str, known: Known) -> Sequence[str]:
        """Whole arguments that `text` may become."""
        return ()


class Toggle(Argument):
    """`on`, `off`, or nothing for the other one."""

    metavar = "[on|off]"

    def parse(self, text: str, current: Any) -> bool:
        """The state asked for."""
        if not text:
            return not current
        if text.lower() not in _STATES:
            raise UsageError(f"{text!r} is neither on nor off", "nothing toggles")
        return _STATES[text.lower()]

    def show(self, value: Any) -> str:
        """`on` or `off`."""
        return "on" if value else "off"

    def choices(self, text: str, known: Known) -> Sequence[str]:
        """Both states."""
        return tuple(_STATES)


class Whole(Argument):
    """A whole number."""

    metavar = "N"

    def parse(self, text: str, current: Any) -> int | None:
        """The number; its range is the setting's."""
        return int(_number(text, int, "a whole number"))


class GammaMax(Whole):
    """A whole number, or `gamma` for what that is."""

    metavar = "N|gamma"

    def parse(self, text: str, current: Any) -> int | None:
        """The number; None follows gamma."""
        return None if text.lower() == "gamma" else super().parse(text, current)

    def show(self, value: Any) -> str:
        """As it would be typed."""
        return "gamma" if value is None else str(value)


class Real(Argument):
    """A number."""

    metavar = "X"

    def parse(self, text: str, current: Any) -> float:
        """The number; its range is the setting's."""
        return float(_number(text, float, "a number"))

    def show(self, value: Any) -> str:
        """Without zeros at the end."""
        return f"{value:g}"


class Triple(Argument):
    """A lookahead triple, `auto` or `off`."""

    metavar = "W,N,G|auto|off"

    def parse(self, text: str, current: Any) -> LookaheadConfig | str:
        """The triple; `off` is 1,1,0."""
        if text.lower() in ("auto", "off"):
            return "auto" if text.lower() == "auto" else AUTOREGRESSIVE
        return LookaheadConfig.parse(text)

    def show(self, value: Any) -> str:
        """As it would be typed."""
        return "off" if value == AUTOREGRESSIVE else "the server's" if value is None else str(value)

    def choices(self, text: str, known: Known) -> Sequence[str]:
        """The server's triple, and the words."""
        return (known.triple, "auto", "off")


class Drafter(Argument):
    """A drafter, or several with commas between."""

    metavar = "NAME,..."

    def parse(self, text: str, current: Any) -> tuple[str, ...]:
        """The names."""
        if text.lower() in _STATES:
            raise UsageError(
                f"{text} is no drafter: this is no toggle, it names what drafts",
                f"use {', '.join(DRAFTERS)} or draft:PATH; /speculative switches drafting",
            )
        return parse_drafter(text)

    def show(self, value: Any) -> str:
        """The names with commas between."""
        return ",".join(value)

    def choices(self, text: str, known: Known) -> Sequence[str]:
        """A name after the last comma."""
        before, comma, _ = text.rpartition(",")
        names = (*DRAFTERS, *(DRAFT_PREFIX + path for path in known.draft_models))
        taken = set(before.split(","))
        return [before + comma + name for name in names if name not in taken]


class ProcessorArgument(Argument):
    """A processor and its values with blanks (or colons) between: (temperature, top_k, top_p)."""

    metavar = "NAME [VALUE...]"

    def parse(self, text: str, current: Any) -> tuple[float, int, float]:
        """The three filters."""
        name, *values = text.replace(":", " ").split() or [""]
        return processor(name, *(_number(value, float, "a number") for value in values))

    def show(self, value: Any) -> str:
        """The shortest processor that means these filters."""
        temperature, top_k, top_p = value
        if temperature == 0:
            return "greedy"
        given = {"temperature": f"{temperature:g}"}
        given |= {"top_k": str(top_k)} if top_k else {}
        given |= {"top_p": f"{top_p:g}"} if top_p < 1 else {}
        sampled = {values: name for name, values in VALUES.items() if name != "greedy"}
        return " ".join([sampled[tuple(given)], *given.values()])

    def choices(self, text: str, known: Known) -> Sequence[str]:
        """Every name with usual values."""
        usual = {"temperature": "0.8", "top_k": "40", "top_p": "0.9"}
        return [
            " ".join([name, *(usual[value] for value in values if name != "greedy")])
            for name, values in VALUES.items()
        ]


class Storage(Argument):
    """The kind of n-gram storage and its order."""

    metavar = "KIND N"

    def parse(self, text: str, current: Any) -> tuple[str, int]:
        """(kind, order)."""
        parts = text.split()
        if len(parts) != 2:
            raise UsageError(f"{text!r} is not a kind and a number", "write basic 3 or onelevel 4")
        return parts[0].lower(), int(_number(parts[1], int, "a whole number"))

    def show(self, value: Any) -> str:
        """Both with a blank between."""
        return f"{value[0]} {value[1]}"

    def choices(self, text: str, known: Known) -> Sequence[str]:
        """Usual ones."""
        return ("basic 3", "basic 4", "onelevel 3", "onelevel 4")


class File(Argument):
    """A path."""

    metavar = "FILE"

    def parse(self, text: str, current: Any) -> Path:
        """The path, `~` resolved."""
        if not text:
            raise UsageError("no file is named", "write a path, such as chat.json")
        try:
            return Path(text).expanduser()
        except RuntimeError:
            raise UsageError(f"{text} names a user that is not known", "write the path") from None

    def choices(self, text: str, known: Known) -> Sequence[str]:
        """What lies there."""
        folder, slash, start = text.rpartition("/")
        try:
            entries = sorted(Path(folder + slash or ".").expanduser().iterdir())
        except (OSError, RuntimeError, ValueError):
            return ()
        return [
            f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}"
            for entry in entries
            if start.startswith(".") or not entry.name.startswith(".")
        ]


class Pair(Argument):
    """Two settings with `|` between, each one or more commands with `;` between."""

    metavar = "A | B"

    def parse(self, text: str, current: Any) -> tuple[str, str]:
        """Both sides as texts."""
        left, bar, right = text.partition("|")
        if not bar or "|" in right or not left.strip() or not right.strip():
            raise UsageError(
                f"{text!r} is not two settings with | between",
                "write lookahead 7,7,7 | drafter prompt-lookup",
            )
        return left.strip(), right.strip()


def _number(text: str, kind: type[int] | type[float], name: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{text!r} is not {name}" if text else f"{name} is missing") from None
