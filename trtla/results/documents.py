"""The fields that the page takes from each kind of document; other fields pass unseen.

bench, bench --ablation, tune, summarize and run write them; nothing here opens a file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FiniteFloat

Triple = tuple[int, int, int]


def _one_text(value: Any) -> Any:
    """A command line in pieces is shown as one."""
    return " ".join(map(str, value)) if isinstance(value, list) else value


Command = Annotated[str | None, BeforeValidator(_one_text)]
Figure = FiniteFloat | None


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class BenchRow(_Part):
    """An arm in a cell of `trtla bench`."""

    device: str
    dtype: str
    threads: int | None = None
    batch_size: int
    prompt_len: int | None = None
    temperature: FiniteFloat
    top_k: int | None = None
    top_p: Figure = None
    category: str
    arm: str
    setting: str | None = None
    rounds: int | None = None
    tokens_per_s: Figure = None
    tokens_per_step: Figure = None
    speedup_vs_ar: Figure = None
    speedup_vs_ar_min: Figure = None
    speedup_vs_ar_max: Figure = None
    peak_memory_mb: Figure = None
    distinct_4grams: Figure = None
    texts: int | None = None
    equal_texts: int | None = None
    first_divergence: int | None = None


class BenchSettings(_Part):
    """What all cells share."""

    model: str | None = None
    rounds: int | None = None
    max_output_len: int | None = None
    ignore_eos: bool | None = None


class Bench(_Part):
    """`trtla bench -o json` or `-o csv`."""

    environment: dict[str, Any] = {}
    settings: BenchSettings = BenchSettings()
    rows: tuple[BenchRow, ...]


class AblationRow(_Part):
    """A mean over the decodings of a setting, of one task or of all."""

    method: str
    gamma: str | None = None
    gamma_min: str | None = None
    gamma_max: str | None = None
    ema_beta: str | None = None
    ngram_kind: str | None = None
    ngram_n: str | None = None
    top_k_filler: str | None = None
    window: str | None = None
    ngram: str | None = None
    guesses: str | None = None
    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    processor: str | None = None
    temperature: FiniteFloat | None = None
    top_k: str | None = None
    top_p: str | None = None
    task: str | None = None
    rows: FiniteFloat = 1.0
    tokens_per_s_mean: Figure = None
    tokens_per_step_mean: Figure = None
    speedup_vs_ar_mean: Figure = None
    speedup_vs_ar_std: Figure = None
    peak_mem_mib_mean: Figure = None
    distinct_4grams_mean: Figure = None
    same_as_ar_mean: Figure = None


class Ablation(_Part):
    """`trtla bench --ablation`: the JSON document, or one of its two CSV files."""

    command: Command = None
    environment: dict[str, Any] = {}
    means: tuple[AblationRow, ...]


class CostRow(_Part):
    """Seconds of a forward by fed tokens."""

    sequences: int
    points: tuple[tuple[int, FiniteFloat], ...]


class Cost(_Part):
    """The cost curve of an engine."""

    source: str
    """measured or roofline."""
    note: str | None = None
    rows: tuple[CostRow, ...]
    knee: int | None = None
    """The most fed tokens whose forward takes at most 1.25 times that of one token."""


class GridPoint(_Part):
    """A triple whose acceptance is known, for one category and batch size."""

    lookahead: Triple
    category: str
    batch_size: int
    tokens_per_step: Figure = None
    fed_per_step: Figure = None
    acceptance: str | None = None
    """Where steps and fed tokens come from: measured, by requests on the model."""
    predicted_speedup: FiniteFloat


class Verified(_Part):
    """A measured speed-up beside its prediction, of a triple or of another drafter."""

    lookahead: Triple | None = None
    drafter: str | None = None
    category: str
    batch_size: int
    predicted_speedup: Figure = None
    measured_speedup: Figure = None
    error_percent: Figure = None


class Choice(_Part):
    """The best triple of a batch size, or of a category."""

    lookahead: Triple
    batch_size: int | None = None
    category: str | None = None
    predicted_speedup: Figure = None
    measured_speedup: Figure = None


class Recommendation(Choice):
    """What tune would run."""

    by_batch_size: tuple[Choice, ...] = ()
    by_category: tuple[Choice, ...] = ()


class Tune(_Part):
    """`trtla tune --json`: what the command writes, and what a report reads of it."""

    schema_version: int | None = None
    command: str | None = None
    argv: Command = None
    environment: dict[str, Any] = {}
    engine: str | None = None
    executor: str | None = None
    cost: Cost
    grid: tuple[GridPoint, ...] = ()
    verified: tuple[Verified, ...] = ()
    alternatives: tuple[Verified, ...] = ()
    """Other drafters that were run beside them."""
    recommendation: Recommendation
    finished: bool | None = None
    """False: the budget was over before the search was."""
    time_s: Figure = None


class Side(_Part):
    """One way of decoding in `trtla summarize`."""

    name: str
    latency_s: FiniteFloat
    tokens_per_s: FiniteFloat
    tokens_per_step: Figure = None
    distinct_4grams: Figure = None
    rouge1: Figure = None
    rouge2: Figure = None
    rougeL: Figure = None  # noqa: N815  # rouge-score's names
    rougeLsum: Figure = None  # noqa: N815


class Summarize(_Part):
    """`trtla summarize --json`."""

    command: Command = None
    environment: dict[str, Any] = {}
    dataset: str | None = None
    items: int | None = None
    batch_size: int | None = None
    output_len: int | None = None
    temperature: Figure = None
    sides: tuple[Side, ...]


class RunTotals(_Part):
    """Figures over all prompts of a run."""

    tokens_per_s: FiniteFloat
    tokens_per_step: Figure = None
    distinct_4grams: Figure = None


class Divergence(_Part):
    """Where a text first differs from plain decoding's."""

    position: int
    margin: Figure = None


class RunResult(_Part):
    """A prompt's text; `lossless` is None where it was not compared."""

    drafter: str | None = None
    lookahead: Triple | None = None
    lossless: bool | None = None
    divergence: Divergence | None = None


class Run(_Part):
    """`trtla run --json`, with `--check-lossless` or without."""

    command: Command = None
    environment: dict[str, Any] = {}
    executor: str | None = None
    results: tuple[RunResult, ...]
    stats: RunTotals
    plain_stats: RunTotals | None = None


Document = Bench | Ablation | Tune | Summarize | Run
Kind = Literal["bench", "ablation", "tune", "summarize", "run"]
