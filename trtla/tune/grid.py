"""What tune decodes: its settings, samples, and the triples of its grid."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trtla.bench.arms import Note
from trtla.bench.opened import OpenedModel, Setup
from trtla.data.prompt_sets import Ids, PromptSet
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    pass

_AXES = ((1, 2, 3, 4, 5, 7, 10, 15), (2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 5, 7, 10, 15))
"""Window, n-gram and verification set sizes that the search moves along."""
_SHAPES = ((1, 1), (1, 3), (1, 7), (3, 3), (7, 7), (15, 15))
"""Window and verification set sizes that are tried first, each with every n-gram size of these."""
_NGRAMS = (2, 3, 5, 7)
_MOST_DRAFT_LEN = 127
"""Draft tokens of the largest triple where nothing else limits it: a step of 128 tokens."""

FREE = LookaheadConfig(*(values[-1] for values in _AXES))
"""The limit of a model that no engine limits."""


One = TypeVar("One", bound=Hashable)
Place = TypeVar("Place", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings(Setup):
    """One tuning."""

    engine: str
    """What the answer is for; the model itself, or an engine of TensorRT-LLM."""
    limit: LookaheadConfig
    """The largest triple that the answer may be, component by component."""
    sets: tuple[PromptSet, ...]
    budget_s: float
    rounds: int
    output_dir: Path
    planned: bool = False
    """Whether the answer is for an engine of TensorRT-LLM that is still to be built."""
    gpu: str | None = None
    """The GPU to plan for, by its name in `prediction.GPUS`; None: the one that is here."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt; its text is the same for every triple."""

    category: str
    number: int
    """Its place in the category, from 0."""
    prompt: Ids
    sampling: SamplingParams

    @property
    def name(self) -> str:
        return f"{self.category}/{self.number}"


Groups = Mapping[str, Sequence[Sample]]
"""Samples by category."""


def make_groups(
    sets: Sequence[PromptSet], model: OpenedModel, sampling: SamplingParams, on_note: Note
) -> Groups:
    """The prompts of every turn as ids; prompt i of a set has seed + i."""
    groups = {}
    for one in sets:
        name = one.category
        prompts = model.prompts(one.questions, sampling, on_note, f" of {name}")
        groups[name] = [
            Sample(name, number, ids, replace(sampling, seed=sampling.seed + number))
            for number, ids in enumerate(prompts)
        ]
    return groups


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a request behind its prompt."""

    tokens: int
    steps: int
    fed: int


Found = Mapping[LookaheadConfig, Mapping[Sample, Steps]]
"""Finished requests by triple and sample."""


def as_work(samples: Sequence[Sample]) -> tuple[list[Ids], list[SamplingParams]]:
    """Samples as the work of a turn."""
    return [one.prompt for one in samples], [one.sampling for one in samples]


def coarse(limit: LookaheadConfig) -> list[LookaheadConfig]:
    """About 24 triples within a limit, those that feed the fewest tokens first.

    The limit's own sizes are among them. Empty where the limit leaves nothing to verify: triples
    without candidates (G 0) accept nothing.
    """
    w, n, g = limit.as_tuple()
    found = _usable(
        (min(window, w), min(ngram, n), min(guesses, g))
        for window, guesses in _SHAPES
        for ngram in _NGRAMS
    )
    return sorted(found, key=lambda triple: triple.max_draft_len)


def near(triple: LookaheadConfig, limit: LookaheadConfig) -> list[LookaheadConfig]:
    """The triples within a limit that differ from this one by a step of one of its sizes."""
    sizes = triple.as_tuple()
    found = []
    for axis, most in enumerate(limit.as_tuple()):
        values = sorted({most, *(value for value in _AXES[axis] if value <= most)})
        place = values.index(sizes[axis])
        found += [
            (*sizes[:axis], value, *sizes[axis + 1 :])
            for value in values[max(0, place - 1) : place + 2]
            if value != sizes[axis]
        ]
    return _usable(found)


def _usable(found: Iterable[tuple[int, ...]]) -> list[LookaheadConfig]:
    """Each once, where it drafts, verifies and fits into a step."""
    drafting = [sizes for sizes in dict.fromkeys(found) if sizes[1] > 1 and sizes[2] > 0]
    triples = [LookaheadConfig(*sizes) for sizes in drafting]
    return [triple for triple in triples if triple.max_draft_len <= _MOST_DRAFT_LEN]


def nearness(speeds: Mapping[tuple[One, Place], float]) -> dict[One, float]:
    """How near each comes to the fastest of a place, where it comes nearest: at most 1."""
    fastest: dict[Place, float] = {}
    for (_, place), speed in speeds.items():
        fastest[place] = max(speed, fastest.get(place, 0.0))
    found: dict[One, float] = {}
    for (one, place), speed in speeds.items():
        found[one] = max(speed / fastest[place], found.get(one, 0.0))
    return found
