#!/usr/bin/env python3
"""From one core to a fleet, on paper: the tables of docs/scaling.md.

    .venv/bin/python scripts/scaling_model.py [TABLE ...] [--context 1024] [--price 2.5]
    .venv/bin/python scripts/scaling_model.py --write docs/scaling.md

Without names all tables are printed. --write puts them into a page, each between its
`<!-- table NAME -->` and `<!-- end -->`. The model and its rates are in scripts/scaling_step.py.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scaling_step import (
    CPU,
    FORMATS,
    GUESS_BYTES,
    H100,
    LINKS,
    LOGIT_BYTES,
    NO_HOST,
    NODES,
    NVLINK,
    PCIE,
    RDMA,
    S_BY_NODES,
    SHARED,
    TCP,
    Host,
    Setup,
    best_nodes,
    break_even,
    gain,
    pays_until,
    rank,
    shape,
    shared_out,
)

from trtla.build.engine import kv_bytes_per_token
from trtla.formats.config import Quantization

SPLITS = (1, 2, 4, 8)
SEVERAL = SPLITS[1:]
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MEASURED_STEPS = {1: 24.4, 4: 24.9, 8: 26.4, 16: 38.7, 32: 72.4}
"""Milliseconds by fed tokens: docs/performance.md, 0.41B, bfloat16, compiled, 2 threads, quiet."""
SERVED = (
    ("8B", "BF16", 1),
    ("8B", "FP8", 1),
    ("70B", "BF16", 4),
    ("70B", "FP8", 2),
    ("70B", "FP8", 8),
)
"""Model, weights, GPUs a model."""
BATCHED = {
    "0.41B, BF16, 2 cores": Setup("0.41B", machine=CPU),
    "8B, BF16, 1 GPU": Setup("8B"),
    "8B, FP8, 1 GPU": Setup("8B", "FP8"),
    "70B, FP8, 8 GPUs": Setup("70B", "FP8", 8),
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the flags say."""

    context: int = 1024
    price: float = 2.5


Rows = Iterator[Sequence[object]]


def _head(names: str) -> list[str]:
    return names.split(" | ")


def _each(values: Iterable[object]) -> str:
    return " / ".join(map(str, values))


def _figures(value: float) -> str:
    """Three figures, with commas and without an exponent."""
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.{0 if value >= 99.5 else 1 if value >= 9.95 else 2}f}"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def inputs(options: Options) -> Rows:
    """Every rate that the model uses, and where it is from."""
    page, expected = "docs/performance.md", "docs/gpu.md"
    yield _head("input | value | kind | from")
    rate = f"{H100.bytes_per_s / 1e12:.2f} TB/s"
    yield "H100, reading", rate, "expected", f"{expected}; data sheet: 3.35"
    rates = f"{H100.flops / 1e12:.0f} and {H100.fp8_flops / 1e12:.0f} TFLOP/s"
    sheet = f"{expected}; data sheet: 989 and 1979"
    yield "H100, products in 16 bits and FP8", rates, "expected; FP8: assumed", sheet
    gap = f"{expected}: 11 kernels a layer, 2 us each assumed"
    yield "H100, between a layer's kernels", f"{_us(H100.gap_s)} us", "assumed", gap
    room = f"{expected}: 0.9 of what weights leave, less 3 GB"
    yield "H100, memory", f"{H100.memory / 1e9:.0f} GB", "data sheet, expected", room
    rate = f"{CPU.bytes_per_s / 1e9:.1f} GB/s, {CPU.flops / 1e9:.0f} GFLOP/s"
    yield CPU.name, rate, "measured", f"{page}, 0.41B; its memory: 16 GB assumed"
    host = Host()
    yield "host, a step of one sequence", f"{_us(host.step_s)} us", "measured", page
    line = f"{page}; a line through batches of 1 and 16"
    yield "host, a further sequence", f"{host.sequence_s * 1e6:.1f} us", "measured", line
    drafts = f"{_us(host.learn_s)} us and {host.node_s * 1e6:.2f} us a node"
    yield "host, drafting of a sequence", drafts, "measured", f"{page}, at 16 nodes; proportional"
    for how, known in S_BY_NODES.items():
        points = ", ".join(f"{s:.2f} at {nodes} nodes" for nodes, s in known.items() if nodes)
        yield f"S, {how}", points, "measured", f"{page}, SmolLM2-135M-Instruct"
    sources = {
        NVLINK: "450 GB/s on the data sheet; two GPUs: 6 us in NCCL issue 1259",
        TCP: "16 ranks: 119 to 130 us in NCCL issue 1184",
        SHARED: "a third of what it reads: two reads and a write",
    }
    for link in LINKS:
        wait = _each(_us(link.latency(count)) for count in SEVERAL)
        rate = f"{link.bytes_per_s / 1e9:.1f} GB/s; {wait} us for 2 / 4 / 8"
        yield link.name, rate, "assumed", sources.get(link, "0.8 of the nominal rate")
    yield "cached tokens of a sequence", options.context, "assumed", "room is for twice as many"


