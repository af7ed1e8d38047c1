"""What tune decodes: its settings, triples and samples, and the search among the triples.

How many steps a request takes and how many tokens those feed depends on the text alone, not on
batch or speed: triples share in-flight batches, and a clock is only read to stop in time. The grid
is halved as it goes: all of it on one sample of each category, the better half on more samples, and
with it what lies near the best.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trtla.bench.arms import Note
from trtla.bench.journal import Measurements
from trtla.bench.opened import OpenedModel, Setup
from trtla.console import Stages, counted, silent
from trtla.data.prompt_sets import Ids, PromptSet
from trtla.results.metrics import Metrics
from trtla.results.tune_documents import GridPoint
from trtla.settings.drafting import LOOKAHEAD
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams
from trtla.tune import clock

if TYPE_CHECKING:
    from trtla.llm.llm import LLM

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


_COARSE_SHARE = 0.5
"""The share of the search's time for the coarse grid."""
_IN_FLIGHT = 12
"""Requests at a time. What is in flight when the time is over is lost, so it is not more."""
_LEADERS = 2
"""Triples whose neighbours are tried."""

Job = tuple[LookaheadConfig, Sample]
"""A triple, and the sample that is decoded with it."""


class Search:
    """Finished requests of triples, and which ones to run next; those in the journal are done."""

    def __init__(
        self,
        llm: LLM,
        groups: Groups,
        limit: LookaheadConfig,
        journal: Measurements,
        note: Note,
        stages: Stages = silent,
        takes: Callable[[Sequence[Job]], float] = lambda jobs: 0.0,
    ) -> None:
        """`takes` says how many seconds jobs take at most which are decoded together."""
        self._takes = takes
        self._llm, self._groups, self._limit, self._journal = llm, groups, limit, journal
        self._note, self._stages = note, stages
        self.found: dict[LookaheadConfig, dict[Sample, Steps]] = {}
        by_name = {sample.name: sample for own in groups.values() for sample in own}
        for name, value in journal.entries.items():
            kind, _, job = name.partition(" ")
            triple, _, sample = job.partition(" ")
            if kind == "run" and sample in by_name:
                self._take((LookaheadConfig.parse(triple), by_name[sample]), Steps(*value))

    def go(self, predict: Callable[[], list[GridPoint]], deadline: float) -> bool:
        """Search; False: the time was over before.

        Args:
            predict: rows of all that has been found so far.
            deadline: on the clock of `tune.clock`; the smallest triple runs on a sample of each
                category in any case, for otherwise nothing can be said.
        """
        most = max(map(len, self._groups.values()))
        pool, finished = coarse(self._limit), True
        firsts = {own[0] for own in self._groups.values()}
        if not any(firsts <= ran.keys() for ran in self.found.values()):
            self._run(pool[:1], 1, float("inf"))
        begin = clock.now()
        until = begin + _COARSE_SHARE * (deadline - begin)
        for count in (1, (most + 1) // 2, most):
            finished &= self._run(pool, count, until)
            leaders = _ranked(predict(), pool)[: max(_LEADERS, len(pool) // 2)]
            neighbours = [one for leader in leaders[:_LEADERS] for one in near(leader, self._limit)]
            pool = [*leaders, *(one for one in dict.fromkeys(neighbours) if one not in self.found)]
            until = deadline
        return finished

    def _run(self, triples: Sequence[LookaheadConfig], most: int, deadline: float) -> bool:
        """Run triples on the first samples of each category; what takes too long is given up."""
        firsts = [sample for own in self._groups.values() for sample in own[:most]]
        jobs = [(triple, sample) for triple in triples for sample in firsts]
        jobs = [job for job in jobs if not self._knows(job)]
        tried = len(dict.fromkeys(triple for triple, _ in jobs))
        if jobs and clock.now() < deadline:
            self._note(f"to run on {counted(len(firsts), 'prompt')}: {counted(tried, 'triple')}")
        with self._stages("search", "requests") as progress:
            left = jobs
            while batch := self._fitting(left, deadline):
                left = left[len(batch) :]
                self._decode(
                    batch, deadline, lambda: progress(sum(map(self._knows, jobs)), len(jobs))
                )
        return all(map(self._knows, jobs))

    def _fitting(self, jobs: Sequence[Job], deadline: float) -> Sequence[Job]:
        """The next jobs that are decoded together, as many as there is time for."""
        batch, left = jobs[:_IN_FLIGHT], deadline - clock.now()
        while batch and (left <= 0.0 or self._takes(batch) > left):
            batch = batch[: len(batch) // 2]
        return batch

    def _decode(self, jobs: Sequence[Job], deadline: float, on_end: Callable[[], None]) -> None:
        chunks = self._llm.stream(
            [sample.prompt for _, sample in jobs],
            [sample.sampling for _, sample in jobs],
            [triple for triple, _ in jobs],
            drafter=LOOKAHEAD,
        )
        for chunk in chunks:
            if chunk.completion is not None:
                took, (triple, sample) = Metrics.of([chunk.completion], 0.0), jobs[chunk.index]
                steps = Steps(took.output_tokens - 1, took.steps, took.fed or 0)
                self._journal.put(f"run {triple} {sample.name}", astuple(steps))
                self._take((triple, sample), steps)
                on_end()
            if clock.now() > deadline:
                return

    def _knows(self, job: Job) -> bool:
        return job[1] in self.found.get(job[0], {})

    def _take(self, job: Job, steps: Steps) -> None:
        self.found.setdefault(job[0], {})[job[1]] = steps


def _ranked(rows: Sequence[GridPoint], triples: Sequence[LookaheadConfig]) -> list[LookaheadConfig]:
    """Those that are known, by how near they come to the best of any category and batch size."""
    score = nearness(
        {
            (LookaheadConfig(*row.lookahead), (row.category, row.batch_size)): row.predicted_speedup
            for row in rows
        }
    )
    return sorted((one for one in triples if one in score), key=score.__getitem__, reverse=True)
