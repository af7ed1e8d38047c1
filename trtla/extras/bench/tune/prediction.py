"""Predicted speed-ups: the steps that a triple took on the texts, times the cost of such steps.

This is plain arithmetic over finished requests, without host work; the contest measures it. For a
GPU that is not here, a step costs at least bytes over bandwidth, or operations over peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from trtla.errors import UsageError, did_you_mean
from trtla.extras.bench.documents import EVERY_CATEGORY, whole_category
from trtla.extras.bench.tune.documents import Choice, Recommendation
from trtla.extras.bench.tune.grid import Finished, Groups, Sample, Steps
from trtla.measuring.arms import AR
from trtla.results.rows import Cell, Row
from trtla.runtime.costs import CostTable
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig

if TYPE_CHECKING:
    from trtla.formats.config import CheckpointConfig


AUTO = "lookahead auto"
"""The name of the arm with default options."""
WORTH = 1.02
"""Speed-up from which a triple is recommended in place of plain decoding."""
KNEE = 1.25
"""Steps of at most this many times a plain step's time count as cheap."""


def plain_steps(sample: Sample) -> Steps:
    """Return the counts of plain decoding, which need not run: all texts have full length."""
    count = sample.sampling.max_output_len - 1
    return Steps(count, count, count)


class Predictor:
    """A predictor from finished requests, which may grow, and the costs of forwards."""

    def __init__(self, cell: Cell, groups: Groups, finished: Finished, table: CostTable) -> None:
        self._cell, self._groups, self._finished, self._table = cell, groups, finished, table

    def rows(self, batch_sizes: Sequence[int]) -> list[Row]:
        """Predict every triple that ran, for each of its categories and for all together."""
        samples = [sample for group in self._groups.values() for sample in group]
        plain = {sample: plain_steps(sample) for sample in samples}
        rows = list[Row]()
        for size, triple in product(batch_sizes, (AUTOREGRESSIVE, *self._finished)):
            done = self._finished.get(triple, plain)
            ran = {
                name: {sample: done[sample] for sample in group if sample in done}
                for name, group in self._groups.items()
            }
            if len(ran) > 1 and all(ran.values()):
                ran[EVERY_CATEGORY] = dict(done)
            rows += [self._row(triple, name, part, size) for name, part in ran.items() if part]
        return rows

    def _row(
        self, triple: LookaheadConfig, category: str, done: Mapping[Sample, Steps], size: int
    ) -> Row:
        steps = sum(count.steps for count in done.values())
        plain_s = sum(self._request_s(sample, plain_steps(sample), size) for sample in done)
        time_s = sum(self._request_s(sample, count, size) for sample, count in done.items())
        cell = self._cell.model_copy(update={"category": category, "batch_size": size})
        return Row.fill(
            cell,
            arm=AR if triple == AUTOREGRESSIVE else f"lookahead {triple}",
            tokens_per_step=round(sum(count.tokens for count in done.values()) / steps, 4),
            fed_per_step=round(sum(count.fed for count in done.values()) / steps, 2),
            predicted_speedup=round(plain_s / time_s, 4),
        )

    def _request_s(self, sample: Sample, count: Steps, size: int) -> float:
        """Return a request's share of the time of a batch of equal requests, prompts included."""
        prompt = self._table.seconds(len(sample.prompt) * size, size)
        return (
            prompt + count.steps * self._table.seconds(count.fed / count.steps * size, size)
        ) / size


def speed(row: Row) -> float:
    """Return an arm's speed-up over plain decoding: measured, else predicted."""
    return next(filter(None, (row.speedup_vs_ar, row.predicted_speedup)), 0.0)


def ranked(rows: Sequence[Row], category: str | None, batch_size: int | None) -> list[Row]:
    """Return the rows of a category and batch size, the fastest first, then the smaller triple."""
    matching = [row for row in rows if (row.category, row.batch_size) == (category, batch_size)]
    return sorted(matching, key=lambda row: (-speed(row), _draft_len(row)))


def _draft_len(row: Row) -> int:
    return 0 if row.triple is None else LookaheadConfig(*row.triple).max_draft_len


def knee(table: CostTable, sequences: int = 1) -> int:
    """Return the most fed tokens whose forward takes at most 1.25 times that of one a sequence.

    Tokens up to there are nearly free. It may lie between the points of the table, up to the last.
    """
    points = next((points for count, points in table.rows if count == sequences), table.rows[0][1])
    most, first = KNEE * points[0][1], points[0][0]
    cheap = [n for n in range(first, points[-1][0] + 1) if table.seconds(n, sequences) <= most]
    return cheap[-1]


