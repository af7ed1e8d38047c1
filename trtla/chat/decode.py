"""One text decoded step by step: streamed, timed, and stopped when asked. No settings, no turns."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from trtla.chat.figures import Figures, Meter
from trtla.chat.settings import Decoding

if TYPE_CHECKING:
    from trtla.explain.record import RecordingDrafter
    from trtla.llm.llm import LLM, Chunk, Piece
    from trtla.runtime.draft import Draft, Drafter
    from trtla.runtime.request import FinishReason, Request


@dataclass(frozen=True, slots=True)
class Step:
    """What one step brought."""

    chunk: Chunk
    figures: Figures
    """So far."""
    rejected: tuple[int, ...] = ()
    """What followed the accepted tokens in their draft; only where steps are watched."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A text and how it came about."""

    ids: tuple[int, ...]
    """An end token included."""
    pieces: tuple[Piece, ...]
    finish_reason: FinishReason
    figures: Figures

    @property
    def text(self) -> str:
        """The text that was shown."""
        return "".join(text for text, _ in self.pieces)

    @property
    def spoken_ids(self) -> tuple[int, ...]:
        """Without the end token."""
        return self.ids[:-1] if self.finish_reason == "end_id" else self.ids


def decode(
    llm: LLM,
    ids: tuple[int, ...],
    how: Decoding,
    stopped: Callable[[], bool],
    *,
    watch: bool = False,
    name: str = "the message",
) -> Generator[Step, None, Decoded]:
    """Decode one prompt; yields its steps and returns the text, `cancelled` where it was stopped.

    Args:
        stopped: asked after every step.
        watch: look at what is drafted; torch engines only, not with lookahead auto.
        name: what errors call the prompt.

    Raises:
        UsageError: the prompt does not fit; nothing has been generated then.
        TrtlaError: the executor gave up.
    """
    drafts = _Drafts() if watch else None
    meter = Meter(len(ids))
    chunks = llm.stream(
        [ids], how.sampling, how.lookahead, drafter=how.drafter, names=[name], watch=drafts
    )
    stream = cast("Generator[Chunk, None, None]", chunks)
    told: list[int] = []
    pieces: list[Piece] = []
    reason: FinishReason = "cancelled"
    try:
        for chunk in stream:
            told += chunk.token_ids
            pieces += chunk.pieces or ()
            rejected = drafts.rejected(chunk) if drafts else ()
            yield Step(chunk, meter.add(chunk), rejected)
            if chunk.completion is not None:
                reason = chunk.completion.finish_reason
            elif stopped():
                break
    finally:
        stream.close()  # cancels the request, so that its room is free
    return Decoded(tuple(told), tuple(pieces), reason, meter.figures)


class _Drafts:
    """Remembers what was drafted for a request."""

    def __init__(self) -> None:
        self._recorder: RecordingDrafter | None = None

    def __call__(self, drafter: Drafter, request: Request) -> RecordingDrafter:
        from trtla.explain.record import RecordingDrafter

        self._recorder = RecordingDrafter(drafter)
        return self._recorder

    def rejected(self, chunk: Chunk) -> tuple[int, ...]:
        """What the best branch of the chunk's step held behind the accepted tokens."""
        steps = self._recorder.steps if self._recorder else []
        if not steps or not chunk.token_ids:
            return ()
        return rejected_tail(steps[-1].draft, chunk.token_ids[: chunk.accepted])


def rejected_tail(draft: Draft, accepted: Sequence[int]) -> tuple[int, ...]:
    """The longest rest of a drafted branch that begins with the accepted tokens."""
    allowed = set(draft.candidates)
    branches = [(draft.path(node), draft.tokens_to(node)) for node in draft.candidates]
    fitting = [
        tokens[len(accepted) :]
        for nodes, tokens in branches
        if allowed.issuperset(nodes) and tokens[: len(accepted)] == tuple(accepted)
    ]
    return max(fitting, key=len, default=())