def growth(options: Options) -> Rows:
    """What of a step grows with what."""
    yield _head("part of a step | grows with | on more GPUs | 8B, BF16 | 70B, BF16")
    both, split = ("8B", "70B"), "shared out"
    held, shapes = [rank(model) for model in both], [shape(model) for model in both]
    read = (f"{(r.layer_bytes + r.head_bytes) / 1e9:.1f} GB" for r in held)
    yield "weights read", "nothing: once a step", split, *read
    work = (f"{2 * (r.layer_weights + r.head_weights) / 1e9:.0f} GFLOP a token" for r in held)
    yield "arithmetic", "fed tokens = sequences x (1 + nodes)", split, *work
    cached = (f"{r.kv_bytes / 1e3:.0f} kB a cached token" for r in held)
    yield "K/V read", "sequences x cached tokens", "shared out up to 8, then copied", *cached
    gaps = (f"{H100.gap_s * s.num_hidden_layers * 1e3:.1f} ms" for s in shapes)
    yield "gaps between kernels", "layers", "stays", *gaps
    waits = (f"{2 * s.num_hidden_layers} sums, 1 gather" for s in shapes)
    yield "link, tensor parallel: waits", "layers", "grows", *waits
    sums = (4 * s.num_hidden_layers * s.hidden_size / 1e6 for s in shapes)
    logits = [s.vocab_size * LOGIT_BYTES / 1e6 for s in shapes]
    sent = (f"{a:.1f} + {b:.1f} MB a token" for a, b in zip(sums, logits, strict=True))
    yield "link, tensor parallel: sums + logits", "fed tokens", "stays", *sent
    few = f"2 waits, {GUESS_BYTES} bytes a token"
    yield "link, lookahead parallel", "fed tokens", "stays", few, few
    host = Host()
    work_here = f"{host.sequence_s * 1e6:.1f} us a sequence, {host.node_s * 1e6:.2f} us a node"
    yield "host", "sequences, nodes", "stays", work_here, work_here


def check(options: Options) -> Rows:
    """The model beside the measured steps of a CPU."""
    yield "fed tokens", *MEASURED_STEPS
    yield "measured, ms", *MEASURED_STEPS.values()
    setup = Setup("0.41B", machine=CPU, context=192)
    yield "modelled, ms", *(f"{setup.forward(1, fed).total * 1e3:.1f}" for fed in MEASURED_STEPS)


def memory(options: Options) -> Rows:
    """What a GPU holds on 1, 2, 4 and 8, and how many sequences of 4096 tokens fit beside it."""
    yield _head(
        "model, weights | weights, GB a GPU | K/V, kB a token: BF16, FP8 | "
        "sequences, K/V in BF16 | K/V in FP8"
    )
    for model in ("8B", "70B"):
        kv = [f"{_kv_bytes(model, 1, fp8) / 1e3:.0f}" for fp8 in (False, True)]
        for weights in FORMATS:
            setups = [Setup(model, weights, tp) for tp in SPLITS]
            stored = _each(_figures(rank(model, weights, tp).stored / 1e9) for tp in SPLITS)
            fits = (
                _each(s.sequences(4096, _kv_bytes(model, s.tp, fp8)) for s in setups)
                for fp8 in (False, True)
            )
            yield f"{model}, {weights}", stored, ", ".join(kv), *fits