def recommend(rows: Sequence[Row]) -> Recommendation:
    """Recommend a triple for the first batch size and all categories, and for each of either alone.

    The fastest measured triple counts, else the best prediction, or plain decoding if no triple is
    ahead of it by more than timings scatter. A triple of whose drafts no token was accepted is
    never ahead. `auto` is kept if the triple is not ahead of it by as much.
    """
    sizes = list(dict.fromkeys(row.batch_size for row in rows))
    first, whole = sizes[0], whole_category(rows)
    names = dict.fromkeys(row.category for row in rows if row.batch_size == first)
    return Recommendation(
        batch_size=first,
        **_chosen(ranked(rows, whole, first)),
        by_batch_size=tuple(
            Choice(batch_size=size, **_chosen(ranked(rows, whole, size))) for size in sizes
        ),
        by_category=tuple(
            Choice(category=name, **_chosen(ranked(rows, name, first)))
            for name in names
            if name != EVERY_CATEGORY
        ),
    )


def _chosen(rows: Sequence[Row]) -> dict[str, Any]:
    """Choose the best triple of rows that are ordered by speed."""
    triples = [row for row in rows if row.triple is not None]
    ahead = [row for row in triples if row.tokens_per_step != 1.0 and speed(row) >= WORTH]
    plain = [row for row in triples if row.arm == AR]
    chosen, auto = [*ahead, *plain][0], next((row for row in rows if row.arm == AUTO), None)
    auto_speedup = None if auto is None else auto.speedup_vs_ar
    measured = chosen.speedup_vs_ar
    return {
        "lookahead": chosen.triple,
        "predicted_speedup": chosen.predicted_speedup,
        "measured_speedup": measured,
        "auto_speedup": auto_speedup,
        "keep_auto": auto_speedup is not None and (measured or 1.0) < WORTH * auto_speedup,
    }


@dataclass(frozen=True, slots=True)
class GpuPeaks:
    """A GPU's published peaks, without sparsity."""

    name: str
    terabytes_per_s: float
    """The memory bandwidth."""
    teraflops: float
    """Dense float16 and bfloat16 products with float32 sums."""
    fp8_teraflops: float | None
    """Dense FP8 products; None: the GPU has none."""
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
"""Peaks by the name that --gpu takes."""


def find_gpu(name: str) -> GpuPeaks:
    """Return a GPU of the table by its name."""
    gpu = GPUS.get(name.lower())
    if gpu is None:
        hint = f"{did_you_mean(name.lower(), GPUS)}use {', '.join(GPUS)}"
        raise UsageError(f"--gpu {name} is not known", hint)
    return gpu


_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class Roofline:
    """The least time of a model's steps on one GPU, with a rank's share if the model is split.

    Args:
        context: the average number of a sequence's cached tokens.
    """

    def __init__(self, config: CheckpointConfig, gpu: GpuPeaks, context: int) -> None:
        from trtla.formats.support import kv_bytes_per_token

        seen = [min(window or context, context) for window in config.windows]
        self.gpu, self._context = gpu, sum(seen) / len(seen)
        ranks = config.mapping.world_size
        self._layers, self._head = (count / ranks for count in _parameters(config))
        self._weight_bytes = self._layers * (1 if config.fp8 else 2) + self._head * 2
        self._kv_bytes = kv_bytes_per_token(config)
        heads = config.num_attention_heads * config.num_hidden_layers * config.head_size
        self._attention = 4.0 * heads / ranks  # operations of a fed token with a cached one
        fp8 = gpu.fp8_teraflops if config.fp8 else None
        self._layer_flops = (fp8 or gpu.teraflops) * 1e12

    def seconds(self, sequences: int, fed_each: int) -> float:
        """Return the least seconds of a step in which each sequence feeds `fed_each` tokens."""
        fed, context = sequences * fed_each, self._context
        read = self._weight_bytes + sequences * context * self._kv_bytes
        peak = self.gpu.teraflops * 1e12
        busy = 2.0 * fed * (self._layers / self._layer_flops + self._head / peak)
        busy += fed * context * self._attention / peak
        return max(read / (self.gpu.terabytes_per_s * 1e12), busy)

    def table(self, batch_sizes: Sequence[int]) -> CostTable:
        rows = (
            (count, tuple((count * size, self.seconds(count, size)) for size in _SIZES))
            for count in sorted(set(batch_sizes))
        )
        return CostTable(tuple(rows))

    @property
    def note(self) -> str:
        gpu = self.gpu
        peak = f"{gpu.teraflops:g} TFLOPS dense in 16 bits"
        return (
            f"a bound of steps' times, not a measurement: roofline of {gpu.name} with "
            f"{gpu.terabytes_per_s:g} TB/s and {peak} ({gpu.source}), "
            f"{self._weight_bytes / 1e9:.3g} GB of weights a step"
        )


def _parameters(config: CheckpointConfig) -> tuple[int, int]:
    """Count the weights that every fed token is multiplied with, in the layers and in the head."""
    hidden, size = config.hidden_size, config.head_size
    attention = hidden * size * 2 * (config.num_attention_heads + config.num_key_value_heads)
    layer = attention + 3 * hidden * config.intermediate_size
    return layer * config.num_hidden_layers, hidden * config.vocab_size
