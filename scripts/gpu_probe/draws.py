"""Section `sample` of scripts/gpu_probe: what draws cost, and whether they are the CPU's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from gpu_probe.device import DEVICE, DRY, median_ms
from gpu_probe.figures import record
from torch import Tensor

from trtla.runtime.sampling.device import DeviceSampler
from trtla.runtime.sampling.draw import draw_at
from trtla.runtime.sampling.logits import on_host
from trtla.runtime.sampling.noise import uniform
from trtla.runtime.sampling.predict import Draw
from trtla.settings.sampling import SamplingParams

VOCABULARY, FEW, MANY = (64, 2, 3) if DRY else (128256, 43, 64)
"""Logits of a row, rows of a step that are drawn, and rows that are compared."""
KINDS = {
    "temperature": SamplingParams(temperature=0.8),
    "top-k 50": SamplingParams(temperature=0.8, top_k=50),
    "top-p 0.9": SamplingParams(temperature=0.8, top_p=0.9),
    "top-k 50, top-p 0.9": SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
}
if DRY:
    KINDS = {name: KINDS[name] for name in ("temperature", "top-p 0.9")}
Draws = Callable[[Tensor, SamplingParams, Sequence[float]], list[int]]
"""A token of each row, with its noise."""


def sample() -> None:
    """Draw on the host, and by the executor's kernel, which the figures are of."""
    for way, draw in {"the host": _plain, "the kernel": _kernel()}.items():
        taken = {(rows, name): _ms(draw, rows, KINDS[name]) for rows in (1, FEW) for name in KINDS}
        for (rows, name), ms in taken.items():
            print(f"{way}: {rows} rows of {VOCABULARY}, {name}: {ms:.2f} ms")
    record("one row drawn", taken[1, "temperature"])
    record("43 rows drawn with top-p", taken[FEW, "top-p 0.9"])
    cpu = torch.linspace(-5, 5, VOCABULARY).sin()[None].repeat(MANY, 1)
    device, noise = cpu.to(DEVICE), [uniform(7, row) for row in range(MANY)]
    same = alone = 1.0
    for params in KINDS.values():
        drawn = draw(device, params, noise)
        same = min(same, _share(drawn, _plain(cpu, params, noise)))
        single = [token for one in noise for token in draw(device[:1], params, [one])]
        alone = min(alone, _share(drawn, single))
    record("draws as on the CPU", same)
    record("draws of a row alone", alone)


def _plain(logits: Tensor, params: SamplingParams, noise: Sequence[float]) -> list[int]:
    return draw_at(on_host(logits), params, noise)


def _kernel() -> Draws:
    sampler = DeviceSampler()

    def draw(logits: Tensor, params: SamplingParams, noise: Sequence[float]) -> list[int]:
        return sampler.choose(logits, [Draw(i, params, one) for i, one in enumerate(noise)])[1]

    return draw


def _ms(draw: Draws, rows: int, params: SamplingParams) -> float:
    logits = torch.randn(rows, VOCABULARY, device=DEVICE) * 3
    noise = [uniform(1, row % 8) for row in range(rows)]
    return median_ms(lambda: draw(logits, params, noise), 10)


def _share(first: list[int], second: list[int]) -> float:
    return sum(a == b for a, b in zip(first, second, strict=True)) / len(first)
