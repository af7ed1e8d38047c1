"""Recording the steps of a real run: drafts, lookahead's window and pool, and the outcome.

With `auto` the draft itself names each node's source; its window is recorded if it was fed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtla.runtime.draft import Draft, Drafter, RecordedForward
from trtla.runtime.drafters.lookahead import LookaheadDrafter, LookaheadWindow
from trtla.runtime.drafters.tree import TreeDrafter
from trtla.runtime.request import DraftRecorder, RecorderWatch

if TYPE_CHECKING:
    from trtla.llm.answer import Completion
    from trtla.llm.llm import LLM, Prompt
    from trtla.runtime.request import Request
    from trtla.settings.drafting import DrafterSettings
    from trtla.settings.lookahead import Lookahead
    from trtla.settings.sampling import SamplingParams

Ngram = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WindowCells:
    """The lookahead window at one moment."""

    levels: tuple[Ngram, ...]
    """Oldest first, W cells each; in a full window level 0, column 0 is the input token."""
    fillers: Ngram
    """Tokens between the input and column 0 while the window fills."""
    full: bool
    tokens: Ngram
    """In the order of feeding: fillers, level 0, level 1, ..."""
    parents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordedStep(RecordedForward):
    """One forward of the target; with a window `observed` is its new level."""

    number: int
    """The number of the step; 0 is the prefill."""
    before: int
    """Output tokens before it."""
    window: WindowCells | None = None
    """The fed window, if any."""
    window_after: WindowCells | None = None
    candidates: tuple[Ngram, ...] = ()
    """The pool's continuations of the input token, oldest first."""
    harvest: tuple[Ngram, ...] = ()
    """The n-grams of the window's columns, key first."""
    pool_size: int = 0
    """N-grams in the pool after the step."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run's steps, the prefill first, and its answer."""

    steps: tuple[RecordedStep, ...]
    completion: Completion
    start: int
    """The position of the first output token."""

    @property
    def is_tree(self) -> bool:
        """True if the candidate tree drafted, as with `auto`."""
        return self.completion.stats.sources is not None

    def text_before(self, step: RecordedStep) -> tuple[int, ...]:
        """Return prompt and output up to the step's input token, which is the last one."""
        return (*self.completion.input_ids, *self.completion.output_ids[: step.before])

    def position(self, step: RecordedStep) -> int:
        return self.start + step.before - 1


class StepRecorder(DraftRecorder):
    """Records the contents of lookahead's window and pool in each step as well."""

    def __init__(self, drafter: Drafter, request: Request) -> None:
        super().__init__(drafter, request)
        self.steps: list[RecordedStep] = []
        fixed = drafter.fixed if isinstance(drafter, TreeDrafter) else drafter
        self._lookahead = fixed if isinstance(fixed, LookaheadDrafter) else None
        self._window: LookaheadWindow | None = None
        self._candidates: tuple[Ngram, ...] = ()
        self._committed: list[int] = []

    def proposed(self, draft: Draft) -> None:
        """Record the parts that the draft was made of as well."""
        super().proposed(draft)
        tree = self.drafter
        if self._lookahead is not None:
            self._window = copy.deepcopy(self._lookahead.window)
            self._candidates = tuple(self._lookahead.pool.lookup(self._committed[-1]))
        elif isinstance(tree, TreeDrafter) and draft.first_candidate > 1:
            self._window = copy.deepcopy(tree.window)

    def observed(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        super().observed(greedy, committed)
        self.steps.append(self._step(self.forwards[-1]))
        self._committed += committed
        self._window, self._candidates = None, ()

    def _step(self, forward: RecordedForward) -> RecordedStep:
        lookahead, window, harvest = self._lookahead, self._window, list[Ngram]()
        if window is not None and forward.observed:
            harvest = copy.deepcopy(window).advance(self._committed[-1], forward.observed)
        after = None if lookahead is None else _cells(lookahead.window, forward.committed[-1])
        return RecordedStep(
            forward.draft,
            forward.observed,
            forward.committed,
            number=len(self.steps),
            before=len(self._committed),
            window=None if window is None else _cells(window, self._committed[-1]),
            window_after=after,
            candidates=self._candidates,
            harvest=tuple(harvest),
            pool_size=0 if lookahead is None else len(lookahead.pool),
        )


def _cells(window: LookaheadWindow, input_token: int) -> WindowCells:
    first, *others = window.levels
    if window.full:
        first = (input_token, *first[1:])
    levels, fed = (first, *others), (window.tokens(), window.parents())
    return WindowCells(levels, window.fillers, window.full, *fed)


def record_run(
    llm: LLM,
    prompt: Prompt,
    sampling: SamplingParams | None = None,
    lookahead: Lookahead | None = None,
    drafter: DrafterSettings | None = None,
) -> RecordedRun:
    """Answer one prompt and record every step, on torch engines; arguments as for `LLM.generate`,
    with the largest triple by default."""
    watch = RecorderWatch(StepRecorder)
    triple = lookahead or llm.limits.lookahead
    chunks = llm.stream(prompt, sampling, triple, drafter=drafter, watch=watch)
    (completion,) = [chunk.completion for chunk in chunks if chunk.completion is not None]
    recorder = watch.recorders[0]
    return RecordedRun(tuple(recorder.steps), completion, len(recorder.request.input_ids))
