"""What a step takes on one or several machines: the model behind scripts/scaling_model.py.

Bytes come from the project's own plan of each rank's file, so that they are exact. Rates are
measured, expected or assumed, as the comment at each of them says. Nothing here has run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, log, log2, prod

from trtla.build.engine import kv_bytes_per_token
from trtla.formats.config import CheckpointConfig, Mapping, Quantization
from trtla.formats.plan import rank_plan
from trtla.tune.prediction import WORTH
from trtla.tune.roofline import Gpu, find_gpu

LOGIT_BYTES, ACTIVATION_BYTES = 4, 2
GUESS_BYTES = 16 * 8
"""Of a row that replicas exchange: its 16 likeliest tokens and their logits."""
SHARPNESS = 4
"""Of the knee between reading and arithmetic: taken so that the CPU's measured steps come out."""

FORMATS = {
    "BF16": Quantization(),
    "FP8": Quantization(quant_algo="FP8", kv_cache_quant_algo="FP8"),
    "4 bits": Quantization(quant_algo="W4A16_AWQ", group_size=128),
}
"""Types of weights: FP8 with an FP8 K/V cache, 4 bits in groups of 128 with one of 16 bits."""

_SIZES = {  # layers, hidden, query heads, head size, feed-forward, vocabulary; 8 K/V heads each
    "8B": (32, 4096, 32, 128, 14336, 128256),  # Llama 3.1, its config.json
    "70B": (80, 8192, 64, 128, 28672, 128256),  # Llama 3.1, its config.json
    "0.41B": (16, 1536, 24, 64, 4096, 2048),  # docs/performance.md, the shipped model enlarged
}

S_BY_NODES = {"greedy": {0: 1.0, 16: 2.18, 64: 2.86}, "0.7": {0: 1.0, 16: 2.10, 64: 2.75}}
"""Tokens a step by nodes of the candidate tree: measured, docs/performance.md,
SmolLM2-135M-Instruct on Spec-Bench. Between the nodes S goes with log(1 + nodes)."""
NODES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class Host:
    """What a step takes beside the forward, all of it after one another."""

    step_s: float = 60e-6
    """Of one sequence: measured, docs/performance.md, scripts/measure_host.py, plain, code."""
    sequence_s: float = (383e-6 - 60e-6) / 15
    """Of each further one: measured there at 1 and at 16 sequences, a line between them."""
    node_s: float = 60e-6 / 16
    """Planning a node: measured at 16 nodes, docs/performance.md; taken as proportional."""
    learn_s: float = 10e-6
    """Learning of a sequence that drafts: measured there."""

    def seconds(self, sequences: int, nodes: float) -> float:
        """Of a step in which every sequence feeds so many nodes."""
        drafting = self.learn_s + nodes * self.node_s if nodes else 0.0
        return self.step_s + (sequences - 1) * self.sequence_s + sequences * drafting


NO_HOST = Host(0.0, 0.0, 0.0, 0.0)
"""Host work that is hidden behind the forward, or done by many cores."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What one rank reaches."""

    name: str
    bytes_per_s: float
    flops: float
    """Of products in 16 bits."""
    fp8_flops: float
    gap_s: float
    """Between the kernels of a layer."""
    memory: float = 0.0
    host: Host = Host()


def _gpu(gpu: Gpu, memory: float) -> Machine:
    """A GPU at the shares of the data sheet's peaks that docs/gpu.md expects, not measured."""
    reading, products = 2.8 / 3.35, 600 / 989
    return Machine(
        gpu.name,
        gpu.terabytes_per_s * 1e12 * reading,
        gpu.teraflops * 1e12 * products,
        (gpu.fp8_teraflops or gpu.teraflops) * 1e12 * products,
        11 * 2e-6,  # docs/gpu.md expects at most 11 kernels a layer; 2 us each are assumed
        memory,
    )


H100 = _gpu(find_gpu("h100"), 80e9)  # memory: NVIDIA H100 data sheet, SXM
CPU = Machine("2 cores of an AMD EPYC", 34.6e9, 2 * 175e9, 2 * 175e9, 0.0, 16e9)
"""Measured, docs/performance.md: weights read by plain decoding of 0.41B, products in bfloat16; the
memory is assumed."""
RESERVE = 3e9
"""Bytes beyond weights and cache: docs/gpu.md expects at most these."""
CACHE_SHARE = 0.9
"""Of what weights leave free: docs/gpu.md."""


