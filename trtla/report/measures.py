"""Every document's figures as records of one form: an arm, what it ran on, what came out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from trtla.console import counted
from trtla.report.reading import Source
from trtla.results.bench_documents import Ablation, AblationRow, Bench, BenchRow
from trtla.results.documents import Tune, Verified
from trtla.settings.sampling import filters_text

GREEDY = "greedy"
EVERY_CATEGORY = "all"
"""What tune calls all categories together."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a figure was measured under; arms are compared under equal ones only."""

    model: str
    device: str
    dtype: str
    batch_size: int
    sampling: str
    threads: int | None = None
    prompt_len: int | None = None

    def __str__(self) -> str:
        """In words, for captions."""
        threads = f", {counted(self.threads, 'thread')}" if self.threads else ""
        length = f", prompts of {self.prompt_len} tokens" if self.prompt_len else ""
        place = ", ".join(part for part in (self.device, self.dtype) if part)
        return f"{self.model}, {place}{threads}, batch {self.batch_size}, {self.sampling}{length}"


@dataclass(frozen=True, slots=True)
class Measure:
    """An arm under conditions, on one task or on all together (task None)."""

    source: int
    conditions: Conditions
    arm: str
    setting: str | None
    task: str | None
    speedup: float | None
    tokens_per_s: float | None
    tokens_per_step: float | None
    low: float | None = None
    """Of the speed-up, over rounds; `high` likewise."""
    high: float | None = None
    peak_mb: float | None = None
    distinct_4grams: float | None = None
    texts: int | None = None
    equal_texts: int | None = None
    first_divergence: int | None = None

    @property
    def name(self) -> str:
        return f"{self.arm} ({self.setting})" if self.setting else self.arm

    @property
    def method(self) -> Method:
        return method(self.arm)

    @property
    def plain(self) -> bool:
        return self.method is _PLAIN


def measures(source: Source) -> list[Measure]:
    """The figures of a document that compare arms; summarize and run have tables of their own."""
    match source.document:
        case Bench() as bench:
            model = Path(bench.settings.model or "model not recorded").name
            return [_of_bench(source.number, model, row) for row in bench.rows]
        case Ablation() as ablation:
            return list(_of_ablation(source.number, ablation))
        case Tune() as tune:
            ran = (*tune.verified, *tune.alternatives)
            return [_of_tune(source.number, tune, one) for one in ran]
        case _:
            return []


def _of_bench(number: int, model: str, row: BenchRow) -> Measure:
    filters = filters_text(row.temperature, row.top_k, row.top_p)
    sampling = GREEDY if row.temperature == 0 else filters
    place = (row.executor, "") if row.executor else (row.device, row.dtype)
    return Measure(
        number,
        Conditions(model, *place, row.batch_size, sampling, row.threads, row.prompt_len),
        short(row.arm),
        row.setting,
        row.category,
        row.speedup_vs_ar,
        row.tokens_per_s,
        row.tokens_per_step,
        row.speedup_vs_ar_min,
        row.speedup_vs_ar_max,
        row.peak_memory_mb,
        row.distinct_4grams,
        row.texts if row.equal_texts is not None else None,
        row.equal_texts,
        row.first_divergence,
    )


def short(arm: str) -> str:
    """An arm's name without the way to its draft model's folder."""
    parts = (part.partition(":") for part in arm.split(","))
    return ",".join(
        f"{kind}:{Path(path).name}" if kind == "draft" and path else kind + colon + path
        for kind, colon, path in parts
    )


def _of_ablation(number: int, ablation: Ablation) -> Iterator[Measure]:
    for row in ablation.means:
        mean, spread = row.figure("speedup_vs_ar_mean"), row.figure("speedup_vs_ar_std")
        low = high = None
        if mean is not None and spread is not None:
            low, high = mean - spread, mean + spread
        peak, same = row.figure("peak_mem_mib_mean"), row.figure("same_as_ar_mean")
        yield Measure(
            number,
            _ablation_conditions(row),
            *_ablation_arm(row),
            row.task or None,
            mean,
            row.figure("tokens_per_s_mean"),
            row.figure("tokens_per_step_mean"),
            low,
            high,
            None if peak is None else peak * 2**20 / 1e6,
            row.figure("distinct_4grams_mean"),
            None if same is None else row.rows,
            None if same is None else round(same * row.rows),
        )


def _ablation_arm(row: AblationRow) -> tuple[str, str | None]:
    triple = _triple(row)
    if row.method == "lookahead" and triple:
        return f"lookahead {triple}", None
    return row.method, _setting(row)


def _ablation_conditions(row: AblationRow) -> Conditions:
    filters = (("T", row.temperature), ("k", row.top_k), ("p", row.top_p))
    given = [f"{name} {value:g}" for name, value in filters if value is not None]
    sampling = GREEDY if row.processor == GREEDY else " ".join([row.processor or "", *given])
    model = row.model or "model not recorded"
    return Conditions(model, row.device or "", row.dtype or "", 1, sampling.strip() or "sampled")


