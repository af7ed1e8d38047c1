"""What a session reports to its front-end, which decides how it looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtla.chat.decode import Decoded, Step

if TYPE_CHECKING:
    from trtla.chat.decode import Comparison


@dataclass(frozen=True, slots=True)
class Said:
    """What was asked for, as lines of text."""

    text: str


@dataclass(frozen=True, slots=True)
class Noted:
    """A remark, one line."""

    text: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A wrong command or value, one line; nothing has changed."""

    text: str


@dataclass(frozen=True, slots=True)
class Streamed:
    """A step of the answer that is being written."""

    step: Step
    debug: bool
    by_source: bool = False
    """Tint accepted tokens by their source."""


@dataclass(frozen=True, slots=True)
class Busy:
    """A step of a text that is not shown while it comes."""

    step: Step
    what: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer is complete, or was stopped."""

    answer: Decoded
    debug: bool
    by_source: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """Both texts of /compare."""

    comparison: Comparison


@dataclass(frozen=True, slots=True)
class ClearScreen:
    """/clear."""


@dataclass(frozen=True, slots=True)
class Leave:
    """/quit."""


Event = Said | Noted | Refused | Streamed | Busy | Answered | Compared | ClearScreen | Leave
