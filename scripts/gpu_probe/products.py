"""Sections `stall`, `gemm`, `steady` and `tune` of scripts/gpu_probe: what single operations cost.

SDPA at a new key length, matrix products by weight layout and number of tokens, those of a fixed
order, and autotuned ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from gpu_probe.device import (
    DEVICE,
    DRY,
    DTYPE,
    enable_cudnn,
    host_ms,
    replayed_us,
    weight_copies,
)
from gpu_probe.figures import record
from torch import Tensor

from trtla.runtime.models.cuda.products import SteadyLinear
from trtla.runtime.models.cuda.steady import rows_differ
from trtla.runtime.models.layers import Linear

LAYER = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
"""Weights [out, in] of an 8B model."""
SHAPES = {**LAYER, "head": (128256, 4096), "1B gate_up": (16384, 2048), "1B o": (2048, 2048)}
TOKENS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 84, 88, 100, 112, 120, 128, 136)
ALL = {**SHAPES, "1B qkv": (3072, 2048), "1B down": (2048, 8192), "1B head": (128256, 2048)}
GRAPHS: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32, 48, 64, 84, 96, 120, 128, 192, 256, 384, 512)
"""Tokens of steps with graphs."""
FED = 84
"""Tokens of a step of 7,7,7."""
TIMED: tuple[int, ...] = (1, 16, FED, 128)
if DRY:
    LAYER = SHAPES = ALL = {"qkv": (96, 64)}
    TOKENS = GRAPHS = TIMED = (1, 2)
    FED = 2
Product = Callable[[Tensor, Tensor], Tensor]


def stall() -> None:
    """SDPA at a key length that it has not seen, with cuDNN and without."""
    for cudnn in (True, False):
        enable_cudnn(cudnn)
        found = [_new_length_ms(fed, cudnn) for fed in (1, FED)]
    enable_cudnn(True)
    record("SDPA at a new key length, cuDNN off", max(found))


def _new_length_ms(fed: int, cudnn: bool) -> float:
    lengths = [40] * 2 if DRY else range(700, 724)
    times = sorted([_attention_ms(cached, fed) for cached in lengths][0 if DRY else 4 :])
    median = times[len(times) // 2]
    label = "as PyTorch chooses" if cudnn else "cuDNN off"
    print(f"SDPA {label}, fed {fed}: a new key length costs {median:.2f} ms (max {times[-1]:.2f})")
    return median


def _attention_ms(cached: int, fed: int) -> float:
    kv_heads, group_size, size, length = 8, 4, 128, cached + fed
    q = torch.randn(1, kv_heads, group_size * fed, size, device=DEVICE, dtype=DTYPE)
    k, v = (
        torch.randn(1, length, kv_heads, size, device=DEVICE, dtype=DTYPE).transpose(1, 2)
        for _ in range(2)
    )
    bias = None
    if fed > 1:
        bias = torch.zeros(1, 1, group_size * fed, length, device=DEVICE, dtype=DTYPE)
    if cached == 700:
        names = {0: "math", 1: "flash", 2: "efficient", 3: "cuDNN"}
        print("backend", names.get(torch._fused_sdp_choice(q, k, v, attn_mask=bias)))
    return host_ms(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=bias))


def gemm() -> None:
    """Products with weights [in, out] and [out, in] from memory, captured."""
    sums: dict[tuple[int, bool], float] = {}
    print("us [GB/s] of a product: x @ W[in, out] | F.linear(x, W[out, in])")
    for name, (out, inner) in SHAPES.items():
        weights = _weights(out, inner, 24)
        turned = [weight.t().contiguous() for weight in weights]
        cells = []
        for rows in TOKENS:
            states = torch.randn(rows, inner, device=DEVICE, dtype=DTYPE)
            first, second = _us(torch.matmul, states, turned), _us(F.linear, states, weights)
            cells.append(f"{rows}: {first:.1f} | {second:.1f} [{_rate(weights, second):.0f}]")
            for linear, taken in ((False, first), (True, second)):
                before = sums.get((rows, linear), 0.0)
                sums[rows, linear] = before + taken * (name in LAYER)
        print(f"{name:11s}", "; ".join(cells), flush=True)
    best = {rows: min(sums[rows, False], sums[rows, True]) for rows in (1, FED)}
    record("84 tokens over one, products of 8B", best[FED] / best[1])
    record("weights [out, in] over [in, out]",
           max(sums[rows, True] / sums[rows, False] for rows in best))  # fmt: skip


def _weights(out: int, inner: int, most: int) -> list[Tensor]:
    copies = weight_copies(out, inner, 2 if DRY else most)
    return [torch.randn(out, inner, device=DEVICE, dtype=DTYPE) for _ in range(copies)]


def _us(product: Product, states: Tensor, weights: list[Tensor]) -> float:
    """Microseconds of a product of states with one of these weights."""
    return replayed_us(lambda: [product(states, one) for one in weights][-1], len(weights))


def _rate(weights: list[Tensor], taken_us: float) -> float:
    """GB/s of reading one of these weights."""
    return weights[0].nbytes / taken_us / 1e3


def steady() -> None:
    """Products of a fixed order: where cuBLAS has none, what they cost, and whether they keep it.

    Sums of times are of the shapes of 8B's layers where cuBLAS' rows depend on their number.
    """
    kept, sums = [], dict.fromkeys(TIMED, (0.0, 0.0))
    for name, (out, inner) in ALL.items():
        cublas = [Linear(None, weight.t()) for weight in _weights(out, inner, 24)]
        ours = [SteadyLinear.of_plain(one) for one in cublas]
        states = torch.randn(max(TIMED), inner, device=DEVICE, dtype=DTYPE)
        first, second = (_products(ways[:1], name)[0] for ways in (cublas, ours))
        differs = [count for count in GRAPHS if rows_differ(first, states[:32], (count,))]
        kept.append(not rows_differ(second, states[:32], GRAPHS))
        print(f"{name:11s} rows of cuBLAS differ among {differs or 'none'}", end="")
        for rows in TIMED:
            fed = states[:rows]
            theirs, taken = (_ways_us(_products(ways, name), fed) for ways in (cublas, ours))
            print(f"; {rows}: {taken:.1f} us, {taken / theirs:.2f} of cuBLAS'", end="")
            if name in LAYER and (differs or DRY):
                sums[rows] = sums[rows][0] + taken, sums[rows][1] + theirs
        print(flush=True)
    record("rows of a fixed order, alone and among others", sum(kept) / len(kept))
    for label, rows in (("one token", 1), ("84 tokens", FED)):
        if sums[rows][1]:
            record(f"fixed order over cuBLAS, {label}", sums[rows][0] / sums[rows][1])


def _products(ways: Sequence[Linear], name: str) -> list[Callable[[Tensor], Tensor]]:
    """As a model multiplies: its head's numbers are not rounded."""
    return [one.wide if "head" in name else one for one in ways]