def _setting(row: AblationRow) -> str | None:
    """What an arm is set to, in short."""
    parts = {
        ("nodes {0:g}" if row.method == "auto-nodes" else "gamma {0:g}"): (row.gamma,),
        "gamma {0:g} to {1:g}": (row.gamma_min, row.gamma_max),
        "EMA {0:g}": (row.ema_beta,),
        "{0} {1:g}": (row.ngram_kind, row.ngram_n),
        "filler {0:g}": (row.top_k_filler,),
        _triple(row): (),
    }
    shown = [text.format(*values) for text, values in parts.items() if text and all(values)]
    return ", ".join(shown) or None


def _triple(row: AblationRow) -> str:
    sizes = (row.window, row.ngram, row.guesses)
    return ",".join(f"{size:g}" for size in sizes if size is not None) if None not in sizes else ""


def _of_tune(number: int, tune: Tune, one: Verified) -> Measure:
    model = Path(tune.engine or "model not recorded").name
    place = Conditions(model, tune.executor or "", "", one.batch_size, "the prompts of tune")
    triple = ",".join(map(str, one.lookahead)) if one.lookahead else ""
    arm = f"lookahead {triple}" if triple else short(one.drafter or "drafter not recorded")
    step = next(
        (
            point.tokens_per_step
            for point in tune.grid
            if (point.lookahead, point.category, point.batch_size)
            == (one.lookahead, one.category, one.batch_size)
        ),
        None,
    )
    task = None if one.category == EVERY_CATEGORY else one.category
    return Measure(number, place, arm, None, task, one.measured_speedup, None, step)


@dataclass(frozen=True, slots=True)
class Method:
    """A way of decoding; the texts are cells of the comparison table."""

    names: tuple[str, ...]
    """What documents call it."""
    title: str
    training: str = "none"
    memory: str = "none"
    when: str = ""


_DRAFT = (
    "a draft model with the same vocabulary",
    "the draft model's weights and its own K/V cache",
)
_WINDOW = ("none", "an n-gram pool, and K/V rows for the window and candidates of a step")

_PLAIN = Method(
    ("ar", "none", "trtla_without_lookahead"),
    "plain decoding",
    when="Large batches, and wherever nothing is faster",
)
_LOOKAHEAD = Method(
    ("lookahead",),
    "lookahead decoding",
    *_WINDOW,
    "No draft model at hand, small batches, and compute to spare; best on code and repeating text",
)
_CHAIN = Method(
    ("chain",),
    "several drafters, one after the other",
    "as its parts",
    "as its parts",
    "Kinds of text change, and no single drafter fits them all",
)
_METHODS = (
    _PLAIN,
    _LOOKAHEAD,
    _CHAIN,
    Method(
        ("lookahead-auto", "lookahead auto", "auto"),
        "one candidate tree of all sources",
        memory="texts, rows of logits (20 MB at 49,152 tokens), K/V rows for the nodes of a step",
        when="Everywhere: it feeds what pays, and nothing where nothing does",
    ),
    Method(
        ("nasd", "ngram"),
        "n-grams of the text so far",
        memory="n-gram tables of integers",
        when="Texts that repeat themselves; costs next to nothing, so slow processors too",
    ),
    Method(
        ("prompt-lookup", "hf-prompt-lookup", "llama.cpp-prompt-lookup"),
        "prompt lookup",
        when="Answers that quote their prompt: summaries, edits, code with its context",
    ),
    Method(
        ("sd", "draft", "hf-assisted"),
        "draft model, fixed gamma",
        *_DRAFT,
        "A much smaller model of the same family exists, and memory for it",
    ),
    Method(
        ("egag",),
        "draft model, entropy-guided gamma",
        *_DRAFT,
        "As with a draft model, on text that is now easy, now hard",
    ),
    Method(
        ("hf", "hugging_face"),
        "transformers' generate",
        when="The reference that most users start from",
    ),
    Method(("llama.cpp",), "llama.cpp", when="A quantised model on a processor"),
    Method(
        ("llama.cpp-converted",),
        "llama.cpp on the weights as trtla runs them",
        when="A comparison of the programs alone",
    ),
)
_UNKNOWN = Method((), "", "-", "-", "-")
_BY_NAME = {name: one for one in _METHODS for name in one.names}
_NO_DRAFTS = ("1", "1", "0")
_TRIPLE = re.compile(r"lookahead (\d+),(\d+),(\d+)")


def method(arm: str) -> Method:
    """What an arm is, by the name that the documents give it."""
    triple = _TRIPLE.fullmatch(arm)
    if triple and triple.groups() == _NO_DRAFTS:
        return _PLAIN
    if triple:
        return replace(_LOOKAHEAD, title="W {}, N {}, G {}".format(*triple.groups()))
    if "," in arm:
        return _CHAIN
    return _BY_NAME.get(arm) or _BY_NAME.get(arm.partition(":")[0], _UNKNOWN)
