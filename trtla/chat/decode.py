"""One text decoded step by step: streamed, measured, and stopped when asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar, cast

from trtla.chat.commands import split
from trtla.chat.settings import ChatSettings, changed
from trtla.errors import UsageError
from trtla.results.metrics import first_difference
from trtla.runtime.drafters.recorder import DraftRecorder, RecorderWatch
from trtla.runtime.stats import tokens_per_step
from trtla.settings.drafting import LOOKAHEAD

if TYPE_CHECKING:
    from trtla.llm.llm import LLM, Chunk, Piece
    from trtla.runtime.draft import Draft
    from trtla.runtime.request import FinishReason


ReportT = TypeVar("ReportT")


@dataclass(frozen=True, slots=True)
class Metrics:
    """Counters of one answer, or of several added up; names as in docs/algorithm.md."""

    answers: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Prompt tokens whose keys and values were still in the cache."""
    tokens: int = 0
    steps: int = 0
    accepted: int = 0
    decode_s: float = 0.0
    """From the first token to the last."""
    decoded: int = 0
    """Tokens in that time."""

    @classmethod
    def of(cls, chunk: Chunk, time_s: float | None) -> Metrics:
        """What one chunk adds.

        Args:
            time_s: since the chunk before; None for the first one, the prompt's pass.
        """
        stepped = time_s is not None and bool(chunk.token_ids)
        return cls(
            reused_tokens=chunk.completion.stats.reused_tokens if chunk.completion else 0,
            tokens=len(chunk.token_ids),
            steps=int(stepped),
            accepted=chunk.accepted,
            decode_s=time_s or 0.0,
            decoded=len(chunk.token_ids) if stepped else 0,
        )

    @property
    def tokens_per_step(self) -> float:
        """S, the step compression."""
        return tokens_per_step(self.decoded, self.steps)

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first, per second; the prompt's pass does not count."""
        return self.decoded / self.decode_s if self.decode_s else 0.0

    def __add__(self, other: Metrics) -> Metrics:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Metrics(*(a + b for a, b in pairs))

    def describe(self) -> str:
        """Speed and compression, as every place shows them."""
        return f"{self.tokens_per_s:.0f} tokens/s, {self.tokens_per_step:.2f} tokens per step"


@dataclass(frozen=True, slots=True)
class Step:
    """What one step brought."""

    chunk: Chunk
    metrics: Metrics
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
    metrics: Metrics
    sources: dict[str, int] = field(default_factory=dict)
    """Accepted tokens by what proposed them; of whole texts of `auto` only."""

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
    how: ChatSettings,
    stopped: Callable[[], bool],
    report: Callable[[Step], ReportT],
    *,
    watch: bool = False,
    private: bool = False,
    name: str = "the message",
) -> Generator[ReportT, None, Decoded]:
    """Decode one prompt and return the text, `cancelled` where it was stopped.

    Args:
        how: its sampling, lookahead and drafter count.
        stopped: asked after every step.
        report: makes what is yielded of every step.
        watch: look at what is drafted; torch engines only.
        private: share neither K/V blocks nor drafts with any other text.
        name: what errors call the prompt.

    Raises:
        UsageError: the prompt does not fit; nothing has been generated then.
        TrtlaError: the executor gave up.
    """
    watcher = RecorderWatch(DraftRecorder) if watch else None
    chunks = llm.stream(
        [ids], how.sampling, how.lookahead, drafter=how.drafter, names=[name], watch=watcher,
        private=private,
    )  # fmt: skip
    stream = cast("Generator[Chunk, None, None]", chunks)
    metrics = Metrics(answers=1, prompt_tokens=len(ids))
    output: list[int] = []
    pieces: list[Piece] = []
    reason: FinishReason = "cancelled"
    last: float | None = None
    sources: dict[str, int] = {}
    try:
        for chunk in stream:
            now = time.perf_counter()
            metrics += Metrics.of(chunk, None if last is None else now - last)
            last = now
            output += chunk.token_ids
            pieces += chunk.pieces or ()
            rejected = _rejected(watcher.recorders, chunk) if watcher else ()
            yield report(Step(chunk, metrics, rejected))
            if chunk.completion is not None:
                reason = chunk.completion.finish_reason
                counts = chunk.completion.stats.sources or {}
                sources = {name: sum(own.accepted) for name, own in counts.items()}
            elif stopped():
                break
    finally:
        stream.close()  # cancels the request, so that its room is free
    return Decoded(tuple(output), tuple(pieces), reason, metrics, sources)


def _rejected(recorders: Sequence[DraftRecorder], chunk: Chunk) -> tuple[int, ...]:
    """What the best branch of the chunk's step held behind the accepted tokens."""
    forwards = recorders[-1].forwards if recorders else []
    if not forwards or not chunk.token_ids:
        return ()
    return rejected_tail(forwards[-1].draft, chunk.token_ids[: chunk.accepted])


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
    return settings


def _ratio(new: float, base: float) -> str:
    return f"{new / base:.2f}x" if base else "an unknown number of times"