def _ways_us(products: Sequence[Callable[[Tensor], Tensor]], states: Tensor) -> float:
    return replayed_us(lambda: [product(states) for product in products][-1], len(products))


def tune() -> None:
    """Autotuned products against cuBLAS."""
    import torch._inductor.config as config

    config.max_autotune_gemm_backends = "ATEN,TRITON"
    sums: dict[int, list[float]] = {}
    for name, (out, inner) in LAYER.items():
        weights = _weights(out, inner, 12)
        for rows in (1, FED):
            states = torch.randn(rows, inner, device=DEVICE, dtype=DTYPE)
            first, second = _us(F.linear, states, weights), _tuned_us(states, weights)
            sums.setdefault(rows, []).append(first / second)
            rate = f"{_rate(weights, second):.0f} GB/s"
            found = f"cuBLAS {first:.1f} us, autotuned {second:.1f} us [{rate}]"
            print(f"{name} {rows}: {found}", flush=True)
    record("cuBLAS over autotuned, 84 rows", sum(sums[FED]) / len(sums[FED]))


def _tuned_us(states: Tensor, weights: list[Tensor]) -> float:
    tuned: Product = torch.compile(F.linear, mode="max-autotune-no-cudagraphs", dynamic=False)
    for weight in weights:
        tuned(states, weight)
    taken = _us(tuned, states, weights)
    torch._dynamo.reset()
    return taken
