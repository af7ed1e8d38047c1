"""Predicted speed-ups: the steps that a triple took on the texts, times what such steps cost.

Plain arithmetic over finished requests. Host work is not in it: what counts in the end is measured.
For a GPU that is not here, a step costs at least bytes over bandwidth, or operations over peak.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, TypeVar

from trtla.results.documents import Choice, GridPoint, Recommendation, Triple, Verified
from trtla.runtime.costs import CostTable
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.tune.plan import GpuPeaks, Groups, Sample

if TYPE_CHECKING:
    from trtla.formats.config import CheckpointConfig


ALL = "all"
"""The category of all samples together."""
WORTH = 1.02
"""Speed-up from which a triple is recommended in place of plain decoding."""
KNEE = 1.25
"""Steps of up to this many plain steps' time count as cheap."""


One = TypeVar("One", bound=Hashable)
Place = TypeVar("Place", bound=Hashable)


class _Speeds(TypedDict):
    lookahead: Triple
    predicted_speedup: float | None
    measured_speedup: float | None
    auto_speedup: float | None
    keep_auto: bool


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a request behind its prompt."""

    tokens: int
    steps: int
    fed: int


Found = Mapping[LookaheadConfig, Mapping[Sample, Steps]]
"""Finished requests by triple and sample."""


def plain_steps(sample: Sample) -> Steps:
    """Plain decoding's, which need not run: all texts are of full length."""
    count = sample.sampling.max_output_len - 1
    return Steps(count, count, count)


class Predictor:
    """Predicts from what has been found so far, which may grow.

    Args:
        table: what forwards cost.
    """

    def __init__(self, groups: Groups, found: Found, table: CostTable) -> None:
        self._groups, self._found, self._table = groups, found, table

    def rows(self, batch_sizes: Sequence[int]) -> list[GridPoint]:
        """Every triple that ran, for each category that it ran on, and for all of them together."""
        plain = {one: plain_steps(one) for own in self._groups.values() for one in own}
        ran = {AUTOREGRESSIVE: plain, **self._found}
        return [
            point
            for size in batch_sizes
            for triple, done in ran.items()
            for point in self._points(triple, done, size)
        ]

    def _points(
        self, triple: LookaheadConfig, done: Mapping[Sample, Steps], size: int
    ) -> list[GridPoint]:
        ran = {
            name: {one: done[one] for one in own if one in done}
            for name, own in self._groups.items()
        }
        if len(ran) > 1 and all(ran.values()):
            ran[ALL] = dict(done)
        return [self._point(triple, name, own, size) for name, own in ran.items() if own]

    def _point(
        self, triple: LookaheadConfig, category: str, done: Mapping[Sample, Steps], size: int
    ) -> GridPoint:
        steps = sum(one.steps for one in done.values())
        plain = sum(self._request_s(one, plain_steps(one), size) for one in done)
        own = sum(self._request_s(one, took, size) for one, took in done.items())
        return GridPoint(
            lookahead=triple.as_tuple(),
            category=category,
            batch_size=size,
            tokens_per_step=round(sum(one.tokens for one in done.values()) / steps, 4),
            fed_per_step=round(sum(one.fed for one in done.values()) / steps, 2),
            acceptance="measured",
            predicted_speedup=round(plain / own, 4),
        )

    def _request_s(self, sample: Sample, took: Steps, size: int) -> float:
        """A request's share of the time of a batch of equal ones, its prompt included."""
        prompt = self._table.seconds(len(sample.prompt) * size, size)
        return (
            prompt + took.steps * self._table.seconds(took.fed / took.steps * size, size)
        ) / size


def best(rows: Sequence[GridPoint], category: str, batch_size: int) -> list[GridPoint]:
    """The rows of a category and batch size, the fastest first; of equals the smaller triple."""
    own = [row for row in rows if row.category == category and row.batch_size == batch_size]
    return sorted(
        own, key=lambda row: (-row.predicted_speedup, LookaheadConfig(*row.lookahead).max_draft_len)
    )


