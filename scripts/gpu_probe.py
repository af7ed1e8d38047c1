#!/usr/bin/env python3
"""What a machine with one NVIDIA GPU says about trtla, section by section.

    python scripts/gpu_probe.py env check:bfloat16 step:8B

env     versions, memory bandwidth, matrix products at their best
check   the paged kernels against float64 [check:DTYPE], and a model on them
mini    few of their launches, for compute-sanitizer
stall   what SDPA costs at a new key length
gemm    matrix products by weight layout and number of tokens
step    a step of random models [step:1B, step:8B]: eager, as a graph, with fused small kernels
sample  drawing tokens
texts   the shipped model's texts: CPU, packed, paged
tune    what autotuned products would give (slow)

scripts/gpu_check.sh runs all of them. A section that fails does not stop the next ones; the exit
code is 1 then. PROBE_DRY=1 runs the same code on a CPU with tiny sizes, Triton interpreted.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from gpu_probe_device import (
    DEVICE,
    DRY,
    DTYPE,
    enable_cudnn,
    host_ms,
    median_ms,
    replayed_us,
    timed_us,
    weight_copies,
)
from torch import Tensor

from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.bench.opened import read_bandwidth
from trtla.runtime.sampling.draw import draw_at
from trtla.runtime.sampling.noise import uniform

SHIPPED = Path(__file__).resolve().parent.parent / "trtla" / "assets" / "tiny-llama"
PROMPTS = ["def fibonacci(n):\n", "import os\n\nclass Reader:\n", "for i in range(10):\n    print("]
LAYER = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
"""Weights [out, in] of an 8B model."""


def env() -> None:
    """Versions, and what the hardware can do at best."""
    try:
        import triton
    except ImportError:
        print("no Triton: check, mini and step cannot run")
    else:
        print("triton", triton.__version__)
    print("python", sys.version.split()[0], "torch", torch.__version__, "cpus", os.cpu_count())
    if DRY:
        return
    print(torch.cuda.get_device_name(), torch.cuda.mem_get_info())
    print("cudnn", torch.backends.cudnn.version())
    source = torch.randn(2**30, device=DEVICE)
    target = torch.empty_like(source)
    copied, read = timed_us(lambda: target.copy_(source)), timed_us(lambda: source.sum())
    print(f"copy {2 * source.nbytes / copied / 1e3:.0f} GB/s (read and write)")
    print(f"sum {source.nbytes / read / 1e3:.0f} GB/s (read)")
    square = torch.randn(8192, 8192, device=DEVICE, dtype=DTYPE)
    taken = timed_us(lambda: square @ square)
    print(f"8192^3 bfloat16 {2 * 8192**3 / taken / 1e6:.0f} TFLOP/s")
    print(f"trtla bench's read bandwidth {read_bandwidth(DEVICE) / 1e9:.0f} GB/s")


def stall() -> None:
    """SDPA at a key length that it has not seen, with cuDNN and without."""
    for cudnn in (True, False):
        enable_cudnn(cudnn)
        for fed in (1, 3 if DRY else 84):
            times = [_attention_ms(40 if DRY else 700 + step, fed) for step in range(24)][4:]
            found = f"{sorted(times)[len(times) // 2]:.2f} ms (max {max(times):.2f})"
            label = "as it is" if cudnn else "cuDNN off"
            print(f"SDPA {label}, fed {fed}: a new key length costs {found}")
    enable_cudnn(True)


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
    shapes = {**LAYER, "head": (128256, 4096), "1B gate_up": (16384, 2048), "1B o": (2048, 2048)}
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 84, 88, 100, 112, 120, 128, 136)
    if DRY:
        shapes, sizes = {"qkv": (96, 64)}, (1, 2)
    print("us [GB/s] of a product: x @ W[in,out] | F.linear(x, W[out,in])")
    for name, (out, inner) in shapes.items():
        copies = weight_copies(out, inner, 2 if DRY else 24)
        old = [torch.randn(inner, out, device=DEVICE, dtype=DTYPE) for _ in range(copies)]
        new = [weight.t().contiguous() for weight in old]
        cells = [
            _gemm_cell(torch.randn(m, inner, device=DEVICE, dtype=DTYPE), old, new) for m in sizes
        ]
        print(f"{name:11s}", "; ".join(cells), flush=True)


def _gemm_cell(states: Tensor, old: list[Tensor], new: list[Tensor]) -> str:
    first = replayed_us(lambda: [states @ weight for weight in old][-1], len(old))
    second = replayed_us(lambda: [F.linear(states, weight) for weight in new][-1], len(new))
    rate = new[0].numel() * 2 / second / 1e3
    return f"{len(states)}: {first:.1f} | {second:.1f} [{rate:.0f}]"


def sample() -> None:
    """What draws cost, and whether they are the CPU's."""
    vocab = 512 if DRY else 128256
    kinds = {
        "temperature": SamplingParams(temperature=0.8),
        "top-k 50": SamplingParams(temperature=0.8, top_k=50),
        "top-p 0.9": SamplingParams(temperature=0.8, top_p=0.9),
    }
    for rows in (1, 43):
        logits = torch.randn(rows, vocab, device=DEVICE) * 3
        noise = [uniform(1, row % 8) for row in range(rows)]
        for name, params in kinds.items():
            taken = median_ms(lambda: draw_at(logits, params, noise).tolist(), 10)  # noqa: B023
            print(f"draw {rows} rows of {vocab}, {name}: {taken:.2f} ms")
    cpu = torch.linspace(-5, 5, vocab).sin()[None].repeat(64, 1)
    gpu, noise = cpu.to(DEVICE), [uniform(7, row) for row in range(64)]
    for name, params in kinds.items():
        drawn = draw_at(gpu, params, noise).tolist()
        same = drawn == draw_at(cpu, params, noise).tolist()
        alone = drawn == [int(draw_at(gpu[:1], params, [one])[0]) for one in noise]
        print(f"draws with {name} equal the CPU's: {same}; one row alone equals 64: {alone}")


