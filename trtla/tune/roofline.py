"""What a step takes on a GPU at the very least: bytes over bandwidth, or operations over peak.

A bound from published numbers, not a measurement: it includes no kernel launches, no host and no
software, and real steps take longer. Of the two the larger counts, so tokens are free until the
arithmetic takes as long as reading the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtla.errors import UsageError, did_you_mean
from trtla.runtime.costs import CostTable

if TYPE_CHECKING:
    from trtla.formats.config import CheckpointConfig

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True, slots=True)
class Gpu:
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
        Gpu("h200", 4.8, 989.0, 1979.0, "NVIDIA H200 data sheet, SXM"),
        Gpu("h100", 3.35, 989.0, 1979.0, "NVIDIA H100 data sheet, SXM"),
        Gpu("h100-pcie", 2.0, 756.0, 1513.0, "NVIDIA H100 data sheet, PCIe"),
        Gpu("a100", 2.039, 312.0, None, "NVIDIA A100 data sheet, SXM 80GB"),
        Gpu("a100-40gb", 1.555, 312.0, None, "NVIDIA A100 data sheet, 40GB"),
        Gpu("l40s", 0.864, 362.05, 733.0, "NVIDIA L40S data sheet"),
        Gpu("l4", 0.3, 121.0, 242.5, "NVIDIA L4 data sheet"),
        Gpu("a10", 0.6, 125.0, None, "NVIDIA A10 data sheet"),
        Gpu("rtx4090", 1.008, 165.2, 330.3, "NVIDIA Ada GPU architecture white paper"),
    )
}
"""By the name that --gpu takes."""


def find_gpu(name: str) -> Gpu:
    """A GPU of the table.

    Raises:
        UsageError: it is not there.
    """
    found = GPUS.get(name.lower())
    if found is None:
        hint = f"{did_you_mean(name.lower(), GPUS)}use {', '.join(GPUS)}"
        raise UsageError(f"--gpu {name} is not known", hint)
    return found


class Roofline:
    """The least time of a model's steps on one GPU; its ranks share the work where it is split.

    Args:
        context: cached tokens of a sequence, on average.
    """

    def __init__(self, config: CheckpointConfig, gpu: Gpu, context: int) -> None:
        from trtla.build.engine import kv_bytes_per_token

        self.gpu, self._context = gpu, context
        ranks = config.mapping.world_size
        self._layers, self._rest = (count / ranks for count in _parameters(config))
        self._weight_bytes = self._layers * (1 if config.fp8 else 2) + self._rest * 2
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
        busy = 2.0 * fed * (self._layers / self._layer_flops + self._rest / peak)
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