def _kv_bytes(model: str, tp: int, fp8: bool) -> int:
    """Of a token's keys and values on one rank."""
    kind = Quantization(kv_cache_quant_algo="FP8" if fp8 else None)
    return kv_bytes_per_token(shape(model, "BF16", tp).model_copy(update={"quantization": kind}))


def links(options: Options) -> Rows:
    """Milliseconds a step of tensor parallelism on 2, 4 and 8, with 1 and with 65 fed tokens."""
    cases = [(model, fed) for model in ("8B", "70B") for fed in (1, 65)]
    yield "link", *(f"{model}, {fed} fed" for model, fed in cases)
    for link in LINKS:
        setups = ([(Setup(model, tp=n, link=link), fed) for n in SEVERAL] for model, fed in cases)
        yield link.name, *(_each(_ms(s.forward(1, fed).link) for s, fed in own) for own in setups)


def latency(options: Options) -> Rows:
    """One sequence: where the milliseconds go, and what drafting makes of the tokens/s."""
    parts = "weights | K/V | gaps | link | host | step"
    yield _head(f"model, weights, GPUs | {parts} | plain, tokens/s | greedy (nodes) | 0.7 (nodes)")
    for model in ("8B", "70B"):
        for weights in ("BF16", "FP8"):
            setups = [Setup(model, weights, tp, context=options.context) for tp in SPLITS]
            for setup in (s for s in setups if s.sequences(2 * options.context)):
                step = setup.step()
                times = step.weights, step.cache, step.gaps, step.link, step.host, step.total
                best = (best_nodes(setup, 1, how) for how in S_BY_NODES)
                drafted = (f"{rate:.0f} ({nodes})" for nodes, rate in best)
                name = f"{model}, {weights}, {setup.tp}"
                yield name, *map(_ms, times), f"{1 / step.total:.0f}", *drafted


def batches(options: Options) -> Rows:
    """Which drafting pays at which batch: the best nodes of greedy texts, then three speed-ups."""
    setups = [replace(setup, context=options.context) for setup in BATCHED.values()]
    free = [replace(one, machine=replace(one.machine, host=NO_HOST)) for one in setups]
    yield "sequences", *(f"{name}: {what}" for name in BATCHED for what in ("plain", "drafted"))
    for batch in BATCHES:
        row: list[object] = [batch]
        for setup, hidden in zip(setups, free, strict=True):
            if batch > setup.sequences(2 * options.context):
                row += ["no room", "-"]
                continue
            nodes, greedy = gain(setup, batch, "greedy")
            others = gain(setup, batch, "0.7")[1], gain(hidden, batch, "greedy")[1]
            speeds = _each(f"{one:.2f}" for one in (greedy, *others))
            row += [_figures(batch / setup.step(batch).total), f"{nodes}: {speeds}"]
        yield row
    ends = [
        _each(
            one or "-"
            for one in (*(pays_until(s, how) for how in S_BY_NODES), pays_until(f, "greedy"))
        )
        for s, f in zip(setups, free, strict=True)
    ]
    yield "gains < 2 % from", *(cell for end in ends for cell in ("", end))