def texts() -> None:
    """Texts of the shipped model with three triples and two temperatures, against plain ones."""
    triples = ((1, 1, 0), (3, 4, 2)) if DRY else ((1, 1, 0), (7, 7, 7), (3, 4, 2))
    cpu: dict[float, list[Sequence[int]]] = {}
    for name, device, paged, dtype in (
        ("cpu", "cpu", "0", "float32"),
        *((name, str(DEVICE), paged, dtype) for name, paged in (("packed", "0"), ("paged", "1"))
          for dtype in (("float32",) if DRY else ("float32", "bfloat16"))),
    ):  # fmt: skip
        os.environ["TRTLA_PAGED_ATTENTION"] = paged
        with LLM(
            str(SHIPPED),
            lookahead=LookaheadConfig(*triples[1]),
            device=device,
            dtype=dtype,
            max_batch_size=4,
        ) as llm:
            for heat in (0.0, 0.7):
                found = [_texts(llm, LookaheadConfig(*triple), heat) for triple in triples]
                cpu.setdefault(heat, found[0])
                for triple, ids in zip(triples, found, strict=True):
                    plain, own = _equal(ids, found[0]), _equal(ids, cpu[heat])
                    label = f"{name} {dtype} {triple} at temperature {heat}"
                    print(f"{label}: {plain} equal plain decoding, {own} the CPU's float32")
            runner = getattr(llm._executor, "_forward", None)
            graphs = getattr(runner, "captured", "no graphs"), getattr(runner, "problem", None)
            print(name, dtype, llm.description, *graphs)


def _texts(llm: LLM, lookahead: LookaheadConfig, temperature: float) -> list[Sequence[int]]:
    params = SamplingParams(16 if DRY else 96, temperature, seed=3)
    return [done.output_ids for done in llm.generate(PROMPTS, params, lookahead)]


def _equal(first: list[Sequence[int]], second: list[Sequence[int]]) -> str:
    return f"{sum(a == b for a, b in zip(first, second, strict=True))} of {len(first)}"


def tune() -> None:
    """Autotuned products against cuBLAS."""
    if DRY:
        print("nothing to tune on a CPU")
        return
    import torch._inductor.config as config

    config.max_autotune_gemm_backends = "ATEN,TRITON"
    for name, (out, inner) in LAYER.items():
        for rows in (1, 84, 120):
            copies = weight_copies(out, inner, 12)
            weights = [torch.randn(out, inner, device=DEVICE, dtype=DTYPE) for _ in range(copies)]
            states = torch.randn(rows, inner, device=DEVICE, dtype=DTYPE)
            first, second = _tuned_us(states, weights)
            rate = f"{out * inner * 2 / second / 1e3:.0f} GB/s"
            print(
                f"{name} {rows}: cuBLAS {first:.1f} us, autotuned {second:.1f} us [{rate}]",
                flush=True,
            )


def _tuned_us(states: Tensor, weights: list[Tensor]) -> tuple[float, float]:
    tuned = torch.compile(F.linear, mode="max-autotune-no-cudagraphs", dynamic=False)
    for weight in weights:
        tuned(states, weight)
    first = replayed_us(lambda: [F.linear(states, weight) for weight in weights][-1], len(weights))
    second = replayed_us(lambda: [tuned(states, weight) for weight in weights][-1], len(weights))
    torch._dynamo.reset()
    return first, second


def _check(dtype: str = "") -> None:
    from gpu_probe_attention import check  # imports Triton

    check(dtype)


def _mini() -> None:
    from gpu_probe_attention import mini

    mini()


def _step(size: str = "") -> None:
    from gpu_probe_step import step

    step(size)


SECTIONS: dict[str, Callable[..., None]] = {
    "env": env,
    "check": _check,
    "mini": _mini,
    "stall": stall,
    "gemm": gemm,
    "step": _step,
    "sample": sample,
    "texts": texts,
    "tune": tune,
}


def section(text: str) -> str:
    """NAME or NAME:ARGUMENT of a section."""
    if text.partition(":")[0] not in SECTIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(SECTIONS)}")
    return text


def run(text: str) -> bool:
    """Run a section; whether it came to its end."""
    name, _, argument = text.partition(":")
    print(f"===== {text} ({time.strftime('%H:%M:%S')})", flush=True)
    try:
        SECTIONS[name](*([argument] if argument else []))
    except Exception:  # the next section may well work
        traceback.print_exc()
        return False
    return True


def main() -> int:
    """Run the named sections; 1 where one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", type=section, nargs="+", metavar="SECTION")
    failed = sum(not run(text) for text in parser.parse_args().sections)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
