"""The settings of a tuning, its samples, and the triples whose speed is predicted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import NamedTuple

from trtla.data.prompt_sets import Ids, PromptSet
from trtla.extras.bench.opened import OpenedModel, Setup
from trtla.measuring.arms import Note
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams

_SHAPES = ((1, 1), (1, 3), (1, 7), (3, 3), (7, 7), (15, 15))
"""Window and verification set sizes, each with all of `_NGRAMS`."""
_NGRAMS = (2, 3, 5, 7)
_MOST_DRAFT_LEN = 127
"""Draft tokens of the largest triple, which make a step of 128 tokens."""
FREE = LookaheadConfig(15, 7, 15)
"""The limit of models without an engine's limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings(Setup):
    """Settings of a tuning; it has one batch size."""

    limit: LookaheadConfig
    """The limit of recommended triples, component by component."""
    sets: tuple[PromptSet, ...]
    budget_s: float
    gpu: str | None = None
    """The GPU to plan for, by its name in `prediction.GPUS`; None: this machine."""


class Sample(NamedTuple):
    """A prompt and how it is sampled; every triple gives it the same text."""

    prompt: Ids
    sampling: SamplingParams


def make_samples(settings: TuneSettings, model: OpenedModel, on_note: Note) -> list[Sample]:
    """Encode the prompts, one of each category in turn; prompt i has seed + i."""
    sampling = settings.sampling
    groups = [
        model.prompts(chosen.questions, sampling, on_note, f" of {chosen.category}")
        for chosen in settings.sets
    ]
    prompts = [ids for tier in zip_longest(*groups) for ids in tier if ids is not None]
    return [Sample(x, replace(sampling, seed=sampling.seed + i)) for i, x in enumerate(prompts)]


class Steps(NamedTuple):
    """Counts of a request's decoding after its prompt."""

    tokens: int
    steps: int
    fed: int


def triples_within(limit: LookaheadConfig) -> list[LookaheadConfig]:
    """List at most 23 triples within a limit, those that feed the fewest tokens first.

    The limit's own sizes are among them. The list is empty if the limit leaves no candidates to
    verify (G 0).
    """
    w, n, g = limit.as_tuple()
    sizes = [(min(a, w), min(ngram, n), min(b, g)) for a, b in _SHAPES for ngram in _NGRAMS]
    triples = [LookaheadConfig(*each) for each in dict.fromkeys(sizes) if each[1] > 1 and each[2]]
    fitting = (triple for triple in triples if triple.max_draft_len <= _MOST_DRAFT_LEN)
    return sorted(fitting, key=lambda triple: triple.max_draft_len)
