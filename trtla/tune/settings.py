"""What `trtla tune` is asked for, and what comes out of it: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trtla.data.prompt_sets import PromptSet
from trtla.runtime.costs import CostTable
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams
from trtla.tune.prediction import Row
from trtla.tune.recommendation import Recommendation
from trtla.tune.roofline import Gpu
from trtla.tune.verification import Verified


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """One tuning."""

    model: str
    """What is decoded: an engine of the torch executor, or a Hugging Face folder."""
    engine: str
    """What the answer is for; the model itself, or an engine of TensorRT-LLM."""
    limit: LookaheadConfig
    """The largest triple that the answer may be, component by component."""
    server: LookaheadConfig | None
    """The triple to open the model with; None is the engine's own."""
    sets: tuple[PromptSet, ...]
    sampling: SamplingParams
    batch_sizes: tuple[int, ...]
    budget_s: float
    rounds: int
    output_dir: Path
    tokenizer_dir: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    planned: bool = False
    """Whether the answer is for an engine of TensorRT-LLM that is still to be built."""
    gpu: Gpu | None = None
    """The GPU to plan for; None: the one that is here."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What forwards cost."""

    source: str
    """measured or roofline."""
    note: str
    table: CostTable
    knee: int


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome."""

    executor: str
    cost: Cost
    rows: tuple[Row, ...]
    verified: tuple[Verified, ...]
    recommendation: Recommendation
    time_s: float
    finished: bool
    """False: the budget was over before the best triples were all known."""
    notes: tuple[str, ...] = field(default=())
