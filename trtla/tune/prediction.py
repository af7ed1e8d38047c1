"""Predicted speed-ups: the steps that a triple took on the texts, times what such steps cost.

Plain arithmetic over finished requests. Host work is not in it: what counts in the end is measured.
For a GPU that is not here, a step costs at least bytes over bandwidth, or operations over peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from trtla.bench.arms import AR
from trtla.errors import UsageError, did_you_mean
from trtla.results.bench_documents import EVERY_CATEGORY, Cell, Row, whole_category
from trtla.results.tune_documents import Choice, Recommendation
from trtla.runtime.costs import CostTable
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.tune.grid import Found, Groups, Sample, Steps

if TYPE_CHECKING:
    from trtla.formats.config import CheckpointConfig


AUTO = "lookahead auto"
"""The arm of the default."""
WORTH = 1.02
"""Speed-up from which a triple is recommended in place of plain decoding."""
KNEE = 1.25
"""Steps of up to this many plain steps' time count as cheap."""


def plain_steps(sample: Sample) -> Steps:
    """Plain decoding's, which need not run: all texts are of full length."""
    count = sample.sampling.max_output_len - 1
    return Steps(count, count, count)


class Predictor:
    """Predicts from what has been found so far, which may grow, and what forwards cost."""

    def __init__(self, cell: Cell, groups: Groups, found: Found, table: CostTable) -> None:
        self._cell, self._groups, self._found, self._table = cell, groups, found, table

    def rows(self, batch_sizes: Sequence[int]) -> list[Row]:
        """Every triple that ran, for each category that it ran on, and for all of them together."""
        plain = {one: plain_steps(one) for own in self._groups.values() for one in own}
        found = []
        for size, triple in product(batch_sizes, (AUTOREGRESSIVE, *self._found)):
            done = self._found.get(triple, plain)
            ran = {
                name: {one: done[one] for one in own if one in done}
                for name, own in self._groups.items()
            }
            if len(ran) > 1 and all(ran.values()):
                ran[EVERY_CATEGORY] = dict(done)
            found += [self._row(triple, name, own, size) for name, own in ran.items() if own]
        return found

    def _row(
        self, triple: LookaheadConfig, category: str, done: Mapping[Sample, Steps], size: int
    ) -> Row:
        steps = sum(one.steps for one in done.values())
        plain = sum(self._request_s(one, plain_steps(one), size) for one in done)
        own = sum(self._request_s(one, took, size) for one, took in done.items())
        cell = self._cell.model_copy(update={"category": category, "batch_size": size})
        return Row.fill(
            cell,
            arm=AR if triple == AUTOREGRESSIVE else f"lookahead {triple}",
            tokens_per_step=round(sum(one.tokens for one in done.values()) / steps, 4),
            fed_per_step=round(sum(one.fed for one in done.values()) / steps, 2),
            predicted_speedup=round(plain / own, 4),
        )

    def _request_s(self, sample: Sample, took: Steps, size: int) -> float:
        """A request's share of the time of a batch of equal ones, its prompt included."""
        prompt = self._table.seconds(len(sample.prompt) * size, size)
        return (
            prompt + took.steps * self._table.seconds(took.fed / took.steps * size, size)
        ) / size


def speed(row: Row) -> float:
    """An arm's speed-up over plain decoding: measured, else predicted."""
    return next(filter(None, (row.speedup_vs_ar, row.predicted_speedup)), 0.0)


def ranked(rows: Sequence[Row], category: str | None, batch_size: int | None) -> list[Row]:
    """The rows of a category and batch size, the fastest first; of equals the smaller triple."""
    own = [row for row in rows if (row.category, row.batch_size) == (category, batch_size)]
    return sorted(own, key=lambda row: (-speed(row), _draft_len(row)))


def _draft_len(row: Row) -> int:
    return 0 if row.triple is None else LookaheadConfig(*row.triple).max_draft_len


def knee(table: CostTable, sequences: int = 1) -> int:
    """The most fed tokens whose forward takes at most 1.25 times that of one token a sequence.

    Tokens up to there are nearly free; whole tokens between the measured points, up to the last.
    """
    points = next((points for count, points in table.rows if count == sequences), table.rows[0][1])
    most, first = KNEE * points[0][1], points[0][0]
    cheap = [n for n in range(first, points[-1][0] + 1) if table.seconds(n, sequences) <= most]
    return cheap[-1]


def recommend(rows: Sequence[Row]) -> Recommendation:
    """The triple for the first batch size and all categories together, and where it differs.

    Where triples were measured, the fastest of them counts, else the best prediction; plain
    decoding where none is ahead of it by more than timings scatter. A triple of whose drafts no
    token was accepted is never ahead, whatever the timings are. `auto` is kept where the triple is
    not ahead of it by as much.
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


def _chosen(own: Sequence[Row]) -> dict[str, Any]:
    """The best triple of rows, the fastest first."""
    triples = [row for row in own if row.triple is not None]
    ahead = [row for row in triples if row.tokens_per_step != 1.0 and speed(row) >= WORTH]
    plain = [row for row in triples if row.arm == AR]
    chosen, auto = [*ahead, *plain][0], next((row for row in own if row.arm == AUTO), None)
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


_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class Roofline:
    """The least time of a model's steps on one GPU; its ranks share the work where it is split.

    Args:
        context: cached tokens of a sequence, on average.
    """

    def __init__(self, config: CheckpointConfig, gpu: GpuPeaks, context: int) -> None:
        from trtla.formats.support import kv_bytes_per_token

        self.gpu, self._context = gpu, context
        ranks = config.mapping.world_size
        self._layers, self._head = (count / ranks for count in _parameters(config))
        self._weight_bytes = self._layers * (1 if config.fp8 else 2) + self._head * 2
        self._kv_bytes = kv_bytes_per_token(config)
        heads = config.num_attention_heads * config.num_hidden_layers * config.head_size
        self._attention = 4.0 * heads / ranks  # operations a fed token spends on a cached one
        fp8 = gpu.fp8_teraflops if config.fp8 else None
        self._layer_flops = (fp8 or gpu.teraflops) * 1e12

    def seconds(self, sequences: int, fed_each: int) -> float:
        """The bound of a step of so many sequences that feed so many tokens each."""
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
    """Weights that every fed token is multiplied with: those of the layers, and of the head."""
    hidden, size = config.hidden_size, config.head_size
    attention = hidden * size * 2 * (config.num_attention_heads + config.num_key_value_heads)
    layer = attention + 3 * hidden * config.intermediate_size
    return layer * config.num_hidden_layers, hidden * config.vocab_size
