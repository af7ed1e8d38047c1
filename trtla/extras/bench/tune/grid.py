"""The settings of a tuning, its samples, and the triples of its grid."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from trtla.data.prompt_sets import Ids, PromptSet
from trtla.extras.bench.opened import OpenedModel, Setup
from trtla.measuring.arms import Note
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams

_AXES = ((1, 2, 3, 4, 5, 7, 10, 15), (2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 5, 7, 10, 15))
"""Window, n-gram and verification set sizes that the search moves along."""
_SHAPES = ((1, 1), (1, 3), (1, 7), (3, 3), (7, 7), (15, 15))
"""Window and verification set sizes that are tried first, each with all of `_NGRAMS`."""
_NGRAMS = (2, 3, 5, 7)
_MOST_DRAFT_LEN = 127
"""Draft tokens of the largest triple, which make a step of 128 tokens."""

FREE = LookaheadConfig(*(values[-1] for values in _AXES))
"""The limit of models without an engine's limit."""


Contender = TypeVar("Contender", bound=Hashable)
Category = TypeVar("Category", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings(Setup):
    """Settings of a tuning."""

    engine: str
    """The engine that is tuned: the model itself, or an engine of TensorRT-LLM."""
    limit: LookaheadConfig
    """The limit of recommended triples, component by component."""
    sets: tuple[PromptSet, ...]
    budget_s: float
    rounds: int
    output_dir: Path
    planned: bool = False
    """True: the recommendation is for an engine of TensorRT-LLM that is still to be built."""
    gpu: str | None = None
    """The GPU to plan for, by its name in `prediction.GPUS`; None: this machine."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt and how it is sampled; every triple gives it the same text."""

    category: str
    number: int
    """Position in the category, from 0."""
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
    """Encode the prompts of every set by category; prompt i of a set has seed + i."""
    groups = {}
    for prompt_set in sets:
        name = prompt_set.category
        prompts = model.prompts(prompt_set.questions, sampling, on_note, f" of {name}")
        groups[name] = [
            Sample(name, number, ids, replace(sampling, seed=sampling.seed + number))
            for number, ids in enumerate(prompts)
        ]
    return groups


@dataclass(frozen=True, slots=True)
class Steps:
    """Counts of a request's decoding after its prompt."""

    tokens: int
    steps: int
    fed: int


Finished = Mapping[LookaheadConfig, Mapping[Sample, Steps]]
"""Finished requests by triple and sample."""


def as_work(samples: Sequence[Sample]) -> tuple[list[Ids], list[SamplingParams]]:
    """Return samples as the work of a turn."""
    return [sample.prompt for sample in samples], [sample.sampling for sample in samples]


def coarse(limit: LookaheadConfig) -> list[LookaheadConfig]:
    """List about 24 triples within a limit, those that feed the fewest tokens first.

    The limit's own sizes are among them. The list is empty if the limit leaves no candidates to
    verify (G 0).
    """
    w, n, g = limit.as_tuple()
    triples = _usable(
        (min(window, w), min(ngram, n), min(guesses, g))
        for window, guesses in _SHAPES
        for ngram in _NGRAMS
    )
    return sorted(triples, key=lambda triple: triple.max_draft_len)


def near(triple: LookaheadConfig, limit: LookaheadConfig) -> list[LookaheadConfig]:
    """List the triples within a limit that differ from this one by a step of one size."""
    sizes = triple.as_tuple()
    neighbours = []
    for axis, most in enumerate(limit.as_tuple()):
        values = sorted({most, *(value for value in _AXES[axis] if value <= most)})
        index = values.index(sizes[axis])
        neighbours += [
            (*sizes[:axis], value, *sizes[axis + 1 :])
            for value in values[max(0, index - 1) : index + 2]
            if value != sizes[axis]
        ]
    return _usable(neighbours)


def _usable(choices: Iterable[tuple[int, ...]]) -> list[LookaheadConfig]:
    """Return distinct triples that draft, verify and fit into a step."""
    drafting = [sizes for sizes in dict.fromkeys(choices) if sizes[1] > 1 and sizes[2] > 0]
    triples = [LookaheadConfig(*sizes) for sizes in drafting]
    return [triple for triple in triples if triple.max_draft_len <= _MOST_DRAFT_LEN]


def nearness(speeds: Mapping[tuple[Contender, Category], float]) -> dict[Contender, float]:
    """Return each contender's largest ratio of any category to the fastest there, at most 1."""
    fastest: dict[Category, float] = {}
    for (_, category), speed in speeds.items():
        fastest[category] = max(speed, fastest.get(category, 0.0))
    ratios: dict[Contender, float] = {}
    for (contender, category), speed in speeds.items():
        ratios[contender] = max(speed / fastest[category], ratios.get(contender, 0.0))
    return ratios
