"""What `trtla tune` is asked for: settings, triples to try, and the samples that it decodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtla.bench.arms import Note
from trtla.bench.opened import OpenedModel, Setup
from trtla.data.prompt_sets import Ids, PromptSet
from trtla.errors import UsageError, did_you_mean
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams

_AXES = ((1, 2, 3, 4, 5, 7, 10, 15), (2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 5, 7, 10, 15))
"""Window, n-gram and verification set sizes that the search moves along."""
_SHAPES = ((1, 1), (1, 3), (1, 7), (3, 3), (7, 7), (15, 15))
"""Window and verification set sizes that are tried first, each with every n-gram size of these."""
_NGRAMS = (2, 3, 5, 7)
_MOST_DRAFT_LEN = 127
"""Draft tokens of the largest triple where nothing else limits it: a step of 128 tokens."""

FREE = LookaheadConfig(*(values[-1] for values in _AXES))
"""The limit of a model that no engine limits."""


@dataclass(frozen=True, slots=True)
class GpuPeaks:
    """A GPU's published peaks, without sparsity."""

    name: str
    terabytes_per_s: float
    """Memory bandwidth."""
    teraflops: float
    """Dense float16 and bfloat16 products with float32 sums."""
    fp8_teraflops: float | None
    """Dense; None: it has no FP8 products."""
    source: str


GPUS = {
    gpu.name: gpu
    for gpu in (
        GpuPeaks("h200", 4.8, 989.0, 1979.0, "NVIDIA H200 data sheet, SXM"),
        GpuPeaks("h100", 3.35, 989.0, 1979.0, "NVIDIA H100 data sheet, SXM"),
        GpuPeaks("h100-pcie", 2.0, 756.0, 1513.0, "NVIDIA H100 data sheet, PCIe"),
        GpuPeaks("a100", 2.039, 312.0, None, "NVIDIA A100 data sheet, SXM 80GB"),
        GpuPeaks("a100-40gb", 1.555, 312.0, None, "NVIDIA A100 data sheet, 40GB"),
        GpuPeaks("l40s", 0.864, 362.05, 733.0, "NVIDIA L40S data sheet"),
        GpuPeaks("l4", 0.3, 121.0, 242.5, "NVIDIA L4 data sheet"),
        GpuPeaks("a10", 0.6, 125.0, None, "NVIDIA A10 data sheet"),
        GpuPeaks("rtx4090", 1.008, 165.2, 330.3, "NVIDIA Ada GPU architecture white paper"),
    )
}
"""By the name that --gpu takes."""


def find_gpu(name: str) -> GpuPeaks:
    """A GPU of the table."""
    found = GPUS.get(name.lower())
    if found is None:
        hint = f"{did_you_mean(name.lower(), GPUS)}use {', '.join(GPUS)}"
        raise UsageError(f"--gpu {name} is not known", hint)
    return found


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
    gpu: GpuPeaks | None = None
    """The GPU to plan for; None: the one that is here."""


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
        """How measurements call it."""
        return f"{self.category}/{self.number}"


Groups = Mapping[str, Sequence[Sample]]
"""Samples by category."""


def make_samples(
    sets: Sequence[PromptSet], model: OpenedModel, sampling: SamplingParams, on_note: Note
) -> list[Sample]:
    """The prompts of every turn as ids; prompt i of a set has seed + i."""
    return [
        Sample(one.category, number, ids, replace(sampling, seed=sampling.seed + number))
        for one in sets
        for number, ids in enumerate(
            model.prompts(one.questions, sampling, on_note, f" of {one.category}")
        )
    ]


def by_category(samples: Sequence[Sample]) -> Groups:
    """The samples by category, in their order."""
    names = dict.fromkeys(sample.category for sample in samples)
    return {name: [one for one in samples if one.category == name] for name in names}
