"""Arms of our engine that are described before a model is open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtla.measuring.arms import AR, EngineArm
from trtla.settings.drafting import LOOKAHEAD, NO_DRAFTER, DrafterSettings, DraftOptions
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


PLAIN = Way(AR, AUTOREGRESSIVE, NO_DRAFTER)
