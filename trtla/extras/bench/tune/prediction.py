"""Predicted speed-ups: the steps that a triple took on the texts, times the cost of such steps.

This is arithmetic over finished requests, without host work; the best are measured after it. For a
GPU that is not here, a step costs at least bytes over bandwidth, or operations over peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from trtla.errors import UsageError, did_you_mean
from trtla.extras.bench.tune.documents import Recommendation
from trtla.extras.bench.tune.grid import Sample, Steps
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


Finished = Mapping[LookaheadConfig, Sequence[Steps]]
"""The counts of samples by triple."""


def predict(
    cell: Cell, samples: Sequence[Sample], finished: Finished, table: CostTable
) -> list[Row]:
    """Predict plain decoding and every triple that ran."""

    def seconds(done: Sequence[Steps]) -> float:
        pairs = zip(samples, done, strict=True)
        return sum(_request_s(table, *pair, cell.batch_size) for pair in pairs)

    # Plain decoding need not run: all texts have full length.
    lengths = [sample.sampling.max_output_len - 1 for sample in samples]
    plain, rows = [Steps(count, count, count) for count in lengths], list[Row]()
    for triple, done in {AUTOREGRESSIVE: plain, **finished}.items():
        tokens, steps, fed = (sum(counts) for counts in zip(*done, strict=True))
        row = Row.fill(
            cell,
            arm=AR if triple == AUTOREGRESSIVE else f"lookahead {triple}",
            tokens_per_step=round(tokens / steps, 4),
            fed_per_step=round(fed / steps, 2),
            predicted_speedup=round(seconds(plain) / seconds(done), 4),
        )
        rows.append(row)
    return rows


def _request_s(table: CostTable, sample: Sample, count: Steps, size: int) -> float:
    """Return a request's share of the time of a batch of equal requests, prompts included."""
    prompt = table.seconds(len(sample.prompt) * size, size)
    return (prompt + count.steps * table.seconds(count.fed / count.steps * size, size)) / size


def speed(row: Row) -> float:
    """Return an arm's speed-up over plain decoding: measured, else predicted."""
    return next(filter(None, (row.speedup_vs_ar, row.predicted_speedup)), 0.0)


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, the fastest first, then the smaller triple."""
    return sorted(rows, key=lambda row: (-speed(row), _draft_len(row)))


def _draft_len(row: Row) -> int:
    return 0 if row.triple is None else LookaheadConfig(*row.triple).max_draft_len


def recommend(rows: Sequence[Row]) -> Recommendation:
    """Recommend the fastest triple, by its measured speed-up or else its predicted one.

    It is plain decoding if no triple is ahead of it by more than timings scatter. A triple of whose
    drafts no token was accepted is never ahead. `auto` is kept if the triple is not ahead of it by
    as much.
    """
    triples = [row for row in ranked(rows) if row.triple is not None]
    ahead = [row for row in triples if row.tokens_per_step != 1.0 and speed(row) >= WORTH]
    chosen = [*ahead, *(row for row in triples if row.arm == AR)][0]
    auto = next((row.speedup_vs_ar for row in rows if row.arm == AUTO), None)
    measured = chosen.speedup_vs_ar
    return Recommendation(
        lookahead=chosen.triple or AUTOREGRESSIVE.as_tuple(),
        batch_size=chosen.batch_size or 1,
        predicted_speedup=chosen.predicted_speedup,
        measured_speedup=measured,
        auto_speedup=auto,
        keep_auto=auto is not None and (measured or 1.0) < WORTH * auto,
    )


class GpuPeaks(NamedTuple):
    """A GPU's peaks in NVIDIA's data sheets, without sparsity."""

    terabytes_per_s: float
    """The memory bandwidth."""
    teraflops: float
    """Dense float16 and bfloat16 products with float32 sums."""
    fp8_teraflops: float | None
    """Dense FP8 products; None: the GPU has none."""


GPUS = {
    "h200": GpuPeaks(4.8, 989.0, 1979.0),
    "h100": GpuPeaks(3.35, 989.0, 1979.0),
    "h100-pcie": GpuPeaks(2.0, 756.0, 1513.0),
    "a100": GpuPeaks(2.039, 312.0, None),
    "a100-40gb": GpuPeaks(1.555, 312.0, None),
    "l40s": GpuPeaks(0.864, 362.05, 733.0),
    "l4": GpuPeaks(0.3, 121.0, 242.5),
    "a10": GpuPeaks(0.6, 125.0, None),
    "rtx4090": GpuPeaks(1.008, 165.2, 330.3),
}
"""Peaks by the name that --gpu takes."""


def check_gpu(name: str) -> str:
    """Return a GPU's name in the table."""
    if name.lower() not in GPUS:
        hint = f"{did_you_mean(name.lower(), GPUS)}use {', '.join(GPUS)}"
        raise UsageError(f"--gpu {name} is not known", hint)
    return name.lower()


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

    def table(self, batch_size: int) -> CostTable:
        points = ((batch_size * size, self.seconds(batch_size, size)) for size in _SIZES)
        return CostTable.of(tuple(points), batch_size)

    @property
    def note(self) -> str:
        gpu = self.gpu
        return (
            f"a bound by the roofline of {gpu.terabytes_per_s:g} TB/s and {gpu.teraflops:g} "
            "TFLOPS, not a measurement"
        )


def _parameters(config: CheckpointConfig) -> tuple[int, int]:
    """Count the weights that every fed token is multiplied with, in the layers and in the head."""
    hidden, size = config.hidden_size, config.head_size
    attention = hidden * size * 2 * (config.num_attention_heads + config.num_key_value_heads)
    layer = attention + 3 * hidden * config.intermediate_size
    return layer * config.num_hidden_layers, hidden * config.vocab_size