@dataclass(frozen=True, slots=True)
class Link:
    """What joins ranks. An exchange takes `first_s`, `doubling_s` for each doubling of the ranks,
    and its bytes."""

    name: str
    bytes_per_s: float
    """In one direction of one rank, as achieved."""
    first_s: float
    doubling_s: float

    def latency(self, ranks: int) -> float:
        """Of an exchange of no bytes."""
        return self.first_s + self.doubling_s * log2(ranks) if ranks > 1 else 0.0

    def all_reduce(self, size: float, ranks: int) -> float:
        """Every rank has the sum of `size` bytes of each."""
        return self.latency(ranks) + 2 * (ranks - 1) / ranks * size / self.bytes_per_s

    def all_gather(self, size: float, ranks: int) -> float:
        """Every rank has all of `size` bytes, of which each made an equal share."""
        return self.latency(ranks) + (ranks - 1) / ranks * size / self.bytes_per_s


# 0.8 of the data sheet's rate in one direction is assumed to be reached by all of them.
NVLINK = Link("NVLink, HGX H100", 0.8 * 450e9, 3e-6, 3e-6)  # about 6 us for two: NCCL issue 1259
PCIE = Link("PCIe 5, 16 lanes", 0.8 * 64e9, 10e-6, 10e-6)  # latency assumed
RDMA = Link("400 Gb/s, RDMA", 0.8 * 50e9, 10e-6, 7e-6)  # latency assumed
TCP = Link("100 Gb/s, TCP", 0.8 * 12.5e9, 40e-6, 20e-6)  # about 125 us for 16: NCCL issue 1184
SHARED = Link("shared memory of a CPU", 34.6e9 / 3, 2e-6, 3e-6)  # read, add, write; latency assumed
LINKS = (NVLINK, PCIE, RDMA, TCP, SHARED)


def shape(model: str, weights: str = "BF16", tp: int = 1) -> CheckpointConfig:
    """The checkpoint that `trtla convert --tp-size` makes of a model."""
    layers, hidden, heads, head_size, inner, vocab = _SIZES[model]
    return CheckpointConfig(
        architecture="LlamaForCausalLM",
        dtype="bfloat16",
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_size=head_size,
        intermediate_size=inner,
        max_position_embeddings=8192,
        mapping=Mapping(world_size=tp, tp_size=tp),
        quantization=FORMATS[weights],
    )


@dataclass(frozen=True, slots=True)
class Rank:
    """What the first rank of a split model holds and does; no rank has more."""

    stored: int
    """Bytes of its file: the embedding is whole on every rank."""
    layer_bytes: int
    head_bytes: int
    layer_weights: int
    """Numbers that a fed token is multiplied with."""
    head_weights: int
    kv_bytes: int
    """Of one token: K/V heads are replicated where there are more ranks than heads."""
    attention: int
    """Operations that a fed token spends on a cached one."""


