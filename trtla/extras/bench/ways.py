"""Arms of our engine that are described before a model is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from trtla.measuring.arms import AR, EngineArm
from trtla.settings.drafting import (
    HEAD_PREFIX,
    LOOKAHEAD,
    NO_DRAFTER,
    DrafterSettings,
    DraftOptions,
)
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead

if TYPE_CHECKING:
    from trtla.llm.llm import LLM


@dataclass(frozen=True, slots=True)
class Way:
    """Description of an arm of our engine, which exists before a model is open."""

    name: str
    """Empty: `ar`, or lookahead with its triple."""
    lookahead: Lookahead | None
    """None: the triple with which the model is opened."""
    drafter: DrafterSettings = LOOKAHEAD
    options: DraftOptions | None = None
    """Options of auto's drafts; None: those with which the model is opened."""
    setting: str | None = None
    """Words that distinguish it from arms of the same name."""
    largest: bool = False
    """True: draft with the engine's largest triple, in place of `lookahead`."""

    def arm(self, llm: LLM) -> EngineArm:
        """Make the arm with an open model."""
        triple = llm.limits.lookahead if self.largest else self.lookahead
        if triple is None and not self.name:
            triple = llm.lookahead
        arm = EngineArm(llm, triple, self.drafter, self.name or None, self.options)
        arm.setting = self.setting
        return arm


def short_heads(ways: Sequence[Way]) -> tuple[Way, ...]:
    """Name arms of trained heads by the ends of their paths that tell the heads apart."""
    paths = [way.drafter.head for way in ways if way.drafter.head]
    ends = {path: _end(path, paths) for path in paths}
    return tuple(_with_end(way, ends) for way in ways)


def _with_end(way: Way, ends: Mapping[str, str]) -> Way:
    path, name = way.drafter.head, way.drafter.head_name
    if path is None or name is None or way.name != way.drafter.name:
        return way
    return replace(way, name=way.name.replace(name, f"{HEAD_PREFIX}{ends[path]}"))


def _end(path: str, paths: Sequence[str]) -> str:
    parts = PurePath(path).parts
    others = [PurePath(other).parts for other in paths if other != path]
    for count in range(1, len(parts)):
        if parts[-count:] not in [other[-count:] for other in others]:
            return "/".join(parts[-count:])
    return path


PLAIN = Way(AR, AUTOREGRESSIVE, NO_DRAFTER)
