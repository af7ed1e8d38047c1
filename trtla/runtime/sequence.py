"""One request on its way through the executor: tokens, blocks, drafter, counters."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtla.drafting import LOOKAHEAD, DrafterSettings
from trtla.lookahead import LookaheadConfig
from trtla.runtime.draft import Drafter
from trtla.runtime.executor import FinishReason, Request, RequestStats
from trtla.runtime.pilot import Pilot


@dataclass(slots=True, eq=False)
class Sequence:
    """State of a request in plain integers.

    Invariant between steps of the generation phase: all tokens but the last are cached.
    """

    request: Request
    lookahead: LookaheadConfig
    drafter: Drafter
    output_ids: list[int] = field(default_factory=list)
    num_cached: int = 0
    """Tokens whose keys and values are in the cache."""
    blocks: tuple[int, ...] = ()
    stats: RequestStats = field(default_factory=RequestStats)
    finish_reason: FinishReason | None = None
    pilot: Pilot | None = None
    """What chooses how much of its drafts is fed; None: all of them."""
    drafting: DrafterSettings = LOOKAHEAD
    """What the drafter was made from."""
    torn: bool = False
    """A step that it took part in was interrupted: what is cached for it is not certain."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """The prompt's tokens."""
        return self.request.input_ids

    @property
    def in_generation(self) -> bool:
        """True once the prompt is cached and the first token is out."""
        return bool(self.output_ids)

    @property
    def cached_text(self) -> tuple[int, ...]:
        """The tokens whose keys and values are in the cache."""
        return (*self.prompt, *self.output_ids)[: self.num_cached]

    @property
    def max_cached(self) -> int:
        """Slots that the text and one step's draft can need together."""
        text = len(self.prompt) + self.request.sampling.max_output_len
        return text + self.max_draft_len

    @property
    def max_draft_len(self) -> int:
        """Most tokens that its drafter proposes in a step."""
        return self.drafting.max_draft_len(self.lookahead)