def nearness(speeds: Mapping[tuple[One, Place], float]) -> dict[One, float]:
    """How near each comes to the fastest of a place, where it comes nearest: at most 1."""
    fastest: dict[Place, float] = {}
    for (_, place), speed in speeds.items():
        fastest[place] = max(speed, fastest.get(place, 0.0))
    found: dict[One, float] = {}
    for (one, place), speed in speeds.items():
        found[one] = max(speed / fastest[place], found.get(one, 0.0))
    return found


def together(rows: Sequence[GridPoint]) -> str:
    """The category that stands for the whole: that of all, or the only one."""
    return ALL if any(row.category == ALL for row in rows) else rows[0].category


def knee(table: CostTable, sequences: int = 1) -> int:
    """The most fed tokens whose forward takes at most 1.25 times that of one token a sequence.

    Tokens up to there are nearly free; whole tokens between the measured points, up to the last.
    """
    points = next((points for count, points in table.rows if count == sequences), table.rows[0][1])
    most, first = KNEE * points[0][1], points[0][0]
    cheap = [n for n in range(first, points[-1][0] + 1) if table.seconds(n, sequences) <= most]
    return cheap[-1]


def recommend(rows: Sequence[GridPoint], verified: Sequence[Verified]) -> Recommendation:
    """The triple for the first batch size and all categories together, and where it differs.

    Where triples were verified, the fastest of them counts, else the best prediction; plain
    decoding where none is ahead of it by more than timings scatter. A triple of whose drafts no
    token was accepted is never ahead, whatever the timings are. `auto` is kept where the triple is
    not ahead of it by as much.
    """
    sizes = list(dict.fromkeys(row.batch_size for row in rows))
    names = [name for name in dict.fromkeys(row.category for row in rows) if name != ALL]
    first, whole = sizes[0], together(rows)
    return Recommendation(
        batch_size=first,
        **_chosen(rows, verified, whole, first),
        by_batch_size=tuple(
            Choice(batch_size=size, **_chosen(rows, verified, whole, size)) for size in sizes
        ),
        by_category=tuple(
            Choice(category=name, **_chosen(rows, verified, name, first)) for name in names
        ),
    )


def _chosen(
    rows: Sequence[GridPoint], verified: Sequence[Verified], category: str, size: int
) -> _Speeds:
    own = best(rows, category, size)
    predicted = {row.lookahead: row.predicted_speedup for row in own}
    idle = {row.lookahead for row in own if row.tokens_per_step == 1.0}  # it saved no step
    ran = [one for one in verified if (one.category, one.batch_size) == (category, size)]
    measured = {one.lookahead: one.measured_speedup or 0.0 for one in ran if one.lookahead}
    plain = AUTOREGRESSIVE.as_tuple()
    speeds = {one: speed for one, speed in (measured or predicted).items() if one not in idle}
    fastest = max(speeds, key=lambda triple: speeds[triple], default=plain)
    chosen = fastest if speeds.get(fastest, 0.0) >= WORTH else plain
    auto = next((one.measured_speedup for one in ran if one.drafter == "auto"), None)
    return {
        "lookahead": chosen,
        "predicted_speedup": predicted.get(chosen),
        "measured_speedup": measured.get(chosen),
        "auto_speedup": auto,
        "keep_auto": auto is not None and measured.get(chosen, 1.0) < WORTH * auto,
    }


_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class Roofline:
    """The least time of a model's steps on one GPU; its ranks share the work where it is split.

    Args:
        context: cached tokens of a sequence, on average.
    """

    def __init__(self, config: CheckpointConfig, gpu: GpuPeaks, context: int) -> None:
        from trtla.build.engine import kv_bytes_per_token

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
        """The bound as a curve."""
        return CostTable(
            tuple(
                (
                    count,
                    tuple((count * size, self.seconds(count, size)) for size in _SIZES),
                )
                for count in sorted(set(batch_sizes))
            )
        )

    @property
    def note(self) -> str:
        """What it rests on."""
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
