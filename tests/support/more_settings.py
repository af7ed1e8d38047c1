"""A class of settings with one of each kind, its values, and the flags that give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtla.settings.drafting import DrafterSettings
from trtla.settings.fields import option


@dataclass(frozen=True, slots=True)
class More(DrafterSettings):
    """A drafter with one setting of each kind more."""

    width: int = option(2, "Branches side by side.", least=1, most=9, alias="branches")
    weight: float = option(0.5, "Of the past.", most=1)
    eager: bool = option(False, "Draft at once.")
    careful: bool = option(True, "Look twice.")
    order: Literal["first_come", "best"] = option("best", "Which goes first.")
    room: int | None = option(None, "Most tokens.", least=1, shown="--width")
    names: tuple[str, ...] = option((), "What they are called.")


NEW = {
    "width": 3, "weight": 0.25, "eager": True, "careful": False, "order": "first_come", "room": 7,
    "names": ("a", "b"),
}  # fmt: skip
ARGS = (
    "--width", "3", "--weight", "0.25", "--eager", "--no-careful", "--order", "first-come",
    "--room", "7", "--names", "a", "b",
)  # fmt: skip