def parallel(options: Options) -> Rows:
    """Greedy tokens/s of one sequence on several machines: the model split, or whole on each."""
    yield _head(
        "model, machine, link | one machine | tensor parallel on 2 / 4 / 8 | lookahead parallel, "
        "up to 64 nodes | any number | an all-reduce, us | splitting pays below, us"
    )
    large = [("8B", "BF16", link) for link in (NVLINK, PCIE, RDMA, TCP)]
    large += [("70B", "FP8", link) for link in (NVLINK, RDMA, TCP)]
    setups = [Setup(m, w, 1, H100, link, options.context) for m, w, link in large]
    setups.append(Setup("0.41B", "BF16", 1, CPU, TCP, options.context))
    for one in (one for one in setups if one.sequences(2 * options.context)):
        split = [replace(one, tp=count) for count in SEVERAL]
        nodes, rate = best_nodes(one)
        size = 2 * shape(one.model).hidden_size * (1 + nodes)
        name = "H100" if one.machine is H100 else "2 cores"
        yield (
            f"{one.model} {one.weights}, {name}, {one.link.name}",
            f"{rate:.0f}",
            _each(f"{best_nodes(setup)[1]:.0f}" for setup in split),
            _each(f"{shared_out(one, n, NODES):.0f}" for n in SEVERAL),
            _each(
                f"{shared_out(one, n, (*NODES, *range(72, 64 * n + 1, 8))):.0f}" for n in SEVERAL
            ),
            _each(_us(one.link.all_reduce(size, count)) for count in SEVERAL),
            _each(_us(break_even(one, count, nodes)) for count in SEVERAL),
        )


def node(options: Options) -> Rows:
    """Tokens/s of eight H100, and what a million of them cost."""
    yield _head(
        "model, weights, GPUs a model | sequences a model | plain, tokens/s: of one | "
        "of the node | USD a million | greedy drafts, tokens/s: of one (nodes) | of the node | "
        "USD a million | prompts, tokens/s"
    )
    for model, weights, tp in SERVED:
        setup = Setup(model, weights, tp, context=options.context)
        most = min(256, setup.sequences(2 * options.context))
        prompt = 8 / tp * 2048 / setup.forward(1, 2048, rows=1).total
        for batch in sorted({1, min(32, most), most} if most else ()):
            count, plain = batch * 8 // tp, 1 / setup.step(batch).total
            nodes, drafted = best_nodes(setup, batch)
            yield (
                f"{model}, {weights}, {tp}",
                batch,
                f"{plain:.0f}",
                *_sold(plain * count, options.price),
                f"{drafted:.0f} ({nodes})",
                *_sold(drafted * count, options.price),
                _figures(prompt),
            )


def _sold(rate: float, price: float) -> tuple[str, str]:
    """Tokens/s of eight GPUs, and what a million tokens cost."""
    return _figures(rate), f"{8 * price / (rate * 3600) * 1e6:.2f}"


TABLES: dict[str, Callable[[Options], Rows]] = {
    table.__name__: table
    for table in (inputs, growth, check, memory, links, latency, batches, parallel, node)
}


def markdown(name: str, options: Options) -> str:
    """A table of `TABLES`."""
    head, *rows = [[str(cell) for cell in row] for row in TABLES[name](options)]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def filled(page: str, options: Options) -> str:
    """A page with its tables made anew."""

    def put(match: re.Match[str]) -> str:
        return f"{match[1]}\n{markdown(match[2], options)}\n{match[3]}"

    return re.sub(r"(<!-- table (\w+) -->)\n.*?(<!-- end -->)", put, page, flags=re.DOTALL)


def main() -> None:
    """Print tables, or put them into a page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--context", type=int, default=1024, help="cached tokens of a sequence")
    parser.add_argument("--price", type=float, default=2.5, help="USD for an hour of a GPU")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this page")
    args = parser.parse_args()
    if unknown := [name for name in args.tables if name not in TABLES]:
        parser.error(f"no table {unknown[0]}; use {', '.join(TABLES)}")
    if args.context < 1 or args.price < 0:
        parser.error("--context has to be above 0 and --price not below 0")
    options = Options(args.context, args.price)
    if args.write:
        args.write.write_text(filled(args.write.read_text(), options))
        return
    for name in args.tables or TABLES:
        what = (TABLES[name].__doc__ or "").splitlines()[0]
        print(f"{name}: {what}\n\n{markdown(name, options)}\n")


if __name__ == "__main__":
    main()