@lru_cache
def rank(model: str, weights: str = "BF16", tp: int = 1) -> Rank:
    """From the plan of the rank's file."""
    config, plain = shape(model, weights, tp), shape(model, "BF16", tp)
    targets = rank_plan(config, 0)
    layers = [target for target in targets if target.name.startswith("transformer.layers.")]
    head = next(target for target in targets if target.name == "lm_head.weight")
    products = [t.shape for t in rank_plan(plain, 0) if t.name.startswith("transformer.layers.")]
    return Rank(
        stored=sum(target.nbytes for target in targets),
        layer_bytes=sum(target.nbytes for target in layers),
        head_bytes=head.nbytes,
        layer_weights=sum(prod(size) for size in products if len(size) == 2),
        head_weights=prod(head.shape),
        kv_bytes=kv_bytes_per_token(config),
        attention=4
        * (config.num_attention_heads // tp)
        * config.head_size
        * config.num_hidden_layers,
    )


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of a step by what takes them."""

    weights: float
    cache: float
    gaps: float
    link: float
    host: float

    @property
    def total(self) -> float:
        """All after one another: nothing of it overlaps."""
        return self.weights + self.cache + self.gaps + self.link + self.host


@dataclass(frozen=True, slots=True)
class Setup:
    """A model on `tp` machines."""

    model: str
    weights: str = "BF16"
    tp: int = 1
    machine: Machine = H100
    link: Link = NVLINK
    context: int = 1024
    """Cached tokens of a sequence, on average."""

    def step(self, sequences: int = 1, nodes: int = 0) -> Step:
        """A step in which every sequence feeds its last token and so many nodes."""
        host = self.machine.host.seconds(sequences, nodes)
        return self.forward(sequences, sequences * (1 + nodes), host=host)

    def forward(
        self, sequences: int, fed: float, rows: float | None = None, host: float = 0.0
    ) -> Step:
        """One forward of `fed` tokens over all sequences, with logits of `rows`, by default all."""
        held, rows = rank(self.model, self.weights, self.tp), fed if rows is None else rows
        machine, fp8 = self.machine, self.weights == "FP8"
        flops = machine.fp8_flops if fp8 else machine.flops
        layers = self._slower(held.layer_bytes, 2 * held.layer_weights * fed, flops)
        head = self._slower(held.head_bytes, 2 * held.head_weights * rows, machine.flops)
        read = sequences * self.context * held.kv_bytes
        cache = self._slower(read, fed * self.context * held.attention, machine.flops)
        gaps = machine.gap_s * shape(self.model).num_hidden_layers
        return Step(layers + head, cache, gaps, self._exchanges(fed, rows), host)

    def _slower(self, read: float, operations: float, flops: float) -> float:
        reading, busy = read / self.machine.bytes_per_s, operations / flops
        return float((reading**SHARPNESS + busy**SHARPNESS) ** (1 / SHARPNESS))

    def _exchanges(self, fed: float, rows: float) -> float:
        """Two sums a layer, and the logits of all ranks' parts of the vocabulary."""
        if self.tp == 1:
            return 0.0
        config = shape(self.model)
        size = fed * config.hidden_size * ACTIVATION_BYTES
        sums = 2 * config.num_hidden_layers * self.link.all_reduce(size, self.tp)
        vocab = ceil(config.vocab_size / self.tp) * self.tp
        return sums + self.link.all_gather(rows * vocab * LOGIT_BYTES, self.tp)

    def cache_bytes(self) -> float:
        """What a rank's memory leaves for keys and values; not above 0: the model does not fit."""
        free = self.machine.memory - rank(self.model, self.weights, self.tp).stored
        return CACHE_SHARE * free - RESERVE

    def sequences(self, tokens: int, kv_bytes: int | None = None) -> int:
        """How many sequences of so many tokens fit."""
        each = kv_bytes or rank(self.model, self.weights, self.tp).kv_bytes
        return max(0, int(self.cache_bytes() // (tokens * each)))


def tokens_a_step(nodes: float, how: str = "greedy") -> float:
    """S of so many nodes; beyond those that were measured it goes on with the last slope."""
    points = [(log(1 + n), s) for n, s in S_BY_NODES[how].items()]
    place = next((i for i, (x, _) in enumerate(points) if x >= log(1 + nodes)), len(points) - 1)
    (left, low), (right, high) = points[max(place, 1) - 1], points[max(place, 1)]
    return low + (high - low) * (log(1 + nodes) - left) / (right - left)


def best_nodes(setup: Setup, sequences: int = 1, how: str = "greedy") -> tuple[int, float]:
    """The number of nodes at which a step brings most tokens a second, and those of a sequence."""
    rates = {n: tokens_a_step(n, how) / setup.step(sequences, n).total for n in NODES}
    best = max(rates, key=lambda nodes: rates[nodes])
    return best, rates[best]


def replicas(setup: Setup, count: int, nodes: int, how: str = "greedy") -> float:
    """Tokens/s of one sequence whose nodes are shared out over whole models.

    Each computes the tokens that were accepted before, since no keys and values are exchanged, and
    its share of the nodes. A step has two exchanges: what the rows say, and which tokens won.
    """
    accepted = tokens_a_step(nodes, how)
    host = setup.machine.host.seconds(1, nodes)
    step = setup.forward(1, accepted + ceil(nodes / count), host=host)
    rows = setup.link.all_gather((1 + nodes) * GUESS_BYTES, count)
    return accepted / (step.total + rows + setup.link.latency(count))


def gain(setup: Setup, sequences: int, how: str) -> tuple[int, float]:
    """The best number of nodes, and its speed-up over plain decoding of the same batch."""
    nodes, rate = best_nodes(setup, sequences, how)
    return nodes, rate * setup.step(sequences).total


def pays_until(setup: Setup, how: str) -> int | None:
    """The first batch in which drafting gains less than `WORTH`; None: there is no room for it."""
    fits = setup.sequences(2 * setup.context)
    return next((n for n in range(1, fits + 1) if gain(setup, n, how)[1] < WORTH), None)


def shared_out(one: Setup, count: int, allowed: Iterable[int]) -> float:
    """Tokens/s of so many whole models at the best of these numbers of nodes."""
    return max(replicas(one, count, nodes) for nodes in allowed)


def break_even(one: Setup, count: int, nodes: int) -> float:
    """Seconds of an all-reduce with which a split model is as fast as one machine."""
    split = replace(one, tp=count).step(1, nodes)
    saved = one.step(1, nodes).total - (split.total - split.link)
    return saved / (2 * shape(one.model).num_hidden_layers)
